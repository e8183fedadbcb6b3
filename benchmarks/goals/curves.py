"""What pictures show: time against the number of ranks and against size. No goals."""

from __future__ import annotations

from benchmarks.records import GIB, KIB, MIB, Figure, Goal, Trial

SECTION = "curves"
NPROCS = (1, 2, 8, 32, 125, 500, 2000)
# Where a peer takes more than some seconds, its line ends.
STARTERS = {
    "rankspawn fork": 2000,
    "rankspawn forkserver": 2000,
    "rankspawn spawn": 500,
    "multiprocessing fork": 2000,
    "multiprocessing forkserver": 500,
    "multiprocessing spawn": 500,
    "loky": 32,
    "torch spawn": 8,
    "Paddle spawn": 8,
}
SIZES = (4 * KIB, 64 * KIB, 1 * MIB, 16 * MIB, 256 * MIB, GIB)
# Two workers: a peer copies what it sends for each of them.
SENDERS = ("rankspawn forkserver", "multiprocessing forkserver", "loky")
RETURNERS = ("rankspawn spawn", "concurrent.futures spawn", "loky")
REDUCED = Trial("collectives", "torch", 2, "all sizes", slow=True)


def _curve(trial: Trial, metric: str = "seconds") -> Goal:
    what = f"{trial.script}, {trial.contender}, n={trial.nprocs}, {trial.size} bytes"
    return Goal(SECTION, what, "value", Figure(trial, metric), unit="ms", quick=False)


def start(contender: str, nprocs: int) -> Trial:
    """One point of the picture of starts."""
    slow = contender.startswith(("torch", "Paddle")) or nprocs > 100
    return Trial("start", contender, nprocs, tries=1 if slow else 3, slow=slow)


STARTS = [start(name, n) for name, most in STARTERS.items() for n in NPROCS if n <= most]
ARGUMENTS = [
    Trial("arguments", name, 2, "NumPy", size, slow=size > MIB)
    for name in SENDERS
    for size in SIZES
]
RESULTS = [
    Trial("results", name, 2, "NumPy", size, slow=size > MIB)
    for name in RETURNERS
    for size in SIZES
]
GOALS = [*map(_curve, (*STARTS, *ARGUMENTS, *RESULTS)), _curve(REDUCED, "barrier: rankspawn")]
