"""Goal 7: cost in proportion to the number of workers, up to a thousand."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.figures import growth_exponent, judged_by_medians, spread
from benchmarks.records import Scale, Table, Trial
from benchmarks.report import Line, milliseconds

GOAL = 7
NPROCS = (125, 250, 500, 1000)
METHODS = ("fork", "forkserver")
PLAN = Trial("planning", "rankspawn plan", 10_000, tries=3)
# Twice the workers may take up to 2.14 times as long: caches and page tables grow, too. A
# cost that is quadratic anywhere shows as an exponent that goes towards 2.
LINEAR = 1.1


def trials(scale: Scale) -> list[Trial]:
    """A thousand workers take seconds; every other round is enough for a straight line."""
    found = [PLAN]
    for nprocs in NPROCS:
        found += [Trial("start", f"rankspawn {method}", nprocs) for method in METHODS]
        found += [Trial("teardown", f"rankspawn {method}", nprocs) for method in METHODS]
        found += [Trial("start", "multiprocessing fork", nprocs)]
    return [replace(one, every=1 if scale.quick else 2) for one in found]


def lines(table: Table, _: Scale) -> list[Line]:
    """The exponent of growth, and the time of the plan."""
    planned = spread(table.rounds(PLAN).values())
    found = [
        Line(
            GOAL,
            "10,000 ranks planned",
            milliseconds(planned),
            "",
            planned,
            unit=" s",
            at_most=1.0,
        )
    ]
    for script, what in (("start", "start"), ("teardown", "one fails")):
        for method in METHODS:
            found.append(_growth(table, script, f"rankspawn {method}", f"{what}, {method}", LINEAR))
    found.append(_growth(table, "start", "multiprocessing fork", "start, multiprocessing", None))
    return [line for line in found if line.has_goal or line.figure is not None]


def _growth(table: Table, script: str, contender: str, what: str, wanted: float | None) -> Line:
    known = {nprocs: table.rounds(Trial(script, contender, nprocs)) for nprocs in NPROCS}
    ends = (NPROCS[0], NPROCS[-1])
    return Line(
        GOAL,
        f"{what}, n=125 to 1,000: exponent of growth",
        ", ".join(f"n={n:,} {milliseconds(spread(known[n].values()))}" for n in ends),
        "",
        judged_by_medians(known, growth_exponent),
        unit="",
        at_most=wanted,
    )
