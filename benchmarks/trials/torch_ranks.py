"""Start workers that use torch, twice in one program: the first time cold, then warm."""


def use_torch(*_: object) -> None:
    """Runs in the worker."""
    import torch  # type: ignore[import-not-found, unused-ignore]

    assert torch.ones(64).sum().item() == 64


if __name__ == "__main__":
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.contenders import launcher
    from benchmarks.trials.stopwatch import timed

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """No warm-up: the first start is part of what is measured."""
        launch = launcher(trial["contender"], preload=["torch"])
        return {
            "seconds": timed(lambda: launch(use_torch, (), trial["nprocs"])),
            "seconds_again": timed(lambda: launch(use_torch, (), trial["nprocs"])),
        }

    frame.run(measure)
