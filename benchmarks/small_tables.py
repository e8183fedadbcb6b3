"""Tables of other pages than that of the goals: a few trials beside each other. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from benchmarks.figures import per_round, spread
from benchmarks.goals import forks, troubles, values, waiting
from benchmarks.markdown import markdown, when
from benchmarks.records import Figure, Measurement, Table, Trial

_MULTIPROCESSING, _TORCH, _PADDLE = "multiprocessing", "torch 2.13.0", "Paddle 3.3.1"


def small_tables(table: Table) -> dict[str, str]:
    """Each by the name of its part of a page."""
    return {
        "beside the alternatives": _alternatives(table),
        "launchers": _launchers(table),
        "trouble": _trouble(table),
        "regrouping": _regrouping(table),
        "forks": _forks(table),
    }


def _alternatives(table: Table) -> str:
    start = Trial("start", "", 8)
    rows: list[tuple[str, Sequence[Trial | None]]] = []
    for method in ("spawn", "forkserver", "fork"):
        families = ("rankspawn", "multiprocessing", "torch", "Paddle")
        found = [replace(start, contender=f"{family} {method}") for family in families]
        what = f"start and join 8 workers that do nothing, `{method}`"
        rows.append((what, found if method == "spawn" else [*found[:2], None, None]))
    names = ("rankspawn spawn", "multiprocessing spawn", "torch spawn", "Paddle spawn")
    rows.append(
        ("a 256 MiB array to 8 workers", [replace(values.OURS, contender=n) for n in names])
    )
    served = "the same, `forkserver` with NumPy preloaded"
    rows.append((served, [values.SERVED, None, None, None]))
    headings = ("", "rankspawn", _MULTIPROCESSING, _TORCH, _PADDLE)
    cells = [(what, *(_beside(table, one, trials[0]) for one in trials)) for what, trials in rows]
    known = [trial for _, trials in rows for trial in trials if trial is not None]
    return f"{markdown(headings, cells)}\n\n{when(_rows(table, known))}"


def _launchers(table: Table) -> str:
    named = {
        "`rankrun`": waiting.LAUNCH,
        "`torchrun` (torch 2.13.0)": waiting.TORCHRUN,
        "`paddle.distributed.launch` (Paddle 3.3.1)": waiting.PADDLE,
        "two bare `python empty.py` at the same time": waiting.BARE,
    }
    cells = [(name, _beside(table, trial, waiting.LAUNCH)) for name, trial in named.items()]
    return f"{markdown(('', 'time'), cells)}\n\n{when(_rows(table, named.values()))}"


def _trouble(table: Table) -> str:
    trials = [goal.ours.trial for goal in troubles.GOALS]
    cells = [(trial.kind, _seconds(table, trial)) for trial in trials]
    return f"{markdown(('trouble: until', 'seconds'), cells)}\n\n{when(_rows(table, trials))}"


def _regrouping(table: Table) -> str:
    torchrun = replace(waiting.REGROUP, contender="torchrun")
    cells = [
        ("a worker is killed", _seconds(table, waiting.REGROUP), _seconds(table, torchrun)),
        ("elastic: a launcher is killed", _seconds(table, waiting.LAUNCHER), "the others run on"),
    ]
    headings = ("trouble", "`rankrun`, s", "`torchrun`, s (torch 2.13.0)")
    known = (waiting.REGROUP, waiting.LAUNCHER, torchrun)
    return f"{markdown(headings, cells)}\n\n{when(_rows(table, known))}"


def _forks(table: Table) -> str:
    """What a fork touches, and how much less it is without each part of ours."""
    named = {
        "a bare fork that leaves at once": forks.BARE,
        "`multiprocessing`": forks.MULTIPROCESSING,
        "rankspawn": forks.OURS,
        **{f"without {trial.kind}": trial for trial in forks.WITHOUT},
    }
    whole = _median(table, forks.OURS, "pages")
    cells = []
    for name, trial in named.items():
        pages, cpu = _median(table, trial, "pages"), _median(table, trial, "cpu")
        if pages is None or cpu is None or whole is None:
            cells.append((name, "not measured", "", ""))
        else:
            saved = f"{whole - pages:+.0f}" if trial.kind else ""
            cells.append((name, f"{pages:.0f}", saved, f"{1e3 * cpu:.2f} ms"))
    headings = ("one of 32 forks", "pages", "fewer pages", "CPU")
    rows = [row for trial in named.values() for row in table.rows(Figure(trial, "pages"))]
    return f"{markdown(headings, cells)}\n\n{when(rows)}"


def _median(table: Table, trial: Trial, metric: str) -> float | None:
    known = spread(table.rounds(trial, metric).values())
    return None if known is None else known.median


def _beside(table: Table, trial: Trial | None, ours: Trial | None) -> str:
    """Milliseconds, and how many times as long it is as ours."""
    if trial is None or ours is None:
        return ""
    run = table.run_of([Figure(trial), Figure(ours)])
    known = spread(table.rounds(trial, run=run).values())
    if known is None:
        return "not measured"
    text = (
        f"{1e3 * known.median:,.0f} ms" if known.median >= 0.1 else f"{1e3 * known.median:.3g} ms"
    )
    if run is None or trial == ours:
        return text
    ratio = spread(per_round(table.rounds(trial, run=run), table.rounds(ours, run=run)).values())
    return text if ratio is None else f"{text} ({ratio.median:.3g} times)"


def _seconds(table: Table, trial: Trial) -> str:
    known = spread(table.rounds(trial).values())
    if known is None:
        return "not measured"
    several = f" ({known.low:.2g} to {known.high:.2g})" if known.count > 1 else ""
    return f"{known.median:.2g}{several}"


def _rows(table: Table, trials: Iterable[Trial]) -> list[Measurement]:
    return [row for trial in trials for row in table.rows(Figure(trial))]
