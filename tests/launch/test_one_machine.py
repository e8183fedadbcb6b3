"""A job on one machine, from the command line to exit code, terminal and logs."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, ROOT, environment, rankrun, run_script, write_script

TELL = """
    import json, os, sys
    print(json.dumps({"argv": sys.argv, "environ": dict(os.environ)}))
"""


def told(text: str) -> dict[str, str]:
    """The environment that a worker with ``TELL`` found."""
    found: dict[str, str] = json.loads(text)["environ"]
    return found


class TestWorkers:
    def test_each_is_told_who_it_is(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, TELL, "--device_type", "cpu")
        assert done.code == 0
        first, second = told(done.log("workerlog.0")), told(done.log("workerlog.1"))
        for rank, environ in enumerate((first, second)):
            for name in (
                *("RANK", "LOCAL_RANK", "ROLE_RANK", "PADDLE_TRAINER_ID"),
                *("PADDLE_GLOBAL_RANK", "PADDLE_LOCAL_RANK", "PADDLE_RANK_IN_NODE"),
            ):
                assert environ[name] == str(rank), name
            for name in (
                *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "PADDLE_TRAINERS_NUM"),
                *("PADDLE_GLOBAL_SIZE", "PADDLE_LOCAL_SIZE"),
            ):
                assert environ[name] == "2", name
            assert environ["PADDLE_NNODES"] == "1"
            assert environ["PADDLE_LOG_DIR"] == str(tmp_path / "log")
            assert environ["PADDLE_DISTRI_BACKEND"] == "gloo"
            assert environ["TORCHELASTIC_RESTART_COUNT"] == "0"
        endpoints = first["PADDLE_TRAINER_ENDPOINTS"].split(",")
        assert [first["PADDLE_CURRENT_ENDPOINT"], second["PADDLE_CURRENT_ENDPOINT"]] == endpoints
        assert first["PADDLE_MASTER"] not in endpoints
        assert first["POD_NAME"] == second["POD_NAME"] != ""

    def test_paddlecloud_has_no_say_in_it(self, tmp_path: Path) -> None:
        """Its variables would be another node's, and contradict each other."""
        cloud = {"PADDLE_TRAINERS": "10.0.0.1,10.0.0.2", "PADDLE_TRAINER_ID": "7"}
        cloud |= {"POD_IP": "127.0.0.1", "TRAINER_PORTS_NUM": "1"}
        done = run_script(tmp_path, TELL, "--device_type", "cpu", **cloud)
        assert (done.code, done.errors.count("PADDLE_TRAINER")) == (0, 0)
        assert told(done.log("workerlog.1"))["PADDLE_TRAINER_ID"] == "1"

    def test_arguments_of_the_script(self, tmp_path: Path) -> None:
        write_script(tmp_path, TELL)
        done = rankrun(tmp_path, "--nproc_per_node=2", "train.py", "--lr", "0.1", "--gpus", "-m")
        assert json.loads(done.output)["argv"] == ["train.py", "--lr", "0.1", "--gpus", "-m"]

    def test_a_module(self, tmp_path: Path) -> None:
        (tmp_path / "package").mkdir()
        write_script(tmp_path, TELL, "package/train.py")
        done = rankrun(tmp_path, "--nproc-per-node", "2", "-m", "package.train", "-m", "x")
        assert done.code == 0, done.errors
        assert json.loads(done.output)["argv"][1:] == ["-m", "x"]

    def test_a_program_that_is_not_python(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, '#!/bin/sh\necho "I am $RANK of $WORLD_SIZE, $1"\n', "go")
        script.chmod(0o755)
        done = rankrun(tmp_path, "--nproc_per_node", "2", "./go", "--gpus")
        assert (done.code, done.output) == (0, "I am 0 of 2, --gpus\n")
        assert done.log("workerlog.1") == "I am 1 of 2, --gpus\n"

    def test_a_program_on_path(self, tmp_path: Path) -> None:
        done = rankrun(tmp_path, "--nproc_per_node", "2", "sh", "-c", "echo $RANK")
        assert (done.code, done.output, done.log("workerlog.1")) == (0, "0\n", "1\n")

    def test_one_per_cpu_by_default(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('here')")
        done = rankrun(tmp_path, "train.py", CPU_NUM="3")
        assert done.logs == ["workerlog.0", "workerlog.1", "workerlog.2"]
        assert "the workers run on the CPU" in done.errors
        assert "--device_type cpu" in done.errors

    def test_no_warning_if_the_cpu_was_asked_for(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('here')")
        done = rankrun(
            tmp_path, "--device_type=cpu", "--log_level=WARNING", "train.py", CPU_NUM="1"
        )
        assert (done.output, done.errors) == ("here\n", "")

    def test_python_is_unbuffered(self, tmp_path: Path) -> None:
        code = "import sys; print(sys.stdout.write_through)"
        write_script(tmp_path, code)
        assert rankrun(tmp_path, "--nproc_per_node", "1", "train.py").output == "True\n"
        inner = write_script(tmp_path, f'#!/bin/sh\n{sys.executable} -c "{code}"\n', "go")
        inner.chmod(0o755)
        assert rankrun(tmp_path, "--nproc_per_node", "1", "./go").output == "True\n"

    def test_only_the_first_has_the_standard_input(self, tmp_path: Path) -> None:
        write_script(tmp_path, "import sys; print(repr(sys.stdin.read()))")
        done = rankrun(tmp_path, "--nproc_per_node", "2", "train.py", given="typed")
        assert done.output == "'typed'\n"
        assert done.log("workerlog.1") == "''\n"

    def test_variables_in_place_of_flags(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('here')")
        done = rankrun(tmp_path, "train.py", PADDLE_NPROC_PER_NODE="3", PADDLE_LOG_DIR="here")
        assert done.code == 0
        assert len(list((tmp_path / "here").iterdir())) == 3

    def test_a_task_of_slurm_or_mpi_is_not_each_worker(self, tmp_path: Path) -> None:
        names = ("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS", "PMIX_RANK")
        script = f"import os; print(*(os.environ.get(name) for name in {names}))"
        task = {"SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NTASKS": "1", "PMIX_RANK": "0"}
        done = run_script(tmp_path, script, "--nnodes", "1", **task)
        assert done.code == 0, done.errors
        assert [done.log(f"workerlog.{n}") for n in range(2)] == ["0 0 2 None\n", "1 1 2 None\n"]

    def test_a_launch_inside_a_worker(self, tmp_path: Path) -> None:
        write_script(tmp_path, "import os; print('inner', os.environ['WORLD_SIZE'])", "inner.py")
        script = f"""
            import os, subprocess
            command = {COMMAND!r} + ["--nproc_per_node", "2", "--log_dir"]
            command += ["inner" + os.environ["RANK"], "--log_level", "ERROR", "inner.py"]
            subprocess.run(command, check=True)
        """
        done = run_script(tmp_path, script, "--nproc_per_node", "3")
        assert done.code == 0, done.errors
        assert done.output == "inner 2\n"
        logs = [tmp_path / f"inner{n}" / f"workerlog.{m}" for n in range(3) for m in range(2)]
        assert [log.read_text() for log in logs] == ["inner 2\n"] * 6

    def test_ports_of_two_jobs_at_once_differ(self, tmp_path: Path) -> None:
        write_script(tmp_path, TELL + "    sys.stdin.read()\n")
        running = []
        try:
            for n in range(2):
                command = [*COMMAND, "--nproc_per_node", "2", "--log_dir", f"log{n}", "train.py"]
                running.append(
                    subprocess.Popen(
                        command,
                        cwd=tmp_path,
                        env=environment(),
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.DEVNULL,
                        text=True,
                    )
                )
            lines = [launch.stdout.readline() for launch in running if launch.stdout]
        finally:
            for launch in running:
                launch.communicate(timeout=DEADLOCK)
        environs = [told(line) for line in lines]
        taken = [
            endpoint
            for environ in environs
            for endpoint in (
                environ["PADDLE_MASTER"],
                *environ["PADDLE_TRAINER_ENDPOINTS"].split(","),
            )
        ]
        assert len(set(taken)) == len(taken) == 6


class TestDevices:
    """No device is needed: a mask says that there are some."""

    @pytest.mark.parametrize(
        ("mask", "flags", "indices"),
        [
            ("4,5", [], ["0", "1"]),
            ("4,5,6,7", ["--nproc_per_node", "2"], ["0", "1"]),
            ("4,5,6,7", ["--gpus", "5,7"], ["1", "3"]),
            ("4,5,6,7", ["--devices", "7"], ["3"]),
            ("GPU-8932f937-aaaa,GPU-aaaaaaaa-bbbb", ["--gpus", "GPU-aaaa"], ["1"]),
            ("2,1,-1,3", [], ["0", "1"]),
            ("7", ["--selected_gpus", "7"], ["0"]),
        ],
    )
    def test_cuda_mask(
        self, tmp_path: Path, mask: str, flags: list[str], indices: list[str]
    ) -> None:
        write_script(tmp_path, TELL)
        done = rankrun(tmp_path, *flags, "train.py", CUDA_VISIBLE_DEVICES=mask)
        assert done.code == 0, done.errors
        environs = [told(done.log(name)) for name in done.logs]
        assert [environ["FLAGS_selected_gpus"] for environ in environs] == indices
        assert {environ["CUDA_VISIBLE_DEVICES"] for environ in environs} == {mask}
        assert "PADDLE_DISTRI_BACKEND" not in environs[0]

    @pytest.mark.parametrize(
        ("mask", "flag", "variable"),
        [
            ("XPU_VISIBLE_DEVICES", "--xpus", "FLAGS_selected_xpus"),
            ("ASCEND_RT_VISIBLE_DEVICES", "--npus", "FLAGS_selected_npus"),
        ],
    )
    def test_other_masks(self, tmp_path: Path, mask: str, flag: str, variable: str) -> None:
        write_script(tmp_path, TELL)
        done = rankrun(tmp_path, flag, "3", "train.py", **{mask: "2,3"})
        assert told(done.output)[variable] == "1"

    @pytest.mark.parametrize("mask", ["", "-1"])
    def test_a_mask_that_shows_nothing(self, tmp_path: Path, mask: str) -> None:
        write_script(tmp_path, TELL)
        done = rankrun(tmp_path, "--nproc_per_node", "1", "train.py", CUDA_VISIBLE_DEVICES=mask)
        assert told(done.output)["PADDLE_DISTRI_BACKEND"] == "gloo"
        assert "CUDA_VISIBLE_DEVICES" in done.errors

    @pytest.mark.parametrize(
        ("flags", "words"),
        [
            (["--gpus", "9"], ["9", "CUDA_VISIBLE_DEVICES"]),
            (["--nproc_per_node", "3"], ["3", "2", "CUDA_VISIBLE_DEVICES"]),
            (["--gpus", "4", "--nproc_per_node", "2"], ["--gpus", "--nproc_per_node"]),
        ],
    )
    def test_what_is_not_there(self, tmp_path: Path, flags: list[str], words: list[str]) -> None:
        write_script(tmp_path, TELL)
        done = rankrun(tmp_path, *flags, "train.py", CUDA_VISIBLE_DEVICES="4,5")
        assert done.code == 2
        assert "Traceback" not in done.errors
        for word in words:
            assert word in done.errors
        assert not (tmp_path / "log").exists()

    def test_devices_where_there_are_none(self, tmp_path: Path) -> None:
        write_script(tmp_path, TELL)
        done = rankrun(tmp_path, "--devices", "0,1", "train.py", CUDA_VISIBLE_DEVICES="")
        assert done.code == 2
        assert "--devices 0,1" in done.errors


class TestOutput:
    SPEAK = """
        import os, sys
        rank = os.environ["RANK"]
        print("out", rank)
        print("err", rank, file=sys.stderr)
        os.system("echo child $RANK")
    """

    def test_rank_0_on_the_terminal_all_in_their_logs(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, self.SPEAK)
        assert done.output == "out 0\nerr 0\nchild 0\n"
        assert done.log("workerlog.0") == done.output
        assert done.log("workerlog.1") == "out 1\nerr 1\nchild 1\n"
        assert done.logs == ["workerlog.0", "workerlog.1"]

    def test_it_is_shown_while_it_is_printed(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('prompt> ', end=''); print('got ' + input())")
        launch = subprocess.Popen(
            [*COMMAND, "--nproc_per_node", "1", "train.py"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        with launch:
            assert launch.stdout is not None
            shown = os.read(launch.stdout.fileno(), 100)
            assert shown == b"prompt> ", "no line, and nobody would ever finish it"
            rest, _ = launch.communicate(b"it\n", timeout=DEADLOCK)
        assert rest == b"got it\n"

    def test_much_output(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, "import sys; sys.stdout.write('x' * 5_000_000 + 'end')")
        assert len(done.output) == 5_000_003
        assert done.output.endswith("end")

    def test_bytes_that_are_no_text(self, tmp_path: Path) -> None:
        write_script(tmp_path, r"import os; os.write(1, b'\xff\xfe\n'); raise SystemExit(3)")
        launch = subprocess.run(
            [*COMMAND, "--nproc_per_node", "1", "train.py"],
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            timeout=DEADLOCK,
            check=False,
        )
        assert (launch.returncode, launch.stdout) == (3, b"\xff\xfe\n")

    def test_the_reader_leaves(self, tmp_path: Path) -> None:
        write_script(
            tmp_path,
            """
            import sys
            print("first")
            sys.stdin.read()
            for _ in range(10000):
                print("more " * 10)
            raise SystemExit(7)
            """,
        )
        launch = subprocess.Popen(
            [*COMMAND, "--nproc_per_node", "1", "train.py"],
            cwd=tmp_path,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        with launch:
            assert launch.stdout is not None
            while b"first" not in launch.stdout.readline():
                pass
            launch.stdout.close()
            assert launch.stdin is not None
            launch.stdin.close()
            assert launch.wait(DEADLOCK) == 7
        assert len((tmp_path / "log" / "workerlog.0").read_bytes()) > 500_000

    def test_logs_go_on_by_default(self, tmp_path: Path) -> None:
        for word in ("one", "two"):
            done = run_script(tmp_path, f"print('{word}')")
            assert done.output == f"{word}\n"
        first, between, second = done.log("workerlog.1").splitlines()
        assert (first, second) == ("one", "two")
        assert between.startswith("==== ")

    def test_log_overwrite(self, tmp_path: Path) -> None:
        for word in ("one", "two"):
            done = run_script(tmp_path, f"print('{word}')", "--log_overwrite")
        assert (done.output, done.log("workerlog.1")) == ("two\n", "two\n")

    def test_log_dir(self, tmp_path: Path) -> None:
        run_script(tmp_path, "print('here')", "--log_dir", "deep/er")
        assert (tmp_path / "deep" / "er" / "workerlog.1").read_text() == "here\n"

    def test_a_log_dir_that_cannot_be_made(self, tmp_path: Path) -> None:
        (tmp_path / "log").write_text("a file")
        done = run_script(tmp_path, "print('here')")
        assert done.code == 2
        log_dir = f"--log_dir {tmp_path / 'log'}"
        assert done.errors.splitlines()[-1] == (
            f"rankrun: {log_dir} cannot be made a folder for the logs: File exists"
        )

    def test_no_secrets_in_the_log_folder(self, tmp_path: Path) -> None:
        done = run_script(
            tmp_path, "raise ValueError('x')", "--log_level", "DEBUG", API_TOKEN="hunter2"
        )
        assert "hunter2" not in done.errors
        for name in done.logs:
            assert "hunter2" not in done.log(name)

    def test_the_jobs_token_is_not_for_the_workers(self, tmp_path: Path) -> None:
        """Many scripts print their environment, and what records experiments keeps it."""
        token = "not for any log"
        done = run_script(
            tmp_path,
            "import os; print(os.environ)",
            RANKSPAWN_JOB_TOKEN=token,
            PADDLE_JOB_TOKEN=token,
        )
        assert "RANK" in done.log("workerlog.0")
        assert token not in done.log("workerlog.0")

    def test_summary(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, "pass", "--device_type", "cpu")
        lines = done.errors.splitlines()
        assert lines[-3].startswith("rankrun: 2 workers on ")
        assert [line.split()[::4] for line in lines[-2:]] == [
            ["rank", "finished"],
            ["rank", "finished"],
        ]

    def test_log_level(self, tmp_path: Path) -> None:
        quiet = run_script(tmp_path, "pass", "--log_level", "ERROR")
        assert quiet.errors == ""
        failed = run_script(tmp_path, "raise SystemExit(4)", "--log_level", "CRITICAL")
        assert "exit code 4" in failed.errors
        assert "2 workers on" not in failed.errors


class TestEnds:
    def test_success(self, tmp_path: Path) -> None:
        assert run_script(tmp_path, "raise SystemExit(0)").code == 0

    @pytest.mark.parametrize(
        ("how", "code", "words"),
        [
            ("sys.exit(7)", 7, "exit code 7"),
            ("os._exit(255)", 255, "exit code 255"),
            ("raise ValueError('oh no')", 1, "exit code 1"),
            ("os.kill(os.getpid(), signal.SIGKILL)", 137, "SIGKILL"),
            ("os.kill(os.getpid(), signal.SIGTERM)", 143, "SIGTERM"),
            ("os.abort()", 134, "SIGABRT"),
            ("os.kill(os.getpid(), signal.SIGRTMIN + 3)", 165, "SIG37"),
        ],
    )
    def test_exit_code_of_the_failure(
        self, tmp_path: Path, how: str, code: int, words: str
    ) -> None:
        done = run_script(
            tmp_path,
            f"""
            import os, signal, sys
            if os.environ["RANK"] == "1":
                {how}
            signal.pause()
            """,
        )
        assert done.code == code
        assert f"rank 1 on {os.uname().nodename}" in done.errors
        assert words in done.errors.split("rank 1 on")[1]
        assert "stopped (SIGTERM)" in done.errors

    def test_the_last_lines_are_the_root_cause(self, tmp_path: Path) -> None:
        run_script(tmp_path, "raise RuntimeError('of the last run')")
        done = run_script(
            tmp_path,
            """
            import os, signal
            def step():
                try:
                    {}["key"]
                except KeyError as error:
                    raise ValueError("oh no") from error
            if os.environ["RANK"] == "1":
                print("noise\\n" * 500)
                step()
            signal.pause()
            """,
        )
        head, _, tail = done.errors.partition("rankrun: rank 1 on ")
        assert str(tmp_path / "log" / "workerlog.1") in tail
        assert os.uname().nodename in tail
        assert "noise" not in tail
        lines = tail.splitlines()
        assert lines[2] == "Traceback (most recent call last):"
        assert "KeyError: 'key'" in lines
        assert lines[-1] == "ValueError: oh no"
        assert "of the last run" not in done.errors
        assert "2 workers on" in head, "the summary comes before it"

    def test_the_last_lines_without_a_traceback(self, tmp_path: Path) -> None:
        done = rankrun(
            tmp_path, "--nproc_per_node=2", "sh", "-c", "seq 100; echo the end; exit $((3 + RANK))"
        )
        assert done.code in (3, 4)
        lines = done.errors.splitlines()
        assert lines[-1] == "  | the end"
        assert "100" in lines[-2]
        assert "  | 1" not in lines

    def test_a_crash_in_c_code(self, tmp_path: Path) -> None:
        script = """
            import ctypes

            def read_nowhere():
                ctypes.string_at(0)

            read_nowhere()
        """
        done = run_script(tmp_path, script, "--nproc_per_node", "1")
        assert done.code == 128 + signal.SIGSEGV
        tail = done.errors.partition("failed after")[2]
        assert "Fatal Python error: Segmentation fault" in tail
        assert re.search(r'train.py", line \d+ in read_nowhere$', tail, re.MULTILINE)

        done = run_script(tmp_path, script, "--nproc_per_node", "1", PYTHONFAULTHANDLER="")
        assert "it printed nothing to " in done.errors

    def test_nothing_was_printed(self, tmp_path: Path) -> None:
        done = rankrun(tmp_path, "--nproc_per_node", "1", "false")
        assert done.code == 1
        assert done.errors.splitlines()[-1].startswith("it printed nothing to ")

    def test_the_failure_that_came_first(self, tmp_path: Path) -> None:
        done = run_script(
            tmp_path,
            """
            import os, sys
            first = os.path.abspath("first")
            if os.environ["RANK"] == "1":
                open("pid", "w").write(str(os.getpid()))
                os.rename("pid", first)
                sys.exit(5)
            while not os.path.exists(first):
                pass
            # Gone, and not only about to go.
            while os.path.exists(f"/proc/{open(first).read()}/fd/0"):
                pass
            import signal, time
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(6))
            while True:
                time.sleep(0.2)  # a signal just before pause() does not end that
            """,
        )
        assert done.code == 5

    @pytest.mark.parametrize(
        ("arguments", "code", "words"),
        [
            (["nothing.py"], 127, "there is no script nothing.py"),
            (["./nothing"], 127, "./nothing cannot be executed: there is no such file"),
            (["no-such-program"], 127, "it is not on PATH"),
            (["plain"], 127, "it is not on PATH; the file in the current folder is ./plain"),
            (["./plain"], 126, "chmod +x"),
            ([], 2, "the script is missing"),
            (["--nproc_per_nodes", "2", "train.py"], 2, "did you mean --nproc_per_node?"),
            (["--nnodes", "2", "--rank", "2", "./plain"], 2, "--rank 2 is out of range"),
            (["--devices", "4", "ipu", "train.py"], 2, "--hosts"),
        ],
    )
    def test_what_cannot_be_started(
        self, tmp_path: Path, arguments: list[str], code: int, words: str
    ) -> None:
        write_script(tmp_path, "echo plain\n", "plain")
        done = rankrun(tmp_path, *arguments)
        assert done.code == code
        assert done.errors.startswith("rankrun: ")
        assert words in done.errors
        assert "Traceback" not in done.errors

    def test_a_program_without_its_first_line(self, tmp_path: Path) -> None:
        write_script(tmp_path, "echo plain\n", "plain").chmod(0o755)
        done = rankrun(tmp_path, "--nproc_per_node", "2", "./plain")
        assert done.code == 126
        assert "Exec format error" in done.errors

    def test_help(self, tmp_path: Path) -> None:
        done = rankrun(tmp_path, "--help")
        assert done.code == 0
        assert "--nproc_per_node  (PADDLE_NPROC_PER_NODE)" in done.output

    def test_help_that_nobody_reads(self, tmp_path: Path) -> None:
        read, write = os.pipe()
        os.close(read)
        try:
            done = subprocess.run(
                [*COMMAND, "--help"],
                cwd=tmp_path,
                env=environment(),
                stdout=write,
                stderr=subprocess.PIPE,
                timeout=DEADLOCK,
                check=False,
            )
        finally:
            os.close(write)
        assert (done.returncode, done.stderr) == (0, b"")


class TestRestarts:
    COUNT = """
        import os, sys
        print("start", os.environ["TORCHELASTIC_RESTART_COUNT"])
        with open(f"starts.{os.environ['RANK']}", "a") as file:
            file.write(os.environ["TORCHELASTIC_RESTART_COUNT"])
            file.write(" " + os.environ["MASTER_PORT"] + "\\n")
    """

    def test_none_by_default(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, self.COUNT + "    sys.exit(3)\n", "--nproc_per_node", "1")
        assert done.code == 3
        assert done.output == "start 0\n"

    def test_the_nodes_workers_start_again(self, tmp_path: Path) -> None:
        # Nobody fails before both have counted.
        script = (
            self.COUNT
            + """
        import signal, time
        count = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        other = f"starts.{1 - int(os.environ['RANK'])}"
        while not os.path.exists(other) or len(open(other).readlines()) <= count:
            time.sleep(0.01)
        if count < 2:
            sys.exit(3) if os.environ["RANK"] == "1" else signal.pause()
        """
        )
        done = run_script(tmp_path, script, "--elastic_level", "1", "--max_restart", "5")
        assert done.code == 0, done.errors
        for rank in range(2):
            lines = (tmp_path / f"starts.{rank}").read_text().splitlines()
            assert [line.split()[0] for line in lines] == ["0", "1", "2"]
            assert len({line.split()[1] for line in lines}) == 3, "fresh ports each time"
        assert done.output == done.log("workerlog.0") == "start 0\nstart 1\nstart 2\n"
        assert "restart 1 of 5" in done.errors
        assert "started 3 times" in done.errors

    def test_not_for_ever(self, tmp_path: Path) -> None:
        script = self.COUNT + "    raise ValueError(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        done = run_script(
            tmp_path, script, "--nproc_per_node=1", "--elastic_level=1", "--max_restart=2"
        )
        assert done.code == 1
        assert done.output.count("start ") == 3
        lines = done.errors.splitlines()
        assert lines[-1] == "ValueError: 2"
        # The first restart is at once; how long the others wait is said.
        pauses = [line.partition("; ")[2] for line in lines if "next start" in line]
        assert pauses == ["the next start is in 0.5 s"]

    def test_not_before_the_first_line(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, "print('here'\n", "--elastic_level=1")
        assert done.code == 126
        assert "train.py cannot be run, so nothing is started" in done.errors
        assert done.errors.splitlines()[-1].startswith("SyntaxError: ")
        assert "restart" not in done.errors
        assert not (tmp_path / "log").exists()

    def test_not_before_the_first_line_of_a_module(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('here'\n")
        done = rankrun(tmp_path, "--nproc_per_node=1", "--elastic_level=1", "-m", "train")
        assert done.code == 126
        assert "train cannot be run, so nothing is started" in done.errors
        assert "restart" not in done.errors

    def test_the_last_start_is_told_of(self, tmp_path: Path) -> None:
        script = self.COUNT + "    sys.exit(7 + int(os.environ['TORCHELASTIC_RESTART_COUNT']))\n"
        done = run_script(
            tmp_path, script, "--nproc_per_node=1", "--elastic_level=1", "--max_restart=1"
        )
        assert done.code == 8

    def test_overwritten_logs_are_emptied_once(self, tmp_path: Path) -> None:
        script = self.COUNT + "    sys.exit(1)\n"
        flags = ["--nproc_per_node=1", "--elastic_level=1", "--max_restart=1", "--log_overwrite"]
        for _ in range(2):
            done = run_script(tmp_path, script, *flags)
        assert done.log("workerlog.0") == "start 0\nstart 1\n"

    def test_a_useless_flag_is_told_of(self, tmp_path: Path) -> None:
        done = run_script(tmp_path, "pass", "--max_restart", "2")
        assert "--max_restart has no effect" in done.errors


class TestParameterServers:
    SERVE = """
        import os, signal, sys
        role = os.environ["TRAINING_ROLE"]
        print(role)
        if role != "TRAINER":
            open(f"serving.{os.environ['PADDLE_PORT']}", "w").close()
            signal.pause()
        trainers = int(os.environ["PADDLE_TRAINERS_NUM"])
        servers = len(os.environ["PADDLE_PSERVERS_IP_PORT_LIST"].split(","))
        while len([name for name in os.listdir() if name.startswith("serving.")]) < servers:
            pass
    """

    def test_servers_end_with_the_trainers(self, tmp_path: Path) -> None:
        write_script(tmp_path, self.SERVE)
        done = rankrun(tmp_path, "--server_num", "2", "--trainer_num", "2", "train.py")
        assert done.code == 0, done.errors
        assert done.logs == ["serverlog.0", "serverlog.1", "workerlog.0", "workerlog.1"]
        assert done.log("serverlog.1") == "PSERVER\n"
        assert "TRAINER" in done.log("workerlog.1")
        assert "server 1" in done.errors
        assert "stopped (SIGTERM)" in done.errors

    def test_heter_workers_end_too(self, tmp_path: Path) -> None:
        write_script(tmp_path, self.SERVE)
        flags = ["--server_num=1", "--trainer_num=1", "--heter_worker_num=2"]
        done = rankrun(tmp_path, *flags, "train.py")
        assert done.code == 0, done.errors
        assert {"heterlog.0", "heterlog.1", "serverlog.0", "workerlog.0"} == set(done.logs)

    @pytest.mark.parametrize("role", ["PSERVER", "TRAINER"])
    def test_a_failure_of_either_ends_the_job(self, tmp_path: Path, role: str) -> None:
        write_script(
            tmp_path,
            f"""
            import os, signal, sys
            sys.exit(9) if os.environ["TRAINING_ROLE"] == {role!r} else signal.pause()
            """,
        )
        done = rankrun(tmp_path, "--server_num", "1", "--trainer_num", "1", "train.py")
        assert done.code == 9
        name = {"PSERVER": "server 0", "TRAINER": "rank 0"}[role]
        assert f"rankrun: {name} on " in done.errors

    def test_listed_endpoints(self, tmp_path: Path) -> None:
        from rankspawn.plan.ports import HeldPorts

        with closing(HeldPorts(2)) as held:
            server, trainer = (f"127.0.0.1:{port}" for port in held.ports)
        write_script(tmp_path, self.SERVE)
        done = rankrun(tmp_path, "--servers", server, "--trainers", trainer, "train.py")
        assert done.code == 0, done.errors
        assert (tmp_path / f"serving.{server.rpartition(':')[2]}").exists()

    def test_a_listed_port_that_is_in_use(self, tmp_path: Path) -> None:
        write_script(tmp_path, self.SERVE)
        with socket.create_server(("127.0.0.1", 0)) as other:
            server = f"127.0.0.1:{other.getsockname()[1]}"
            done = rankrun(tmp_path, "--servers", server, "--trainers", "127.0.0.1:1", "train.py")
        assert done.code != 0
        assert f"{server}, which" in done.errors
        assert "list another one in its place on every node" in done.errors


class TestIpu:
    FLAGS = (
        *("--devices", "4", "ipu", "--hosts", "a,b", "--nproc_per_host", "1"),
        *("--ipus_per_replica", "1", "--ipu_partition", "pod16", "--vipu_server", "10.1.1.1"),
    )

    def test_poprun_is_run(self, tmp_path: Path) -> None:
        stand_in = write_script(tmp_path, '#!/bin/sh\nprintf "%s\\n" "$@"\nexit 3\n', "poprun")
        stand_in.chmod(0o755)
        path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
        write_script(tmp_path, "pass")
        done = rankrun(tmp_path, *self.FLAGS, "train.py", "--lr", "0.1", PATH=path)
        assert done.code == 3
        lines = done.output.splitlines()
        assert lines[:2] == ["--num-instances=2", "--num-replicas=4"]
        assert lines[-4:] == ["-u", "train.py", "--lr", "0.1"]

    def test_without_it(self, tmp_path: Path) -> None:
        write_script(tmp_path, "pass")
        done = rankrun(tmp_path, *self.FLAGS, "train.py", PATH=str(tmp_path))
        assert done.code == 127
        assert "poprun is not on PATH" in done.errors


def test_signals_for_programs_are_passed_on(tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        import os, signal, sys, time
        signal.signal(signal.SIGUSR1, lambda *_: sys.exit(0))
        open(f"ready.{os.environ['RANK']}", "w").close()
        if os.environ["RANK"] == "0":
            while not os.path.exists("ready.1"):
                pass
            print("ready")
        while True:
            time.sleep(0.2)  # a signal just before pause() does not end that
        """,
    )
    launch = subprocess.Popen(
        [*COMMAND, "--nproc_per_node", "2", "train.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with launch:
        assert launch.stdout is not None
        assert launch.stdout.readline() == b"ready\n"
        launch.send_signal(signal.SIGUSR1)
        assert launch.wait(DEADLOCK) == 0


def test_the_console_command() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["scripts"]["rankrun"] == "rankspawn.launch.cli:main"


def test_imports_are_light(tmp_path: Path) -> None:
    """A start is mostly imports; what takes long is not among them."""
    if any(name.startswith("COVERAGE_PROCESS") for name in os.environ):
        pytest.skip("under the tracer, processes import what it needs")
    code = (
        "import sys; from rankspawn.launch.cli import main; main(sys.argv[1:]); "
        "print(' '.join(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "--nproc_per_node", "1", "--log_level=ERROR", "true"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=True,
    )
    heavy = {"argparse", "asyncio", "ctypes", "multiprocessing", "psutil", "cloudpickle", "ssl"}
    loaded = done.stdout.split()
    assert heavy.isdisjoint(loaded)
    # Nobody else is there to agree with.
    assert not [name for name in loaded if name.startswith("rankspawn.launch.rendezvous")]
    assert "typing" not in loaded
