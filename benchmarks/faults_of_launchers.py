"""The same faults on two nodes under rankrun, torchrun and Paddle's launcher: what each node does.

The nodes are launchers on this machine, over loopback, with one worker each that waits. From the
trouble on they are watched for three quarters of a minute. Prints a Markdown table.

    python benchmarks/faults_of_launchers.py --torch-python PATH --paddle-python PATH
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

START_SECONDS = 120.0
# A job of fixed size under rankrun waits 30 s for a silent node.
WATCH_SECONDS = 45.0
SOURCE = Path(__file__).resolve().parent.parent / "src"
# Says that it runs, fails when it is told to, and takes 3 s to save when it is asked to end.
SCRIPT = """
import os, signal, sys, time
rank = os.environ["RANK"] if "RANK" in os.environ else os.environ["PADDLE_TRAINER_ID"]

def save(*_):
    time.sleep(3)
    open(f"saved.{rank}", "w").close()
    sys.exit(0)

signal.signal(signal.SIGTERM, save)
open(f"up.{rank}", "w").close()
while not os.path.exists(f"fail.{rank}"):
    time.sleep(0.05)
raise ValueError("on purpose")
"""
LAUNCHERS = {
    "rankrun": ("rankspawn.launch", "--nnodes 2 --master {master} --rank {rank}"),
    "torch": (
        "torch.distributed.run",
        "--nnodes 2 --node-rank {rank} --rdzv-backend c10d --rdzv-endpoint {master}",
    ),
    "paddle": ("paddle.distributed.launch", "--nnodes 2 --master {master} --rank {rank}"),
}
CASES = {
    "fails": "a worker of node 1 fails",
    "killed": "the launcher of node 1 is killed with SIGKILL",
    "ended": "both launchers get SIGTERM, 0.5 s apart; workers save for 3 s",
}


def try_case(launcher: str, python: str, case: str) -> str:
    """Run one case; say what became of each node."""
    mark = f"RANKSPAWN_TRIAL={os.getpid()}-{launcher}-{case}"
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        nodes = _start(launcher, python, Path(folder), mark)
        try:
            if not _wait_for(folder, ("up.0", "up.1")):
                return "did not start"
            return _story(nodes, Path(folder), case)
        finally:
            # Theirs, and what they left.
            while left := _marked(mark):
                for pid in left:
                    os.kill(pid, signal.SIGKILL)
                for node in nodes:
                    node.poll()
                time.sleep(0.1)


def _start(launcher: str, python: str, folder: Path, mark: str) -> list[subprocess.Popen[bytes]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        master = f"127.0.0.1:{server.getsockname()[1]}"
    (folder / "train.py").write_text(SCRIPT)
    module, flags = LAUNCHERS[launcher]
    name, _, value = mark.partition("=")
    environ = {**os.environ, name: value, "PYTHONPATH": str(SOURCE), "RANKSPAWN_JOB_TOKEN": mark}
    environ |= {"CUDA_VISIBLE_DEVICES": ""}
    return [
        subprocess.Popen(
            [
                *(python, "-m", module, *flags.format(master=master, rank=rank).split()),
                *("--nproc_per_node", "1", "--log_dir", f"log{rank}", "train.py"),
            ],
            cwd=folder,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for rank in range(2)
    ]


def _wait_for(folder: str, names: tuple[str, ...]) -> bool:
    deadline = time.monotonic() + START_SECONDS
    while not all(Path(folder, name).exists() for name in names):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _story(nodes: list[subprocess.Popen[bytes]], folder: Path, case: str) -> str:
    begun = time.monotonic()
    if case == "fails":
        (folder / "fail.1").touch()
    elif case == "killed":
        nodes[1].kill()
    else:
        nodes[0].terminate()
        time.sleep(0.5)
        nodes[1].terminate()
    ends: dict[int, str] = {}
    while len(ends) < len(nodes) and time.monotonic() < begun + WATCH_SECONDS:
        for rank, node in enumerate(nodes):
            if rank not in ends and node.poll() is not None:
                ends[rank] = f"exits with {node.returncode} after {time.monotonic() - begun:.1f} s"
        time.sleep(0.05)
    watched = range(1) if case == "killed" else range(2)
    told = [f"node {rank} {ends.get(rank, 'runs on')}" for rank in watched]
    if case == "ended":
        told.append(f"{len(list(folder.glob('saved.*')))} of 2 saved")
    return ", ".join(told)


def _marked(mark: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                environ = Path("/proc", name, "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in environ:
                found.append(int(name))
    return found


def main() -> None:
    """Try every case with every launcher that there is an interpreter for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python")
    parser.add_argument("--paddle-python")
    parser.add_argument("--case", choices=CASES, action="append")
    options = parser.parse_args()
    pythons = {"rankrun": sys.executable}
    for peer in ("torch", "paddle"):
        if python := getattr(options, f"{peer}_python"):
            pythons[peer] = python
    print(f"| what happens | {' | '.join(pythons)} |")
    print("|---|" + "---|" * len(pythons))
    for case in options.case or CASES:
        stories = [try_case(launcher, python, case) for launcher, python in pythons.items()]
        print(f"| {CASES[case]} | {' | '.join(stories)} |", flush=True)


if __name__ == "__main__":
    main()
