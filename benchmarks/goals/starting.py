"""Starts of workers that do nothing, beside peers."""

from __future__ import annotations

from benchmarks.records import Figure, Goal, Trial

SECTION = "start"
METHODS = ("spawn", "fork", "forkserver")
NPROCS = (2, 8, 32)
# Not the frameworks: they take so long that a single moment does not matter.
TRIES = 3
MANY = (250, 500, 1000, 2000)
FAILING = (250, 500, 1000, 2000)


def _start(contender: str, nprocs: int) -> Figure:
    slow = contender.startswith(("torch", "Paddle"))
    return Figure(Trial("start", contender, nprocs, tries=1 if slow else TRIES, slow=slow))


def _beside_multiprocessing() -> list[Goal]:
    # A supervised fork costs more than a bare one: at most a fifth is wanted.
    return [
        Goal(
            SECTION,
            f"start {method}, n={nprocs}: multiprocessing {method}",
            "slower",
            _start(f"rankspawn {method}", nprocs),
            _start(f"multiprocessing {method}", nprocs),
            at_most=1.2 if method == "fork" else 1.0,
            quick=nprocs == 8 or (method == "fork" and nprocs > 2),
        )
        for method in METHODS
        for nprocs in NPROCS
    ]


def _beside_others() -> list[Goal]:
    wanted = {"torch spawn": 20.0, "Paddle spawn": 20.0}
    peers = ("torch spawn", "Paddle spawn", "concurrent.futures spawn", "loky", "bare interpreters")
    return [
        Goal(
            SECTION,
            f"start spawn, n=8: {peer}",
            "faster",
            _start("rankspawn spawn", 8),
            _start(peer, 8),
            at_least=wanted.get(peer),
            quick=peer not in wanted,
        )
        for peer in peers
    ]


TORCH = Trial("torch_ranks", "rankspawn forkserver", 8)
TORCH_SPAWN = Trial("torch_ranks", "torch spawn", 8)
PLAN = Trial("planning", "rankspawn plan", 10_000, tries=3)


def _with_torch(metric: str, moment: str, wanted: float) -> Goal:
    what = f"forkserver with torch, n=8, {moment}: torch spawn"
    ours, other = Figure(TORCH, metric), Figure(TORCH_SPAWN, metric)
    return Goal(SECTION, what, "faster", ours, other, at_least=wanted, quick=False)


def _many(method: str) -> list[Goal]:
    """Up to 2,000 ranks on one machine."""
    first, last = MANY[0], MANY[-1]
    many = Figure(Trial("many", f"rankspawn {method}", last, slow=True))
    held = Trial("many", f"rankspawn {method}", last, "held", slow=True)
    failing = Figure(Trial("teardown", f"rankspawn {method}", FAILING[-1], slow=True))
    growth = f"{method}, n={first} to {last:,}: exponent of growth"
    ended = f"one fails, {method}, n={FAILING[0]} to {FAILING[-1]:,}: exponent of growth"
    return [
        Goal(
            *(SECTION, f"start and end, {growth}", "exponent", many),
            unit="",
            at_most=1.05,
            nprocs=MANY,
        ),
        Goal(
            *(SECTION, ended, "exponent", failing),
            unit="",
            at_most=1.05,
            nprocs=FAILING,
        ),
        Goal(
            *(SECTION, f"{last:,} ranks, {method}: the parent's memory for each", "value"),
            Figure(held, "bytes_per_rank"),
            unit="kB",
            at_most=30,
        ),
        Goal(
            *(SECTION, f"{last:,} ranks, {method}: there at the same time", "value"),
            Figure(held, "held"),
            unit="",
            at_least=last,
        ),
    ]


GOALS = [
    *_beside_multiprocessing(),
    *_beside_others(),
    _with_torch("seconds", "the first time", 3.5),
    _with_torch("seconds_again", "the second time", 30.0),
    Goal(SECTION, "10,000 ranks planned", "value", Figure(PLAN), unit="s", at_most=1.0),
    *_many("fork"),
    *_many("forkserver"),
]
