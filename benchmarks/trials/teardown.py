"""From the failure of one worker to the exception in the parent, with all others gone.

``bare`` contenders show what the system itself needs: as many sleeping processes get SIGTERM
and are reaped, from the first signal to the last status. ``by hand`` is the same, done to workers
of rankspawn, which are larger. With ``kind`` nobody asks the survivors where they are.
"""


def arrive_and_sleep(folder: str) -> None:
    """Runs in the worker."""
    import time

    from benchmarks.trials import meeting

    meeting.arrive(folder)
    time.sleep(1000)


def fail_or_sleep(*args) -> None:  # type: ignore[no-untyped-def]
    """Runs in the worker."""
    import time

    from benchmarks.trials import meeting

    folder, nprocs = args[-2:]
    if meeting.arrive(folder):
        meeting.wait_for_all(folder, nprocs)
        time.sleep(0.5)  # the others fall asleep
        with open(f"{folder}/failed", "w") as file:
            file.write(repr(time.monotonic()))
        raise ValueError("on purpose")
    time.sleep(1000)


if __name__ == "__main__":
    import tempfile
    import time
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    import rankspawn
    from benchmarks.trials import bare, frame, meeting
    from benchmarks.trials.contenders import Launch, launcher
    from benchmarks.trials.stopwatch import best_of
    from benchmarks.trials.watching import is_running

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """Besides the seconds: how many workers were left at that moment, at worst."""
        nprocs, name, left = trial["nprocs"], trial["contender"], [0]
        others = name in bare.STARTERS or name.startswith("by hand")
        options: dict[str, Any] = {"stacks": False} if trial["kind"] else {}
        launch = None if others else launcher(name, **options)

        def once() -> float:
            with tempfile.TemporaryDirectory() as folder:
                if name.startswith("by hand"):
                    return by_hand(name.split()[-1], nprocs, folder)
                if launch is None:
                    return bare.terminate_and_reap(bare.STARTERS[name], nprocs, folder)
                seconds = until_raised(launch, nprocs, folder)
                left.append(sum(is_running(pid) for pid in meeting.arrived(folder)))
                return seconds

        figures = best_of(trial["tries"], once)
        return {**figures, "left": float(max(left))}

    def by_hand(method: str, nprocs: int, folder: str) -> float:
        """Ended without the library's help; then its own end, untimed."""
        options: dict[str, Any] = {"nprocs": nprocs, "backend": "gloo", "start_method": method}
        context = rankspawn.spawn(arrive_and_sleep, args=(folder,), join=False, **options)
        meeting.wait_for_all(folder, nprocs)
        time.sleep(0.5)  # they fall asleep
        seconds = bare.end_by_hand(context.pids())
        context.terminate()
        return seconds

    def until_raised(launch: Launch, nprocs: int, folder: str) -> float:
        """From the failure to the exception."""
        try:
            launch(fail_or_sleep, (folder, nprocs), nprocs)
        except Exception:
            raised = time.monotonic()
            if not Path(folder, "failed").exists():
                raise  # not the failure that was meant
            return raised - float(Path(folder, "failed").read_text())
        raise RuntimeError("the failure was not noticed")

    frame.run(measure)
