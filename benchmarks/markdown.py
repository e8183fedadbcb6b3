"""Text of pages: a table, and when and where something was measured. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from benchmarks.records import Measurement


def markdown(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table."""
    lines = ["| " + " | ".join(row) + " |" for row in (headings, *rows)]
    lines.insert(1, "|" + "---|" * len(headings))
    return "\n".join(line.replace("|  |", "| |") for line in lines)


def when(rows: Iterable[Measurement]) -> str:
    """A sentence: on what machines, on what days and beside how much other work."""
    known = list(rows)
    if not known:
        return "Nothing was measured."
    texts = []
    for machine in sorted({row.machine for row in known}):
        days = sorted({row.date[:10] for row in known if row.machine == machine})
        span = days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}"
        texts.append(f"{machine}, {span}, load {loads(r for r in known if r.machine == machine)}")
    return f"Measured on: {'; '.join(texts)}."


def loads(rows: Iterable[Measurement]) -> str:
    """How many processes ran or wanted to: from the least to the most."""
    values = [row.load for row in rows]
    if not values:
        return ""
    low, high = f"{min(values):.1f}", f"{max(values):.1f}"
    return low if low == high else f"{low} to {high}"


def peers(rows: Iterable[Measurement]) -> str:
    """A sentence: which versions of others took part."""
    found = {each for row in rows for each in row.versions.split(", ") if each}
    return f"Beside: {', '.join(sorted(found))}." if found else "Beside nobody."
