"""What bare processes cost beside workers, which is where the goals for fork and teardown end.

Two things that a stopwatch around a whole start or teardown does not show: how many pages of
memory a forked process touches, and how long it takes to end workers by hand, with nothing
reported and nothing looked for.

    python benchmarks/limits.py

Workers run this file once more, so what only the parent needs is imported where it is used:
larger ones would not be held against bare interpreters with justice.
"""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable

sys.path.insert(0, os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
NPROCS = 32
ROUNDS = 9


def do_nothing() -> None:
    """Runs in the worker."""


def arrive_and_sleep(folder: str) -> None:
    """Runs in the worker."""
    from benchmarks.trials import meeting

    meeting.arrive(folder)
    time.sleep(1000)


def fork_bare() -> None:
    """The least: a copy that leaves at once."""
    from benchmarks.trials.bare import fork_and_leave

    fork_and_leave(NPROCS)


def fork_multiprocessing() -> None:
    """As multiprocessing does it."""
    import multiprocessing

    mp = multiprocessing.get_context("fork")
    processes = [mp.Process(target=do_nothing) for _ in range(NPROCS)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()


def fork_rankspawn() -> None:
    """As we do it; the guardian is one more child, of a few pages."""
    import rankspawn

    rankspawn.spawn(do_nothing, nprocs=NPROCS, backend="gloo", start_method="fork")


FORKS: dict[str, Callable[[], None]] = {
    "bare fork": fork_bare,
    "multiprocessing fork": fork_multiprocessing,
    "rankspawn fork": fork_rankspawn,
}


def tell_pages(name: str) -> None:
    """Pages that each child touches, and microseconds of CPU for each; in a program of its own."""
    import resource
    import statistics

    fork = FORKS[name]
    fork()
    found = []
    for _ in range(ROUNDS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        fork()
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        pages = (after.ru_minflt - before.ru_minflt) / NPROCS
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        found.append((pages, seconds / NPROCS))
    pages, seconds = (statistics.median(column) for column in zip(*found, strict=True))
    print(f"{name}: {pages:.0f} pages, {1e3 * seconds:.2f} ms of CPU for each child")


def end_by_hand(method: str) -> tuple[float, float]:
    """Seconds to end sleeping workers with kill and waitpid, and as many bare processes."""
    import tempfile

    import rankspawn
    from benchmarks.trials import bare, meeting

    with tempfile.TemporaryDirectory() as folder:
        options = {"nprocs": NPROCS, "backend": "gloo", "start_method": method, "join": False}
        context = rankspawn.spawn(arrive_and_sleep, args=(folder,), **options)
        meeting.wait_for_all(folder, NPROCS)
        time.sleep(0.5)  # they fall asleep
        ours = bare.end_by_hand(context.pids())
        context.terminate()
    with tempfile.TemporaryDirectory() as folder:
        name = "bare fork" if method == "fork" else "bare interpreters"
        return ours, bare.terminate_and_reap(bare.STARTERS[name], NPROCS, folder)


def main() -> None:
    """All of it; about a minute."""
    import statistics
    import subprocess

    for name in FORKS:
        subprocess.run([sys.executable, __file__, name], check=True)
    for method in ("spawn", "fork"):
        pairs = [end_by_hand(method) for _ in range(ROUNDS)]
        ours, bare = (1e3 * statistics.median(column) for column in zip(*pairs, strict=True))
        ratio = statistics.median(one / other for one, other in pairs)
        times = f"{ours:.1f} ms, bare {bare:.1f} ms, {ratio:.2f} times"
        print(f"{NPROCS} workers by {method}, ended by hand: {times}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        tell_pages(sys.argv[1])
    else:
        main()
