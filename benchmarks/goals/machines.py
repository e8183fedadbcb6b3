"""The same spawn() on several machines: what an engine's agents cost."""

from __future__ import annotations

from benchmarks.records import Figure, Goal, Trial

SECTION = "machines"


def _engine(name: str, what: str, at_most: float) -> list[Goal]:
    trial = Trial("engines", name, 2, slow=True)
    return [
        Goal(
            *(SECTION, f"{name}, 2 nodes: over {what}", "more"),
            *(Figure(trial, "ours"), Figure(trial, "bare")),
            unit="s",
            at_most=at_most,
        ),
        Goal(
            *(SECTION, f"{name}: from a failure to the exception", "value"),
            Figure(trial, "noticed"),
            unit="s",
            at_most=0.1,
        ),
    ]


def _ahead(name: str, peer: str, wanted: float) -> Goal:
    trial = Trial("engines", name, 2, slow=True)
    other = Trial("engines", peer, 2, slow=True)
    what = f"{name}, a function that does nothing on 2 nodes: {peer}"
    return Goal(
        *(SECTION, what, "faster", Figure(trial, "ours"), Figure(other, "ours")), at_least=wanted
    )


def _bookkeeping(nodes: int) -> Goal:
    figure = Figure(Trial("bookkeeping", "rankspawn", nodes), "seconds")
    what = f"the driver's CPU for {8 * nodes:,} ranks on {nodes:,} simulated nodes"
    return Goal(SECTION, what, "value", figure, unit="s", at_most=5)


GOALS = [
    *_engine("Local", "spawn(nprocs=4), with 2 ranks each", 0.06),
    *_engine("ssh", "`ssh host true` run twice", 0.2),
    *_engine("Slurm", "`srun -N2 true`", 0.3),
    Goal(
        *(SECTION, "Slurm: from the end of its tasks to that of `srun`", "value"),
        Figure(Trial("engines", "Slurm", 2, slow=True), "end"),
        unit="s",
    ),
    *_engine("Ray", "two empty actors", 0.5),
    _ahead("Ray", "Ray Train", 2),
    _ahead("ssh", "torchrunx", 5),
    *map(_bookkeeping, (312, 625, 1250)),
]
