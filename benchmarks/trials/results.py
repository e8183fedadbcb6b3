"""From the moment in which all workers return a large result until the parent has them all.

Metrics: ``seconds``, ``seconds_read`` until the parent has also read all of them, and
``writable``, which is 1 if the parent may write to each of them.
"""


def give(*args) -> object:  # type: ignore[no-untyped-def]
    """Runs in the worker."""
    from benchmarks.trials.meeting import meet
    from benchmarks.trials.objects import make

    folder, nprocs, kind, size = args[-4:]
    value = make(kind, size)
    return meet(folder, nprocs), value


if __name__ == "__main__":
    import tempfile
    import time
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.trials import frame, objects
    from benchmarks.trials.contenders import launcher

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """The workers are there and their results made when the time begins to run."""
        launch = launcher(trial["contender"])
        nprocs, kind, size = trial["nprocs"], trial["kind"], trial["size"]
        # Our own first import of the library must not count.
        objects.read(objects.make(kind, objects.TINY))
        with tempfile.TemporaryDirectory() as folder:
            done = launch(give, (folder, nprocs, kind, size), nprocs)
        begun = max(moment for moment, _ in done.results)
        values = [value for _, value in done.results]
        before = time.monotonic()
        sums = {objects.read(value) for value in values}
        reading = time.monotonic() - before
        assert len(values) == nprocs, "a result is missing"
        assert len(sums) == 1, "a result is damaged"
        writable = all(getattr(one, "flags", None) and one.flags.writeable for one in values)
        seconds = done.at - begun
        return {
            "seconds": seconds,
            "seconds_read": seconds + reading,
            "writable": float(writable),
        }

    frame.run(measure)
