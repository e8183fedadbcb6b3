"""How often the parent of a group that only waits is woken up."""

if __name__ == "__main__":
    import time
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.watching import waiting_group, wake_ups

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """Context switches of all its threads, as a rate."""
        with waiting_group(trial) as group:
            time.sleep(2.0)  # whatever belongs to the start is over
            before = wake_ups(group.parent)
            time.sleep(trial["seconds"])
            count = wake_ups(group.parent) - before
        return {"wake_ups": float(count), "per_minute": count * 60 / trial["seconds"]}

    frame.run(measure)
