"""From the call to the end of n workers that do nothing."""


def do_nothing(*_: object) -> None:
    """Runs in the worker."""


if __name__ == "__main__":
    from collections.abc import Mapping
    from functools import partial
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.contenders import launcher
    from benchmarks.trials.stopwatch import best_of, timed

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """One worker untimed, so that what a program loads once does not count; then n."""
        launch = launcher(trial["contender"])
        launch(do_nothing, (), 1)
        start_all = partial(launch, do_nothing, (), trial["nprocs"])
        return best_of(trial["tries"], lambda: timed(start_all))

    frame.run(measure)
