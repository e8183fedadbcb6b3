"""Ranks that talk: collectives and a training step beside those of frameworks."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.records import Figure, Goal, Trial

SECTION = "talk"
RANKS = (2, 4, 8)
# Of one program all sizes: its ranks import a framework once.
TORCH_SIZES = ("4 KiB", "1 MiB", "64 MiB", "256 MiB")
# What 10 million parameters have.
PARAMETERS = "40 MB"


def _trial(peer: str, ranks: int, task: str) -> Trial:
    return Trial("collectives", peer, ranks, task, slow=True)


def _pair(peer: str, ranks: int, task: str, way: str = "rankspawn") -> tuple[Figure, Figure]:
    trial = _trial(peer, ranks, "collectives")
    return Figure(trial, f"{task}: {way}"), Figure(trial, f"{task}: peer")


def _ahead(peer: str, ranks: int, task: str, wanted: float, way: str = "rankspawn") -> Goal:
    shared = ", from comm.empty()" if way == "shared" else ""
    ours, other = _pair(peer, ranks, task, way)
    what = f"{task}{shared}, {ranks} ranks: {peer}"
    return Goal(SECTION, what, "faster", ours, other, at_least=wanted)


def _beside_torch(ranks: int) -> list[Goal]:
    copy = Figure(_trial("torch", ranks, "collectives"), "all-reduce 64 MiB: copy")
    shared = Figure(copy.trial, "all-reduce 64 MiB: shared")
    found = [
        _ahead("torch", ranks, "all-reduce 4 KiB", 30),
        _ahead("torch", ranks, "all-reduce 1 MiB", 12),
        _ahead("torch", ranks, "all-reduce 64 MiB", 2.5),
        _ahead("torch", ranks, "all-reduce 64 MiB", 6, "shared"),
        Goal(
            *(SECTION, f"all-reduce 64 MiB, from comm.empty(), {ranks} ranks: one copy of it"),
            "slower",
            shared,
            copy,
            at_most=1.5,
        ),
    ]
    found += [_over_copies(f"all-reduce {size}", ranks) for size in ("1 MiB", "64 MiB")]
    if ranks == 2:
        found.append(_over_copies("broadcast 1 GiB", ranks))
        found.append(_ahead("torch", ranks, "all-reduce 256 MiB", 2.5))
        found.append(_ahead("torch", ranks, "all-reduce 256 MiB", 6, "shared"))
        found.append(_ahead("torch", ranks, "broadcast 1 GiB", 5))
    return found


def _barrier(ranks: int) -> Goal:
    trial = _trial("multiprocessing", ranks, "barrier")
    return Goal(
        *(SECTION, f"barrier, {ranks} ranks: multiprocessing", "faster"),
        *(Figure(trial, "barrier: rankspawn"), Figure(trial, "barrier: peer")),
        at_least=10,
    )


def _busy(ranks: int) -> Goal:
    figure = Figure(_trial("multiprocessing", ranks, "busy"), "barrier: rankspawn")
    what = f"barrier, {ranks} ranks on one CPU beside 3 busy loops"
    return Goal(SECTION, what, "value", figure, unit="ms", at_most=1)


def _turns_of_the_kernel(ranks: int) -> Goal:
    """What no barrier of processes that sleep can be faster than."""
    ours = Figure(_trial("multiprocessing", ranks, "barrier"), "barrier: rankspawn")
    bare = Figure(Trial("hand_over", "bare fork", ranks, slow=True))
    what = f"barrier, {ranks} ranks: over bare processes that meet at an eventfd"
    return Goal(SECTION, what, "slower", ours, bare)


def _over_copies(task: str, ranks: int, way: str = "rankspawn") -> Goal:
    """As much as all ranks have to read and to write, without a word between them."""
    ours, _ = _pair("torch", ranks, task, way)
    what = f"{task}, {ranks} ranks: one copy of it by each that gets it"
    return Goal(SECTION, what, "slower", ours, replace(ours, metric=f"{task}: copy"))


def _beside(peer: str, ranks: int) -> list[Goal]:
    smallest = 0.5 if peer == "MPI" else 1.0
    return [
        _ahead(peer, ranks, "all-reduce 4 KiB", smallest),
        _ahead(peer, ranks, "all-reduce 1 MiB", 1),
        _ahead(peer, ranks, f"all-reduce {PARAMETERS}", 1),
    ]


def _step(ranks: int) -> Goal:
    trial = Trial("training_step", "torch DDP", ranks, "10 million parameters", slow=True)
    return Goal(
        *(SECTION, f"training step of 10 million parameters, {ranks} ranks: the best of DDP"),
        "faster",
        Figure(trial, "rankspawn"),
        Figure(trial, "DDP"),
        at_least=1.3,
    )


GOALS = [
    *map(_barrier, RANKS),
    *map(_turns_of_the_kernel, RANKS),
    *map(_busy, RANKS),
    *(goal for ranks in RANKS for goal in _beside_torch(ranks)),
    *(
        goal
        for peer in ("Paddle", "JAX", "MPI")
        for ranks in (2, 4)
        for goal in _beside(peer, ranks)
    ),
    *map(_step, (2, 4)),
]
