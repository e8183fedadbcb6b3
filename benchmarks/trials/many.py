"""Up to thousands of ranks on one machine: start to end, or all of them there at the same time."""


def do_nothing() -> None:
    """Runs in the worker."""


def wait(folder: str) -> None:
    """Runs in the worker."""
    from benchmarks.trials import meeting

    meeting.arrive_and_wait(folder)


if __name__ == "__main__":
    import os
    import tempfile
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame, meeting
    from benchmarks.trials.stopwatch import timed
    from benchmarks.trials.watching import is_running

    def resident() -> int:
        """Bytes of this process in memory, with what it shares with its copies."""
        for line in Path("/proc/self/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return 1024 * int(line.split()[1])
        raise RuntimeError("this system does not tell how much memory is in use")

    def start(trial: Mapping[str, Any], *args: Any) -> Any:
        """Some ranks; first one, untimed."""
        own = {"backend": "gloo", "start_method": trial["contender"].split()[1]}
        rankspawn.spawn(do_nothing, nprocs=1, **own)
        before = resident()
        func = wait if args else do_nothing
        begin = lambda: rankspawn.spawn(  # noqa: E731
            func, args=args, nprocs=trial["nprocs"], join=False, **own
        )
        return begin, before

    def start_and_end(trial: Mapping[str, Any]) -> dict[str, float]:
        """Ranks that return at once."""
        begin, _ = start(trial)
        return {"seconds": timed(lambda: begin().join())}

    def hold(trial: Mapping[str, Any]) -> dict[str, float]:
        """Ranks that wait until all are there: how many, and what they cost this process."""
        nprocs = trial["nprocs"]
        with tempfile.TemporaryDirectory() as folder:
            begin, before = start(trial, folder)
            meeting.name_gate(folder)
            context = begin()
            gate = meeting.open_gate(folder)
            try:
                pids = meeting.wait_for_all(folder, nprocs)
                held = sum(map(is_running, pids))
                used = max(0, resident() - before)
            finally:
                os.close(gate)
            context.join()
        return {"held": float(held), "bytes_per_rank": used / nprocs}

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """One of both."""
        return hold(trial) if trial["kind"] == "held" else start_and_end(trial)

    frame.run(measure)
