"""Every flag that ``torchrun --help`` and Paddle's launcher show: run by both, or named.

The launchers are black boxes here. A flag that a new version adds is in no table, and fails.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from rankspawn.launch.command_line import all_flags
from rankspawn.launch.config import read_config
from rankspawn.launch.flags import PADDLE, TORCHRUN
from tests.interop.launchers import BASE, DEADLOCK, WORKER, Environment, compare, run, run_with
from tests.interop.test_launch_variables import LOCALHOST, PADDLE_COLLECTIVE, TORCH
from tests.launch.running import ROOT
from tests.ports import free_port

pytestmark = pytest.mark.interop

needs_paddle = pytest.mark.skipif(find_spec("paddle") is None, reason="paddlepaddle is missing")
needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="torch is missing")

TORCHRUN_COMMAND = (sys.executable, "-m", "torch.distributed.run")
PADDLE_COMMAND = (sys.executable, "-m", "paddle.distributed.launch")
OURS = (sys.executable, "-m", "rankspawn.launch")
PAGE = (ROOT / "docs" / "launch.md").read_text()

# So that both find the package wherever the tests run.
ENVIRON = {**BASE, "PYTHONPATH": f"{ROOT / 'src'}", "OMP_NUM_THREADS": "1"}

SCRIPT = """
import json, os, sys
names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "ROLE_RANK")
names += ("ROLE_NAME", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_RESTART_COUNT")
told = json.dumps([*(os.environ[name] for name in names), __name__, *sys.argv[1:]])
# Each line at once: under torchrun they may be mixed on the terminal.
os.write(1, f"{told}\\n".encode())
os.write(2, f"to the standard error {os.environ['RANK']}\\n".encode())
"""

# For each flag of torchrun a command line that both launchers run, with the same output.
TORCHRUNS: dict[str, str] = {
    "--nnodes": "--standalone --nnodes=1:1 train.py",
    "--nproc-per-node": "--standalone --nproc-per-node=2 train.py --lr 0.1",
    "--rdzv-backend": "--rdzv-backend=c10d --nproc_per_node=2 train.py",
    "--rdzv-endpoint": "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 train.py",
    "--rdzv-id": "--rdzv-backend=c10d --rdzv-endpoint=localhost:0 --rdzv-id=7 train.py",
    "--rdzv-conf": "--rdzv-conf=join_timeout=60,timeout=60 train.py",
    "--standalone": "--standalone --nproc_per_node=auto train.py",
    "--max-restarts": "--max-restarts=2 train.py",
    "--monitor-interval": "--monitor-interval=0.1 train.py",
    "--start-method": "--start-method=fork train.py",
    "--event-log-handler": "--event-log-handler=null train.py",
    "--role": "--role=bob train.py",
    "-m": "--standalone -m train x",
    "--module": "--module --standalone train",
    "--no-python": f"--no-python {sys.executable} train.py",
    "--run-path": "--run-path {folder}/train.py x",
    "--log-dir": "--log-dir=out --tee=3 --nproc-per-node=2 train.py",
    "-r": "-r 0:1,1:2 --nproc-per-node=2 train.py",
    "--redirects": "--redirects=3 train.py",
    "-t": "-t3 --nproc-per-node=2 train.py",
    "--tee": "--tee=0:3 --redirects=1:3 --nproc-per-node=2 train.py",
    "--local-ranks-filter": "--local-ranks-filter=1 --nproc-per-node=2 train.py",
    "--duplicate-stdout-filters": "--tee=3 --duplicate-stdout-filters=a,b train.py",
    "--duplicate-stderr-filters": "--tee=3 --duplicate-stderr-filters=a train.py",
    "--node-rank": "--node-rank=0 --nproc-per-node=2 train.py",
    "--master-addr": "--master-addr=127.0.0.1 --master-port={port} train.py",
    "--master-port": "--master-port={port} --nproc-per-node=2 train.py",
    "--local-addr": "--local-addr=127.0.0.1 train.py",
    "--logs-specs": "--logs-specs=default train.py",
    "--signals-to-handle": "--signals-to-handle=SIGTERM,SIGUSR1 train.py",
    "--shutdown-timeout": "--shutdown-timeout=3 train.py",
    "--virtual-local-rank": "--virtual-local-rank --nproc-per-node=2 train.py",
}
# Those that cannot be run by both, and why.
NAMED = {
    "-h": "shows the flags",
    "--help": "the same",
    "--numa-binding": "torchrun needs CUDA for it; what it does here is in tests/plan/test_numa.py",
}
# No flags, but ways to write a script, and what stands in variables.
OTHER_LINES = {
    "a port of its own choice": "--nnodes=1:2 --max-restarts=3 --rdzv-backend=c10d "
    "--rdzv-endpoint=localhost:0 --rdzv-conf=last_call_timeout=1 train.py",
    "a script without a suffix": "--standalone train",
    "a folder": "--standalone package",
    "a short form of a flag": "--standalone --max_restart=2 train.py",
}


def told_by(command: Sequence[str]) -> str:
    line = [*command, "--help"]
    return subprocess.run(
        line, env=ENVIRON, capture_output=True, text=True, timeout=DEADLOCK, check=True
    ).stdout


def flags_in(text: str) -> set[str]:
    """The flags of a help that argparse has written, each in one of its spellings."""
    lines = re.findall(r"^  (-.*?)(?:  |$)", text, re.MULTILINE)
    found = {word for line in lines for word in re.findall(r"(?<![\w-])--?[a-zA-Z][\w-]*", line)}
    return {
        flag
        for flag in found
        if flag.replace("_", "-") == flag or flag.replace("_", "-") not in found
    }


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("train.py", "train", "package/__main__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(SCRIPT)
    return tmp_path


def shown(
    command: Sequence[str], folder: Path, environ: Environment | None = None
) -> tuple[list[str], list[str]]:
    """What a launcher shows of its workers, in order of lines: standard output, and error."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**ENVIRON, "TMPDIR": str(folder), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    errors = [line for line in done.stderr.splitlines() if "to the standard error" in line]
    return sorted(done.stdout.splitlines()), sorted(errors)


@needs_torch
def test_every_flag_of_torchrun_is_run_or_named() -> None:
    flags = flags_in(told_by(TORCHRUN_COMMAND))
    assert flags == TORCHRUNS.keys() | NAMED.keys()
    # The table of the page has each of them, with its variable and what it does.
    known = {flag.name: flag for flag in all_flags() if TORCHRUN in flag.of}
    for flag in flags - {"-h", "--help", "-m", "-r", "-t"}:
        own = known[flag[2:].replace("-", "_")]
        assert f"| `{own.written}` | `{own.variable}` |" in PAGE


@needs_torch
@pytest.mark.parametrize("what", [*TORCHRUNS, *OTHER_LINES])
def test_both_do_the_same(what: str, folder: Path) -> None:
    line = {**TORCHRUNS, **OTHER_LINES}[what].format(folder=folder, port=free_port()).split()
    assert shown([*OURS, *line], folder) == shown([*TORCHRUN_COMMAND, *line], folder)


@needs_torch
def test_variables_count_as_torchruns_do(folder: Path) -> None:
    environ = {"PET_NPROC_PER_NODE": "2", "PET_MAX_RESTARTS": "2", "PET_ROLE": "x", "PET_TEE": "3"}
    environ["TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"] = "<${role_name}/${local_rank}$$ ${other}> "
    line = ["--role", "y", "train.py"]
    theirs = shown([*TORCHRUN_COMMAND, *line], folder, environ)
    assert shown([*OURS, *line], folder, environ) == theirs
    assert len(theirs[0]) == 2


@needs_torch
def test_logs_lie_where_torchrun_lays_them(folder: Path) -> None:
    line = "--log-dir={} --redirects=0:1 --tee=1:3 --nproc-per-node=2 train.py"
    trees = []
    for launcher, name in ((OURS, "ours"), (TORCHRUN_COMMAND, "theirs")):
        shown([*launcher, *line.format(name).split()], folder)
        (run_folder,) = (folder / name).iterdir()
        files = [path for path in run_folder.rglob("*") if path.is_file()]
        trees.append({str(path.relative_to(run_folder)): path.read_text() for path in files})
    ours, theirs = trees
    assert theirs.items() <= ours.items()
    # What is not redirected is in a file here as well: it is read from there.
    assert ours.keys() - theirs.keys() == {"attempt_0/0/stderr.log"}


# --- the environment of ranks -----------------------------------------------------------

MORE = {
    "PYTHONBREAKPOINT": "a breakpoint without a terminal says what to do",
    "PYTHONFAULTHANDLER": "a rank that crashes in C code prints its Python stacks",
    "PYTHONUNBUFFERED": "output is in the logs at once, also that of a worker's own Pythons",
    "RANKSPAWN_JOB": "by which what a rank leaves running is found",
    "RANKSPAWN_MEETING": "where ranks find the memory that they share",
    "RANKSPAWN_STEPS": "where rankspawn.report writes how far a rank is",
}
RUN_ID = {"TORCHELASTIC_RUN_ID": "drawn by chance, if --rdzv-id gives none"}


def test_every_difference_of_the_environment_is_on_the_page() -> None:
    table = PAGE[PAGE.index("where both launchers differ:") :]
    families = ("PADDLE_", "FLAGS_selected_", "RANKSPAWN_")
    for name in {**TORCH, **MORE, **LOCALHOST, **RUN_ID}:
        family = next((f"{each}*" for each in families if name.startswith(each)), name)
        assert f"`{family}`" in table, name


@needs_torch
@pytest.mark.parametrize(
    ("line", "count", "expected"),
    [
        ("--standalone --nproc-per-node 2", 2, {**LOCALHOST, **RUN_ID}),
        (
            "--nproc-per-node 2 --rdzv-backend c10d --rdzv-endpoint localhost:0 --rdzv-id night "
            "--role bob --max-restarts 2",
            2,
            LOCALHOST,
        ),
        ("--master-addr 127.0.0.1 --master-port {port}", 1, {**RUN_ID, "MASTER_PORT": ""}),
    ],
    ids=["standalone", "c10d", "static"],
)
def test_environment(line: str, count: int, expected: dict[str, str], tmp_path: Path) -> None:
    """Variable by variable, of real ranks of both launchers, by the same command line."""
    words = [*line.format(port=free_port()).split(), "--log-dir", str(tmp_path / "log"), WORKER]
    theirs = run([(*TORCHRUN_COMMAND, *words)], count, tmp_path, ENVIRON)
    ours = run([(*OURS, *words)], count, tmp_path, ENVIRON)
    for workers in (ours, theirs):
        workers.sort(key=lambda worker: worker["RANK"])
    same = [name for name, reason in expected.items() if not reason]
    differences = {**TORCH, **MORE, **expected}
    for name in ("OMP_NUM_THREADS", *same):
        del differences[name]
    compare(ours, theirs, differences)


# --- Paddle -----------------------------------------------------------------------------

# Those that are not read by every launch, with a text that each can have.
PADDLES: dict[str, str] = {
    "--master": "127.0.0.1:1",
    "--legacy": "false",
    "--rank": "0",
    "--log_level": "INFO",
    "--log_overwrite": "true",
    "--sort_ip": "true",
    "--enable_gpu_log": "false",
    "--nnodes": "1",
    "--nproc_per_node": "1",
    "--log_dir": "logs",
    "--run_mode": "collective",
    "--job_id": "night",
    "--devices": "0",
    "--gpus": "0",
    "--npus": "0",
    "--xpus": "0",
    "--host": "127.0.0.1",
    "--ips": "127.0.0.1",
    "--start_port": "7000",
    "--auto_parallel_config": "x.json",
    "--auto_cluster_config": "true",
    "--auto_tuner_json": "x.json",
    "--servers": "127.0.0.1:7001",
    "--trainers": "127.0.0.1:7002",
    "--trainer_num": "1",
    "--server_num": "1",
    "--gloo_port": "7003",
    "--with_gloo": "1",
    "--max_restart": "3",
    "--elastic_level": "-1",
    "--elastic_timeout": "30",
}


@needs_paddle
def test_every_flag_of_paddles_launcher_is_read() -> None:
    flags = flags_in(told_by(PADDLE_COMMAND)) - {"-h", "--help"}
    assert flags == PADDLES.keys()
    known = {flag.name: flag for flag in all_flags() if PADDLE in flag.of}
    for flag in flags:
        own = known[flag[2:]]
        in_table = f"| `{own.written}` | `{own.variable}` |" in PAGE
        assert in_table or (own.deprecated and f"`{own.written}`" in PAGE), flag
        read_config([flag, PADDLES[flag], "train.py"], {})


def of_paddle(
    line: Sequence[str], count: int, folder: Path, environ: Environment | None = None
) -> tuple[list[Environment], list[Environment]]:
    """What the ranks of both launchers find, by the same command line."""
    both = []
    for launcher in (OURS, PADDLE_COMMAND):
        workers = run([(*launcher, *line, WORKER)], count, folder, {**ENVIRON, **(environ or {})})
        both.append(sorted(workers, key=lambda worker: worker["PADDLE_TRAINER_ID"]))
    return both[0], both[1]


@needs_paddle
def test_ports_of_a_listed_machine(tmp_path: Path) -> None:
    line = ["--ips=127.0.0.1", f"--start_port={free_port(span=4)}", "--nproc_per_node=2"]
    ours, theirs = of_paddle(line, 2, tmp_path)
    expected = {
        **PADDLE_COLLECTIVE,
        **MORE,
        "POD_NAME": "drawn by chance",
        "PADDLE_MASTER": "a port of its own; Paddle's is that of rank 0, which listens there, too",
    }
    del expected["OMP_NUM_THREADS"]
    compare(ours, theirs, expected)


@needs_paddle
def test_rpc(tmp_path: Path) -> None:
    line = ["--run_mode=rpc", f"--master=127.0.0.1:{free_port()}", "--nproc_per_node=2"]
    ours, theirs = of_paddle(line, 2, tmp_path)
    names = {name for worker in theirs for name in worker if name.startswith(("PADDLE_", "POD_"))}
    assert names - ours[0].keys() == {"PADDLE_BACKUP_ENV_PATH"}
    for name in ("PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"):
        assert [worker[name] for worker in ours] == [worker[name] for worker in theirs]
    for workers in (ours, theirs):
        assert len({worker["PADDLE_MASTER_ENDPOINT"] for worker in workers}) == 1
        assert len({worker["PADDLE_WORKER_ENDPOINT"] for worker in workers}) == 2


@needs_paddle
def test_the_variable_wins_there_and_the_flag_here(tmp_path: Path) -> None:
    environ = {**ENVIRON, "PADDLE_NPROC_PER_NODE": "2"}
    line = ["--nproc_per_node=1", WORKER]
    assert len(run([(*PADDLE_COMMAND, *line)], 2, tmp_path, environ)) == 2
    assert len(run([(*OURS, *line)], 1, tmp_path, environ)) == 1


@needs_paddle
@pytest.mark.parametrize("line", ["--nnode=1", "--nproc=2", "--log_over=true", "--job=x"])
def test_beginnings_of_flags(line: str, tmp_path: Path) -> None:
    count = 2 if "nproc" in line else 1
    ours, theirs = of_paddle(
        [line, *(["--nproc_per_node=1"] if count == 1 else [])], count, tmp_path
    )
    assert len(ours) == len(theirs) == count


@needs_paddle
def test_the_rank_of_a_node_in_a_clouds_variable(tmp_path: Path) -> None:
    """The second node comes first, and is the second all the same."""
    line = ["--nnodes=2", "--nproc_per_node=1"]
    for launcher in (OURS, PADDLE_COMMAND):
        command = [*launcher, f"--master=127.0.0.1:{free_port()}", *line, WORKER]
        token = {"RANKSPAWN_JOB_TOKEN": "a token of the tests"}
        environs = [{**ENVIRON, **token, "PADDLE_TRAINER_ID": rank, "NODE": rank} for rank in "10"]
        workers = run_with([(command, environ) for environ in environs], 2, tmp_path)
        assert all(worker["NODE"] == worker["PADDLE_TRAINER_ID"] for worker in workers)
