"""Random faults for as long as you like: kill, stop, exit, raise, huge results, dead parents.

Each round starts a group with a random start method and size, lets one rank fail in a random
way or none at all, and checks that the outcome is the expected one and that nothing is left:
no process with the job's mark, no zombie, no descriptor more than before. It ends with counts.

    python benchmarks/soak.py --minutes 10
    python benchmarks/soak.py --seed 7 --minutes 1
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

import rankspawn
from rankspawn import ProcessException, ProcessExitedException, ProcessRaisedException
from rankspawn.workers import forkserver, group, marker

# A group that takes longer than this hangs; the slowest round takes a second or two.
HANG_SECONDS = 60.0
GRACE_SECONDS = 1.0
HUGE = 80_000_000
METHODS = ("spawn", "fork", "forkserver")
FAULTS = ("none", "raise", "exit", "vanish", "kill", "segfault", "stop", "huge", "parent")


def work(which: int, fault: str, leave_children: bool) -> object:
    """Runs in the worker."""
    if leave_children:
        subprocess.Popen(["sleep", "1000"], start_new_session=True)
    if fault in ("none", "huge"):
        return b"x" * HUGE if fault == "huge" else rankspawn.get_rank()
    if rankspawn.get_rank() == which:
        fail(fault)
    while True:
        signal.pause()


def fail(fault: str) -> None:
    """Runs in the worker."""
    if fault == "raise":
        raise ValueError("on purpose" * 20_000)
    if fault == "exit":
        sys.exit(7)
    if fault == "vanish":
        os._exit(0)
    if fault == "stop":  # ignores SIGTERM, then stops; another one ends the group
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if os.fork() == 0:
            os._exit(0)
        os.kill(os.getpid(), signal.SIGSTOP)
    os.kill(os.getpid(), {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV}[fault])


def run_round(rng: random.Random, counts: Counter[str]) -> None:
    """One group, from its start to the search for what it left."""
    fault, method, nprocs = rng.choice(FAULTS), rng.choice(METHODS), rng.randint(1, 4)
    which, leave_children = (
        rng.randrange(nprocs),
        fault not in ("none", "huge") and rng.random() < 0.3,
    )
    before = _descriptors()
    counts[f"{fault} under {method}"] += 1
    if fault == "parent":
        mark, verdict = _kill_a_parent(rng, method, nprocs)
    else:
        mark, verdict = _run_group(fault, method, nprocs, which, leave_children)
    counts["groups run"] += 1
    counts["faults injected"] += fault not in ("none", "huge")
    if verdict != "expected":
        counts["hangs" if verdict == "hang" else "wrong outcomes"] += 1
        print(f"!!! {fault} under {method}, {nprocs} ranks, rank {which}: {verdict}", flush=True)
    if left := _leaks(mark, before):
        counts["leaks"] += 1
        print(f"!!! {fault} under {method} left {left}", flush=True)


def _run_group(
    fault: str, method: str, nprocs: int, which: int, leave_children: bool
) -> tuple[str, str]:
    context = rankspawn.spawn(
        work,
        args=(which, fault, leave_children),
        nprocs=nprocs,
        backend="gloo",
        start_method=method,
        join=False,
        grace_period=GRACE_SECONDS,
    )
    mark = context._group.mark
    try:
        if fault == "stop":
            context.join(timeout=0.2)
            context.terminate()
        elif not context.join(timeout=HANG_SECONDS):
            context.terminate()
            return mark, "hang"
        context.join()
        results = context.results()
    except ProcessException as error:
        return mark, _judge(fault, which, error)
    expected = [HUGE] * nprocs if fault == "huge" else list(range(nprocs))
    got = [len(one) if isinstance(one, bytes) else one for one in results]
    return mark, "expected" if got == expected else f"results {got}"


def _judge(fault: str, which: int, error: ProcessException) -> str:
    wanted: dict[str, tuple[type[ProcessException], int | None]] = {
        "raise": (ProcessRaisedException, None),
        "exit": (ProcessExitedException, 7),
        "vanish": (ProcessExitedException, 0),
        "kill": (ProcessExitedException, -signal.SIGKILL),
        "segfault": (ProcessExitedException, -signal.SIGSEGV),
        "stop": (ProcessExitedException, None),
    }
    kind, code = wanted.get(fault, (ProcessException, -1))
    fits = isinstance(error, kind) and (fault == "stop" or error.rank == which)
    fits &= code is None or getattr(error, "exit_code", None) == code
    return "expected" if fits else f"{type(error).__name__}: {str(error)[:200]}"


def _kill_a_parent(rng: random.Random, method: str, nprocs: int) -> tuple[str, str]:
    """Another program with such a group, killed at a random moment of its start or run."""
    mark = marker.new_mark()
    number = rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
    with subprocess.Popen(
        [sys.executable, __file__, "--as-parent", json.dumps([mark, method, nprocs])],
        stdout=subprocess.PIPE,
    ) as parent:
        assert parent.stdout is not None
        parent.stdout.readline()
        time.sleep(rng.random() * 0.3)
        parent.send_signal(number)
    deadline = time.monotonic() + GRACE_SECONDS + HANG_SECONDS
    while list(marker.find_marked(mark)):
        if time.monotonic() > deadline:
            return mark, "hang"
        time.sleep(0.02)
    return mark, "expected"


def _be_the_parent(mark: str, method: str, nprocs: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    group.new_mark = lambda: mark  # type: ignore[attr-defined]  # not for others to set
    print("starting", flush=True)
    rankspawn.spawn(
        work,
        args=(-1, "wait", True),
        nprocs=nprocs,
        backend="gloo",
        start_method=method,
        grace_period=GRACE_SECONDS,
    )


def _descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def _leaks(mark: str, before: set[str]) -> list[str]:
    gc.collect()
    forkserver.stop_servers()
    left = [f"process {pid}" for pid in marker.find_marked(mark)]
    left += [
        f"child {one.pid} ({one.status()})"
        for one in psutil.Process().children()
        if "resource_tracker" not in " ".join(one.cmdline())
    ]
    after = _descriptors()
    return left + [f"{len(after) - len(before)} descriptors"] * (len(after) > len(before))


def main() -> int:
    """Run, print the counts; the exit code is 1 if there is anything to worry about."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--as-parent", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.as_parent:
        _be_the_parent(*json.loads(options.as_parent))
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, {options.minutes} minutes, {Path(sys.executable).name}", flush=True)
    rng, counts = random.Random(seed), Counter[str]()
    rankspawn.spawn(os.getpid, nprocs=1, backend="gloo")  # starts the resource tracker
    end = time.monotonic() + 60 * options.minutes
    while time.monotonic() < end:
        run_round(rng, counts)
    troubles = sum(counts[name] for name in ("leaks", "wrong outcomes", "hangs"))
    for name in ("groups run", "faults injected", "leaks", "wrong outcomes", "hangs"):
        print(f"{name}: {counts.pop(name, 0)}")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
