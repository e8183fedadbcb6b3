"""A script that imports torch at its top and spawns twice; and what copying it costs at least."""

import os

import torch  # type: ignore[import-not-found, unused-ignore]


def use_torch() -> None:
    """Runs in the worker."""
    assert torch.ones(64).sum().item() == 64


if __name__ == "__main__":
    from collections.abc import Mapping
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame
    from benchmarks.trials.stopwatch import timed

    def spawn(trial: Mapping[str, Any]) -> None:
        """Start ranks, and wait for them."""
        served: dict[str, Any] = {"start_method": "forkserver", "preload": "main"}
        options = served if trial["contender"] == "rankspawn main" else {}
        rankspawn.spawn(use_torch, nprocs=trial["nprocs"], backend="gloo", **options)

    def fork(trial: Mapping[str, Any]) -> None:
        """Copy this process so often; the copies leave at once."""
        copies = []
        for _ in range(trial["nprocs"]):
            pid = os.fork()
            if pid == 0:
                os._exit(0)
            copies.append(pid)
        for pid in copies:
            os.waitpid(pid, 0)

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """The second time counts."""
        start = fork if trial["contender"].startswith("bare") else spawn
        start(trial)
        return {"seconds": timed(lambda: start(trial))}

    frame.run(measure)
