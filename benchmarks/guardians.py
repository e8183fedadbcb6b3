"""What a process that outlives its parent costs at the start of a group, by kind.

    python benchmarks/guardians.py [--rounds 40]

Every kind is started once per round, in turn, and ended again. Printed are medians: milliseconds
for which the parent is held up, until the process watches, of processor time in all, and the
memory that it has for itself. ``fork`` is measured with a small parent and with one of 1 GiB.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PR_SET_CHILD_SUBREAPER = 36
MINIMAL = "import os, select, time, _signal; os.write(1, b'x'); os.read(0, 1)"
WITH_SIGNAL = "import os, select, time, signal; os.write(1, b'x'); os.read(0, 1)"
SHELL = 'trap "" HUP INT TERM QUIT; echo x; read -r _; exec "$@"'
# Starts a process that reads from the first descriptor and writes to the second; returns its id.
Start = Callable[[int, int], int]


def main() -> None:
    """Measure and print one line for each kind."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    rounds = parser.parse_args().rounds
    python = [sys.executable, "-I", "-S"]
    kinds: dict[str, Start] = {
        "/bin/sh": _executed(["/bin/sh", "-c", SHELL]),
        "python -I -S": _executed([*python, "-c", MINIMAL]),
        "the same, frozen_modules": _executed([*python, "-X", "frozen_modules=on", "-c", MINIMAL]),
        "the same, with signal": _executed([*python, "-c", WITH_SIGNAL]),
        "python -I": _executed([sys.executable, "-I", "-c", MINIMAL]),
        "fork": _forked,
    }
    results = _measure(kinds, rounds)
    with _large_parent():
        results |= _measure(
            {"fork, parent of 1 GiB": _forked, "/bin/sh, likewise": kinds["/bin/sh"]}, rounds
        )
    print(f"{'kind':28} {'held up':>8} {'watches':>8} {'cpu':>8} {'KiB':>7}")
    for kind, values in results.items():
        held, watches, cpu, memory = map(statistics.median, zip(*values, strict=True))
        print(f"{kind:28} {held:8.2f} {watches:8.2f} {cpu:8.2f} {memory:7.0f}")
    print(f"PR_SET_CHILD_SUBREAPER: {_subreaper()}")
    print(f"a cgroup v2 of one's own: {_own_cgroup()}")


def _measure(kinds: dict[str, Start], rounds: int) -> dict[str, list[tuple[float, ...]]]:
    results: dict[str, list[tuple[float, ...]]] = {kind: [] for kind in kinds}
    for _ in range(rounds):
        for kind, start in kinds.items():
            results[kind].append(_measure_one(start))
    return results


def _measure_one(start: Start) -> tuple[float, ...]:
    lifeline, ours = os.pipe()
    ready, theirs = os.pipe()
    cpu = _processor_time()
    began = time.perf_counter()
    pid = start(lifeline, theirs)
    held = time.perf_counter() - began
    os.close(theirs)
    os.read(ready, 1)
    watches = time.perf_counter() - began
    memory = _private_memory(pid)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for fd in (lifeline, ours, ready):
        os.close(fd)
    return held * 1000, watches * 1000, (_processor_time() - cpu) * 1000, memory


def _executed(command: list[str]) -> Start:
    def start(lifeline: int, ready: int) -> int:
        process = subprocess.Popen(
            command, stdin=lifeline, stdout=ready, stderr=subprocess.DEVNULL, cwd="/", env={},
            start_new_session=True,
        )  # fmt: skip
        process.returncode = 0  # reaped by its id
        return process.pid

    return start


def _forked(lifeline: int, ready: int) -> int:
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(lifeline, 0)
        os.dup2(ready, 1)
        os.closerange(2, 1024)
        os.write(1, b"x")
        os.read(0, 1)
        os._exit(0)
    return pid


@contextmanager
def _large_parent() -> Iterator[None]:
    # In pages of the usual size, as most of what a program allocates is.
    memory = bytearray(1 << 30)
    for page in range(0, len(memory), 4096):
        memory[page] = 1
    yield
    del memory


def _processor_time() -> float:
    """Of children that were reaped."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _private_memory(pid: int) -> int:
    with open(f"/proc/{pid}/smaps_rollup", encoding="ascii") as file:
        return sum(int(line.split()[1]) for line in file if line.startswith("Private_"))


def _subreaper() -> str:
    began = time.perf_counter()
    result = ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    took = time.perf_counter() - began
    return f"{took * 1000:.2f} ms, result {result}; it adopts orphans, but dies with this process"


def _own_cgroup() -> str:
    """Make one, kill through it, and remove it; or say why that cannot be."""
    try:
        with open("/proc/self/cgroup", encoding="ascii") as file:
            path = next(line[3:].strip() for line in file if line.startswith("0::"))
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mount = next(line.split()[4] for line in file if " - cgroup2 " in line)
        folder = f"{mount}{path.rstrip('/')}/rankspawn-{os.getpid()}"
        began = time.perf_counter()
        os.mkdir(folder)
        try:
            open(f"{folder}/cgroup.kill", "w", encoding="ascii").close()
        finally:
            os.rmdir(folder)
        return f"{(time.perf_counter() - began) * 1000:.2f} ms"
    except (OSError, StopIteration) as error:
        return f"not to be had here ({error or 'not mounted'})"


if __name__ == "__main__":
    main()
