"""Command lines of torchrun and of Paddle's launcher, run as they stand."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from rankspawn.launch.config import read_config
from rankspawn.launch.controllers import plan_programs, resolve_job
from rankspawn.launch.programs import Node
from tests.launch.factories import column, config_of, job_of, make_nodes
from tests.launch.members import running_job
from tests.launch.running import Done, rankrun, write_script
from tests.plan.conftest import FakeMachine
from tests.ports import free_port

TELLING = """
    import os, sys
    rank = os.environ["RANK"]
    print("out", rank, flush=True)
    print("err", rank, file=sys.stderr, flush=True)
"""


def shown(done: Done) -> tuple[list[str], list[str]]:
    """What the workers' streams show, each on the launcher's own."""
    errors = [line for line in done.errors.splitlines() if "err " in line]
    return sorted(done.output.splitlines()), sorted(errors)


@pytest.fixture
def telling(tmp_path: Path) -> Path:
    write_script(tmp_path, TELLING)
    return tmp_path


class TestOutput:
    def test_all_workers_each_stream_by_itself(self, telling: Path) -> None:
        done = rankrun(telling, "--standalone", "--nproc-per-node=2", "train.py")
        assert done.code == 0, done.errors
        assert shown(done) == (["out 0", "out 1"], ["err 0", "err 1"])

    def test_tee(self, telling: Path) -> None:
        done = rankrun(telling, "--nproc-per-node=2", "-t", "3", "--role", "bob", "train.py")
        assert shown(done) == (["[bob0]:out 0", "[bob1]:out 1"], ["[bob0]:err 0", "[bob1]:err 1"])

    def test_a_prefix_in_torchruns_words(
        self, telling: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        template = "<${role_name} ${rank}/${local_rank} {rank} ${other}> "
        monkeypatch.setenv("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", template)
        done = rankrun(telling, "--nproc-per-node=1", "--tee=1", "--role=bob", "train.py")
        assert shown(done) == (["<bob 0/0 {rank} ${other}> out 0"], ["err 0"])
        done = rankrun(telling, "--nproc-per-node=1", "--tee=1", "--prefix={rank}:", "train.py")
        assert shown(done) == (["0:out 0"], ["err 0"])

    def test_redirects(self, telling: Path) -> None:
        done = rankrun(telling, "--nproc-per-node=2", "-r", "0:1,1:3", "train.py")
        assert shown(done) == ([], ["err 0"])

    def test_some_ranks(self, telling: Path) -> None:
        done = rankrun(telling, "--nproc-per-node=3", "--local-ranks-filter=0,2", "train.py")
        assert shown(done) == (["out 0", "out 2"], ["err 0", "err 2"])

    def test_files_lie_as_torchrun_lays_them(self, telling: Path) -> None:
        done = rankrun(
            telling,
            *("--nproc-per-node=2", "--log-dir=out", "--rdzv-id=night", "--tee=3"),
            *("--duplicate-stdout-filters=out 1", "train.py"),
        )
        assert done.code == 0, done.errors
        (folder,) = (telling / "out").iterdir()
        assert folder.name.startswith("night_")
        texts = {
            str(path.relative_to(folder)): path.read_text()
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert texts == {
            "attempt_0/0/stdout.log": "out 0\n",
            "attempt_0/0/stderr.log": "err 0\n",
            "attempt_0/1/stdout.log": "out 1\n",
            "attempt_0/1/stderr.log": "err 1\n",
            "attempt_0/filtered_stdout.log": "[default1]:out 1\n",
        }

    def test_a_line_without_an_end_is_shown_with_one(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('no end', end='', flush=True)")
        done = rankrun(tmp_path, "--nproc-per-node=1", "--tee=1", "train.py")
        assert done.output == "[default0]:no end\n"


def test_restarts_and_where_the_traceback_is(tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        import os
        count = os.environ["TORCHELASTIC_RESTART_COUNT"]
        assert os.environ["TORCHELASTIC_MAX_RESTARTS"] == "1"
        raise SystemExit(f"failed {count}")
        """,
    )
    done = rankrun(tmp_path, "--max-restarts", "1", "--log-dir=out", "--redirects=3", "train.py")
    assert done.code == 1
    assert done.errors.rstrip().endswith("failed 1")
    assert "attempt_1/0/stderr.log" in done.errors
    assert sorted(path.name for path in (tmp_path / "out").glob("*/*")) == [
        "attempt_0",
        "attempt_1",
    ]


