"""Pages of memory that a forked process touches, each of which is copied; and its CPU.

Of the least that a fork can be, of multiprocessing's, and of ours: whole, and with one part or all
of them left out, as ``kind`` says. That we cannot do without them is not the point: it shows which
part buys what.
"""


def do_nothing() -> None:
    """Runs in the worker."""


if __name__ == "__main__":
    import contextlib
    import multiprocessing
    import resource
    import statistics
    from collections.abc import Callable, Mapping
    from typing import Any

    import rankspawn
    from benchmarks.goals.forks import ALL
    from benchmarks.trials import frame
    from benchmarks.trials.bare import fork_and_leave
    from rankspawn.workers import child, forked, report

    ROUNDS = 9

    def with_multiprocessing(nprocs: int) -> None:
        """As multiprocessing does it."""
        mp = multiprocessing.get_context("fork")
        processes = [mp.Process(target=do_nothing) for _ in range(nprocs)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()

    def with_rankspawn(nprocs: int) -> None:
        """As we do it; the guardian is one more child, of a few pages."""
        # Without an outcome nobody knows that it went well.
        with contextlib.suppress(rankspawn.ProcessExceptionGroup):
            rankspawn.spawn(
                do_nothing,
                nprocs=nprocs,
                backend="gloo",
                start_method="fork",
                on_failure="continue",
            )

    def nothing(*_: object) -> None:
        """In place of a part."""

    # What the copies are without, by what is done in its place.
    parts: dict[str, list[tuple[Any, str, Callable[..., Any]]]] = {
        "the mark": [(forked, "carry_mark", nothing)],
        "the outcome file": [
            (report.Report, "stage", nothing),
            (report.Report, "returned", nothing),
        ],
        "the stacks handler": [(report.Report, "answer_stack_requests", nothing)],
        "the variables": [(forked, "change_environment", nothing)],
        "exit functions": [(child, "_run_exit_handlers", lambda: True)],
    }

    def leave_out(kind: str) -> None:
        """In this process, of which all ranks are copies."""
        for part in parts if kind == ALL else filter(None, [kind]):
            for owner, name, instead in parts[part]:
                assert hasattr(owner, name), "or nothing is left out"
                setattr(owner, name, instead)

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """The medians; one start before does not count."""
        nprocs = trial["nprocs"]
        ways = {
            "bare fork": fork_and_leave,
            "multiprocessing fork": with_multiprocessing,
            "rankspawn fork": with_rankspawn,
        }
        fork = ways[trial["contender"]]
        leave_out(trial["kind"])
        fork(nprocs)
        found = []
        for _ in range(ROUNDS):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            fork(nprocs)
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            pages = (after.ru_minflt - before.ru_minflt) / nprocs
            seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            found.append((pages, seconds / nprocs))
        pages, seconds = (statistics.median(column) for column in zip(*found, strict=True))
        return {"pages": pages, "cpu": seconds}

    frame.run(measure)
