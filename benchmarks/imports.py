"""Which modules an import of rankspawn and a first spawn load, and what each of them takes."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.markdown import markdown, when
from benchmarks.records import Measurement

_METRIC = "import of "
# What takes less says nothing: a clock's noise is about as much.
LEAST_SECONDS = 0.0005


def import_table(measured: Sequence[Measurement]) -> str:
    """Modules by their own time, the longest first; and the sum of the others."""
    by_module: dict[str, list[float]] = {}
    known = [one for one in measured if one.trial.script == "import_times"]
    for one in known:
        if one.metric.startswith(_METRIC):
            by_module.setdefault(one.metric.removeprefix(_METRIC), []).append(one.value)
    if not by_module:
        return "Not measured."
    times = {module: sorted(each)[len(each) // 2] for module, each in by_module.items()}
    shown = {module: own for module, own in times.items() if own >= LEAST_SECONDS}
    rest = [own for module, own in times.items() if module not in shown]
    rows = [(f"`{module}`", own) for module, own in shown.items()]
    rows.sort(key=lambda row: (-row[1], row[0]))
    rows += [(f"{len(rest)} others", sum(rest)), (f"all {len(times)}", sum(times.values()))]
    table = markdown(
        ("module", "its own time"), [(who, f"{1e3 * own:.1f} ms") for who, own in rows]
    )
    return f"{table}\n\n{when(known)}"
