"""Random faults for as long as you like: in ranks, in parents, in handlers, in what is allowed.

Each round starts a group with a random start method and size, has something go wrong or nothing at
all, and checks that the outcome is the expected one and that nothing is left: no process, no
zombie, no descriptor more than before. What goes wrong:

- one rank raises, exits, vanishes, is killed, crashes, stops, or returns 80 MB;
- the parent is killed at a random moment;
- a handler of SIGALRM, SIGTERM or SIGINT raises at a random moment of a start or a run, or at a
  random line while a group closes; the next group must not notice, nor the program's exit;
- as another user (root only): no process can be started any more when the parent is killed, or
  when a group is to start; and workers that are not dumpable lose their parent;
- in jobs of ``rankrun`` on several hosts (network namespaces; root only): a link is cut or the
  store stopped for some seconds, a launcher or the master killed, all nodes ended by a scheduler.

It ends with counts.

    python benchmarks/soak.py --minutes 10
    python benchmarks/soak.py --seed 7 --minutes 1 --only 'interrupted close'
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from soaking import groups, nodes, programs
from soaking.hosts import Hosts, some_hosts, why_no_hosts
from soaking.work import GRACE_SECONDS, work

import rankspawn

METHODS = ("spawn", "fork", "forkserver")
FAULTS = (*groups.FAULTS, *programs.OWN_USER, *programs.OTHER_USER, *nodes.FAULTS)


def run_round(
    fault: str,
    rng: random.Random,
    counts: Counter[str],
    injected: Counter[str],
    hosts: Hosts | None,
) -> None:
    """One group or program, from its start to the search for what it left."""
    method = rng.choice(METHODS)
    about = fault if fault in nodes.FAULTS else f"{fault} under {method}"
    counts[about] += 1
    if fault in groups.FAULTS:
        rounds = [groups.run_group(fault, method, rng)]
        injected[fault] += 1
    elif fault in nodes.FAULTS:
        assert hosts is not None, "such a fault is possible only with hosts"
        rounds = nodes.run_nodes(fault, hosts, rng, injected)
    else:
        rounds = programs.run_program(fault, method, rng, injected)
    for verdict, left in rounds:
        counts["groups run"] += 1
        if verdict != "expected":
            counts["hangs" if verdict.startswith("hang") else "wrong outcomes"] += 1
            print(f"!!! {about}: {verdict}", flush=True)
        if left:
            counts["leaks"] += 1
            print(f"!!! {about} left {left}", flush=True)


def _be_the_parent(method: str, nprocs: int) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup ignores it
    print("starting", flush=True)
    rankspawn.spawn(
        work,
        args=(-1, "wait", True),
        nprocs=nprocs,
        backend="gloo",
        start_method=method,
        grace_period=GRACE_SECONDS,
    )


def _be(what: str, arguments: list[object]) -> None:
    """Be the program that a round is about."""
    from soaking import interrupted, unprivileged

    bodies: dict[str, Callable[..., None]] = {
        "parent": _be_the_parent,
        "interrupted": interrupted.run_rounds,
        "hidden": unprivileged.wait_to_be_killed,
        "limited": unprivileged.start_within_a_limit,
        "nodes": nodes.run_job,
    }
    bodies[what](*arguments)


def main() -> int:
    """Run, print the counts; the exit code is 1 if there is anything to worry about."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--only", choices=FAULTS, action="append", help="these faults only")
    parser.add_argument("--as", dest="being", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.being:
        _be(options.being[0], json.loads(options.being[1]))
        return 0
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(10**6)
    print(f"seed {seed}, {options.minutes} minutes, {Path(sys.executable).name}", flush=True)
    faults = _possible(options.only or FAULTS)
    rng, counts, injected = random.Random(seed), Counter[str](), Counter[str]()
    rankspawn.spawn(os.getpid, nprocs=1, backend="gloo")  # starts the resource tracker
    end = time.monotonic() + 60 * options.minutes
    with contextlib.ExitStack() as stack:
        on_hosts = any(fault in nodes.FAULTS for fault in faults)
        hosts = stack.enter_context(some_hosts(nodes.MOST_HOSTS)) if on_hosts else None
        while time.monotonic() < end:
            run_round(rng.choice(faults), rng, counts, injected, hosts)
    return _report(faults, counts, injected)


def _possible(faults: list[str] | tuple[str, ...]) -> list[str]:
    """Those that can be had here; the others are named."""
    possible = list(faults)
    for special, why_not in (
        (programs.OTHER_USER, programs.why_no_other_user),
        (nodes.FAULTS, why_no_hosts),
    ):
        others = [fault for fault in faults if fault in special]
        reason = why_not() if others else ""
        if reason:
            print(f"LEFT OUT: {', '.join(others)}: {reason}", flush=True)
            possible = [fault for fault in possible if fault not in others]
    return possible


def _report(faults: list[str], counts: Counter[str], injected: Counter[str]) -> int:
    harmless = ("none", "huge")
    troubles = sum(counts[name] for name in ("leaks", "wrong outcomes", "hangs"))
    print(f"groups run: {counts.pop('groups run', 0)}")
    print(f"faults injected: {sum(injected[name] for name in faults if name not in harmless)}")
    for name in ("leaks", "wrong outcomes", "hangs"):
        print(f"{name}: {counts.pop(name, 0)}")
    for name, count in sorted(counts.items()):
        print(f"  {name}: {count}")
    for name in faults:
        print(f"  injected, {name}: {injected[name]}")
    # A fault that never happened has not been survived.
    never = [name for name in faults if not injected[name]]
    if never:
        print(f"NEVER INJECTED: {', '.join(never)}")
    return 1 if troubles else 0


if __name__ == "__main__":
    sys.exit(main())