class TestScripts:
    def run(self, folder: Path, *line: str) -> Done:
        done = rankrun(folder, "--standalone", *line)
        assert done.code == 0, done.errors
        return done

    def test_without_a_suffix(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('python', __name__)", "train")
        assert self.run(tmp_path, "train").output == "python __main__\n"
        # Nothing else could be meant without a word of torchrun's, either.
        assert rankrun(tmp_path, "--nproc_per_node=1", "train").output == "python __main__\n"

    def test_what_can_be_executed(self, tmp_path: Path) -> None:
        write_script(tmp_path, "print('python')", "train").chmod(0o755)
        assert self.run(tmp_path, "./train").output == "python\n"
        write_script(tmp_path, "#!/bin/sh\necho shell\n", "shell").chmod(0o755)
        assert self.run(tmp_path, "./shell").output == "shell\n"

    def test_a_folder(self, tmp_path: Path) -> None:
        (tmp_path / "package").mkdir()
        write_script(tmp_path, "print('folder')", "package/__main__.py")
        assert self.run(tmp_path, "package").output == "folder\n"
        assert rankrun(tmp_path, "--nproc_per_node=1", "package").output == "folder\n"
        (tmp_path / "empty").mkdir()
        done = rankrun(tmp_path, "empty")
        assert (done.code, "no __main__.py in the folder empty" in done.errors) == (127, True)

    def test_no_python(self, tmp_path: Path) -> None:
        write_script(tmp_path, "#!/bin/sh\necho shell $1\n", "train.py").chmod(0o755)
        assert self.run(tmp_path, "--no-python", "./train.py", "x").output == "shell x\n"

    def test_run_path(self, tmp_path: Path) -> None:
        script = write_script(tmp_path, "import sys; print(sys.argv[1:], __name__)")
        assert self.run(tmp_path, "--run-path", str(script), "x").output == "['x'] __main__\n"


def test_the_port_that_was_asked_for(tmp_path: Path) -> None:
    write_script(tmp_path, "import os; print(os.environ['MASTER_PORT'])")
    port = str(free_port())
    done = rankrun(tmp_path, "--master-port", port, "train.py")
    assert (done.code, done.output) == (0, f"{port}\n"), done.errors
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = rankrun(tmp_path, "--master-port", str(taken.getsockname()[1]), "train.py")
    assert done.code == 126
    assert "is in use: stop its owner, or give another --master_port" in done.errors


def test_two_nodes_that_meet_as_torchrun_has_it(tmp_path: Path) -> None:
    write_script(
        tmp_path,
        """
        import os
        print(os.environ["RANK"], os.environ["TORCHELASTIC_RUN_ID"], flush=True)
        """,
    )
    meeting = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
    with running_job(tmp_path) as job:
        for _ in range(2):
            job.start(*meeting, "--rdzv-id=night", "--redirects=3", script=["train.py"])
        assert job.codes() == [0, 0]
    logs = [path.read_text() for path in tmp_path.rglob("stdout.log")]
    assert sorted(logs) == ["0 night\n", "1 night\n"]


class TestVariables:
    def test_each_worker_sees_its_own_device(self) -> None:
        environ = {"CUDA_VISIBLE_DEVICES": "4,5"}
        config = config_of("--virtual-local-rank --nproc-per-node 2")
        job = resolve_job(config, environ, FakeMachine(devices={"gpu": 8}))
        programs = plan_programs(
            config,
            job,
            [Node(0, "127.0.0.1", (1, 2))],
            0,
            master="",
            gloo_path="",
            run_id="run",
            restart_count=0,
        )
        assert column(programs, "LOCAL_RANK") == ["0", "0"]
        assert column(programs, "CUDA_VISIBLE_DEVICES") == ["4", "5"]

    def test_rpc(self) -> None:
        config = config_of("--run_mode rpc --nproc_per_node 2")
        programs = plan_programs(
            config,
            job_of(config),
            make_nodes((6001, 6002)),
            0,
            master="10.0.0.1:5999",
            gloo_path="",
            run_id="run",
            restart_count=0,
        )
        assert column(programs, "PADDLE_MASTER_ENDPOINT") == ["10.0.0.1:5999"] * 2
        assert column(programs, "PADDLE_WORKER_ENDPOINT") == ["10.0.0.1:6001", "10.0.0.1:6002"]


def test_ports_of_a_listed_machine(tmp_path: Path) -> None:
    """``--ips 127.0.0.1 --start_port N``, as Paddle's launcher has it."""
    write_script(tmp_path, "import os; print(os.environ['PADDLE_TRAINER_ENDPOINTS'])")
    first = free_port(span=3)
    line = ["--ips", "127.0.0.1", "--start_port", str(first), "--nproc_per_node", "2", "train.py"]
    done = rankrun(tmp_path, *line)
    assert done.output == f"127.0.0.1:{first},127.0.0.1:{first + 1}\n", done.errors


def test_flags_of_the_script_are_its_own() -> None:
    line = ["--standalone", "train.py", "--tee", "x", "-m", "--nnode"]
    assert read_config(line, dict(os.environ)).script_args == ("--tee", "x", "-m", "--nnode")


def test_workers_are_bound_to_cpus(tmp_path: Path) -> None:
    write_script(tmp_path, "import os; print(sorted(os.sched_getaffinity(0)))")
    own = os.sched_getaffinity(0)
    done = rankrun(tmp_path, "--numa-binding=exclusive", "--nproc-per-node=1", "train.py")
    assert (done.code, done.output) == (0, f"{sorted(own)}\n"), done.errors
    count = str(len(own) + 1)
    done = rankrun(tmp_path, "--numa-binding=exclusive", "--nproc-per-node", count, "train.py")
    assert done.code == 2
    assert "--numa_binding exclusive: " in done.errors
    if len(own) > 1:
        line = ["--numa-binding=exclusive", "--nproc-per-node=2", "train.py"]
        first, second = rankrun(tmp_path, *line).output.splitlines()
        assert set(first.strip("[]").split(", ")).isdisjoint(second.strip("[]").split(", "))
