"""Up to thousands of ranks on one machine: start to end, and the parent's memory meanwhile."""


def do_nothing() -> None:
    """Runs in the worker."""


if __name__ == "__main__":
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame
    from benchmarks.trials.stopwatch import timed

    def own_memory() -> int:
        """Bytes of this process that it shares with no other: what a group costs it."""
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(1024 * int(line.split()[1]) for line in lines if line.startswith("Private_"))

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """One worker untimed; memory with all workers there, over that with one."""
        method, nprocs = trial["contender"].split()[1], trial["nprocs"]

        def start(nprocs: int, **options: Any) -> Any:
            return rankspawn.spawn(
                do_nothing, nprocs=nprocs, backend="gloo", start_method=method, **options
            )

        start(1)
        before = own_memory()
        context: Any = None

        def start_and_join() -> None:
            nonlocal context
            context = start(nprocs, join=False)
            context.join()

        seconds = timed(start_and_join)
        # The context is still there, with all that it knows of its ranks.
        assert len(context.pids()) == nprocs
        return {"seconds": seconds, "bytes_per_rank": max(0, own_memory() - before) / nprocs}

    frame.run(measure)
