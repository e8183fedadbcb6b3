"""From the call to the end of n workers that were given a large argument.

Metrics: ``seconds`` with the argument, ``seconds_tiny`` with a tiny one of the same type (so
what the type's library costs to import is in both), and for NumPy ``seconds_read``, if each
worker also reads all of it.
"""


def look(*args) -> None:  # type: ignore[no-untyped-def]
    """Runs in the worker, which has its argument by then."""
    assert len(args[-1]) > 0


def read_all(*args) -> None:  # type: ignore[no-untyped-def]
    """Runs in the worker."""
    from benchmarks.trials.objects import read

    read(args[-1])


if __name__ == "__main__":
    from collections.abc import Mapping
    from functools import partial
    from typing import Any

    from benchmarks.trials import frame, objects
    from benchmarks.trials.contenders import launcher
    from benchmarks.trials.stopwatch import timed

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """A fork server has the library loaded, for all contenders that have one."""
        library = {"NumPy": ["numpy"], "torch": ["torch"]}.get(trial["kind"], [])
        launch = launcher(trial["contender"], preload=library)
        nprocs = trial["nprocs"]
        tiny = objects.make(trial["kind"], objects.TINY)
        large = objects.make(trial["kind"], trial["size"])
        launch(look, (tiny,), 1)
        give_tiny, give_large = (partial(launch, look, (one,), nprocs) for one in (tiny, large))
        # In turns, because they are subtracted from each other.
        pairs = [(timed(give_tiny), timed(give_large)) for _ in range(trial["tries"])]
        figures = {
            "seconds_tiny": min(seconds for seconds, _ in pairs),
            "seconds": min(seconds for _, seconds in pairs),
        }
        if trial["kind"] == "NumPy" and not trial["quick"]:
            figures["seconds_read"] = timed(lambda: launch(read_all, (large,), nprocs))
        return figures

    frame.run(measure)
