"""A script that imports torch and pandas and spawns twice; and what copying it costs at least."""

import pandas  # type: ignore[import-untyped, import-not-found, unused-ignore]
import torch  # type: ignore[import-not-found, unused-ignore]


def use_torch() -> None:
    """Runs in the worker."""
    assert torch.ones(64).sum().item() == len(pandas.Series(range(64)))


if __name__ == "__main__":
    from collections.abc import Mapping
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame
    from benchmarks.trials.bare import fork_and_leave
    from benchmarks.trials.stopwatch import timed

    def spawn(trial: Mapping[str, Any]) -> None:
        """Start ranks, and wait for them."""
        served: dict[str, Any] = {"start_method": "forkserver", "preload": "main"}
        options = served if trial["contender"] == "rankspawn main" else {}
        rankspawn.spawn(use_torch, nprocs=trial["nprocs"], backend="gloo", **options)

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """The second time counts."""
        bare = trial["contender"].startswith("bare")

        def start() -> None:
            fork_and_leave(trial["nprocs"]) if bare else spawn(trial)

        start()
        return {"seconds": timed(start)}

    frame.run(measure)
