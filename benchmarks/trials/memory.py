"""What a large argument takes in the workers that have all of it read.

The proportional set size of all workers, and apart from it that of the parent.
"""

if __name__ == "__main__":
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.trials import frame, objects
    from benchmarks.trials.watching import proportional_memory, waiting_group

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """With the argument, and with a tiny one of the same type: the bare workers."""
        figures = {}
        for name, size in (("tiny", objects.TINY), ("large", trial["size"])):
            with waiting_group({**trial, "size": size}) as group:
                workers = sum(proportional_memory(pid) for pid in group.workers)
                figures[f"workers_{name}"] = float(workers)
                figures[f"parent_{name}"] = float(proportional_memory(group.parent))
        return figures

    frame.run(measure)
