"""A group whose workers read their argument, say so, and wait for ever: to be watched.

No trial itself: ``idle`` and ``memory`` start it and look at it from outside, because a look
from inside would wake it up.
"""


def wait(*args) -> None:  # type: ignore[no-untyped-def]
    """Runs in the worker."""
    from benchmarks.trials import meeting

    folder, value = args[-2:]
    if value is not None:
        from benchmarks.trials.objects import read

        read(value)
    meeting.arrive_and_wait(folder)


if __name__ == "__main__":
    import json
    import sys

    from benchmarks.trials import objects
    from benchmarks.trials.contenders import launcher

    trial, folder = json.loads(sys.argv[1]), sys.argv[2]
    value = objects.make(trial["kind"], trial["size"]) if trial["kind"] else None
    launcher(trial["contender"])(wait, (folder, value), trial["nprocs"])
