"""How long it takes to plan n ranks, without starting any."""

if __name__ == "__main__":
    import os
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.stopwatch import best_of, timed
    from rankspawn.machine import RealMachine
    from rankspawn.options import read_options
    from rankspawn.plan.job import make_plan, resolve

    def plan(nprocs: int) -> None:
        """Everything that is decided before the first process is started."""
        options = read_options({"backend": "gloo"})
        job = resolve(nprocs, options, os.environ, RealMachine())
        # No real machine has so many free ports at once; a plan does not care.
        ranks = make_plan(job, range(10_000, 10_000 + nprocs), run_id="benchmark").ranks
        assert len(ranks) == nprocs

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """Not the first plan of the program."""
        plan(1)
        return best_of(trial["tries"], lambda: timed(lambda: plan(trial["nprocs"])))

    frame.run(measure)
