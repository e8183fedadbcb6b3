"""The same faults under rankspawn, torch and Paddle: what the caller sees, and what is left.

Each case runs as a program of its own, in the interpreter that has the peer, and is given up
after a time limit. Prints a Markdown table.

    python benchmarks/faults_of_peers.py --torch-python PATH --paddle-python PATH
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT_SECONDS = 60.0
SOURCE = Path(__file__).resolve().parent.parent / "src"

# Every worker carries MARK in its environment, and so does whatever it starts.
PROGRAM = """
import os, signal, subprocess, sys, time
{imports}

CASE = sys.argv[1]

def rank():
    return int(os.environ.get("PADDLE_TRAINER_ID", os.environ.get("RANK", "0")))

def work(*index):
    which = index[0] if index else rank()
    if CASE == "result":
        return b"x" * 70_000
    if CASE == "stubborn" and which == 1:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print("ready", flush=True)
        time.sleep(1000)
    if CASE == "children":
        subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL)
    if CASE in ("parent", "nohup"):
        print("ready", flush=True)
        time.sleep(1000)
    if which == 0:
        if CASE == "vanish":
            os._exit(0)
        if CASE == "interrupt":
            raise KeyboardInterrupt
        time.sleep(1)
        raise ValueError("on purpose")
    time.sleep(2 if CASE in ("vanish", "interrupt") else 1000)

if __name__ == "__main__":
    # Not what the shell that runs this benchmark in the background left behind.
    signal.signal(signal.SIGINT, signal.SIG_IGN if CASE == "nohup" else signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_IGN if CASE == "nohup" else signal.SIG_DFL)
    {call}
    print("success", flush=True)
"""
PEERS = {
    "rankspawn": ("import rankspawn", 'rankspawn.spawn(work, nprocs=2, backend="gloo")'),
    "torch": ("import torch.multiprocessing as mp", "mp.spawn(work, nprocs=2)"),
    "paddle": ("import paddle.distributed as dist", 'dist.spawn(work, nprocs=2, backend="gloo")'),
}
CASES = {
    "result": "a result of 70 kB",
    "vanish": "rank 0 vanishes with `os._exit(0)`",
    "interrupt": "rank 0 raises KeyboardInterrupt",
    "stubborn": "rank 0 fails, rank 1 ignores SIGTERM",
    "children": "rank 0 fails, ranks have children",
    "parent": "the parent is killed with SIGKILL",
    "nohup": "the same under nohup",
}


def try_case(peer: str, python: str, case: str) -> str:
    """Run one case; say how it ended, after how long, and how many processes were left."""
    imports, call = PEERS[peer]
    mark = f"RANKSPAWN_TRIAL={os.getpid()}-{peer}-{case}"
    name, _, value = mark.partition("=")
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "program.py")
        program.write_text(PROGRAM.format(imports=imports, call=call))
        environ = {**os.environ, name: value, "PYTHONPATH": str(SOURCE)}
        with subprocess.Popen(
            [python, str(program), case],
            env=environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        ) as parent:
            story = _watch(parent, case)
            left = _left(mark)
            for pid in left:
                os.kill(pid, signal.SIGKILL)
    return story + (f", {len(left)} processes left" if left else ", nothing left")


def _watch(parent: subprocess.Popen[str], case: str) -> str:
    assert parent.stdout is not None
    begun = time.monotonic()
    if case in ("parent", "nohup"):
        ready = [parent.stdout.readline() for _ in range(2)]
        parent.kill()
        parent.wait()
        time.sleep(15.0)  # rankspawn's grace period is 10 s; torch's workers get a signal
        return "15 s later" if len(ready) == 2 else "did not start"
    try:
        code = parent.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        parent.kill()
        return f"hangs (given up after {LIMIT_SECONDS:.0f} s)"
    seconds = time.monotonic() - begun
    return f"{'success' if code == 0 else 'error'} after {seconds:.1f} s"


def _left(mark: str) -> list[int]:
    """Processes of the trial that still run; multiprocessing's helpers get time to go."""
    deadline = time.monotonic() + 3.0
    while (left := _marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return left


def _marked(mark: str) -> list[int]:
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                environ = Path("/proc", name, "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if mark.encode() in environ:
                found.append(int(name))
    return found


def main() -> None:
    """Try every case with every peer that there is an interpreter for."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--torch-python")
    parser.add_argument("--paddle-python")
    parser.add_argument("--case", choices=CASES, action="append")
    options = parser.parse_args()
    pythons = {"rankspawn": sys.executable}
    for peer in ("torch", "paddle"):
        if python := getattr(options, f"{peer}_python"):
            pythons[peer] = python
    print(f"| what happens | {' | '.join(pythons)} |")
    print("|---|" + "---|" * len(pythons))
    for case in options.case or CASES:
        words = CASES[case]
        stories = [try_case(peer, python, case) for peer, python in pythons.items()]
        print(f"| {words} | {' | '.join(stories)} |", flush=True)


if __name__ == "__main__":
    main()
