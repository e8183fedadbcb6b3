"""Running jobs as text for people, and as plain data for programs. Pure."""

from __future__ import annotations

import os
import time
from collections import Counter
from datetime import datetime

from rankspawn.supervise.reports import unpack_steps
from rankspawn.view.ranks import RankRow, Usage, percent_text, size_text

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from rankspawn.inspect.finding import RankSeen, RunningJob

# Of more ranks the rest is counted: a job of a thousand must not bury the others.
_MOST_LINES = 16
_HEAD = ("rank", "pid", "device", "state", "CPU", "memory", "step")
_RIGHT = {0, 1, 4, 5}
_LONGEST_WHAT = 80


def job_rows(job: RunningJob, usage: Mapping[int, Usage]) -> list[RankRow]:
    """Its ranks as the live view has them."""
    return [
        RankRow(
            rank.rank,
            rank.device,
            rank.state,
            usage.get(rank.pid, Usage()),
            unpack_steps(rank.steps),
        )
        for rank in job.ranks
    ]


def describe_jobs(jobs: Sequence[RunningJob], usage: Mapping[int, Usage]) -> str:
    """All jobs: for each a head, a table of its ranks, and its logs."""
    return "\n\n".join(_describe(job, usage) for job in jobs)


def _describe(job: RunningJob, usage: Mapping[int, Usage]) -> str:
    rows = job_rows(job, usage)
    cells = [
        (
            str(row.rank),
            str(rank.pid),
            row.device,
            row.state,
            percent_text(row.usage.cpu_percent),
            size_text(row.usage.memory),
            "" if row.steps is None else row.steps.describe(),
        )
        for rank, row in zip(job.ranks, rows, strict=True)
    ]
    lines = [headline(job), _totals(job, rows)]
    lines += _table([_HEAD, *cells[:_MOST_LINES]])
    if len(cells) > _MOST_LINES:
        lines.append(f"  {len(cells) - _MOST_LINES} more ranks: see rankspawn ps --json")
    if logs := _logs(job.ranks):
        lines.append(f"  logs: {logs}")
    return "\n".join(lines)


def headline(job: RunningJob) -> str:
    """What a job is, in a line."""
    what = job.what if len(job.what) <= _LONGEST_WHAT else job.what[: _LONGEST_WHAT - 3] + "..."
    return f"{job.id}  {what}, {job.kind} of process {job.parent}"


def _totals(job: RunningJob, rows: Sequence[RankRow]) -> str:
    when = datetime.fromtimestamp(job.started).strftime("%Y-%m-%d %H:%M:%S")
    states = Counter(row.state for row in rows)
    said = ", ".join(f"{count} {state}" for state, count in states.items()) or "being started"
    cpu = [row.usage.cpu_percent for row in rows if row.usage.cpu_percent is not None]
    memory = [row.usage.memory for row in rows if row.usage.memory is not None]
    parts = [f"since {when} ({_duration(time.time() - job.started)})", said]
    if cpu:
        parts.append(f"CPU {percent_text(sum(cpu))}")
    if memory:
        parts.append(f"memory {size_text(sum(memory))}")
    return f"  {'; '.join(parts)}"


def _duration(seconds: float) -> str:
    minutes, rest = divmod(max(0, int(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    shown = [f"{count} {unit}" for count, unit in parts if count][:2]
    return " ".join(shown) or "0 s"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    # A column in which nothing is known is left out.
    used = [at for at in range(len(rows[0])) if any(row[at] for row in rows[1:])]
    widths = {at: max(len(row[at]) for row in rows) for at in used}
    return [
        "  "
        + "  ".join(
            row[at].rjust(widths[at]) if at in _RIGHT else row[at].ljust(widths[at]) for at in used
        ).rstrip()
        for row in rows
        if used
    ]


def _logs(ranks: Sequence[RankSeen]) -> str:
    """Where the logs are: of many in one folder, their names alone."""
    paths = list(dict.fromkeys(rank.log for rank in ranks if rank.log is not None))
    folders = {os.path.dirname(path) for path in paths}
    if len(paths) < 2 or len(folders) > 1:
        return ", ".join(paths)
    names = [os.path.basename(path) for path in paths]
    shown = ", ".join(names[:_MOST_LINES]) + (", ..." if len(names) > _MOST_LINES else "")
    return f"{folders.pop()}: {shown}"


def jobs_as_data(jobs: Sequence[RunningJob], usage: Mapping[int, Usage]) -> list[dict[str, Any]]:
    """The same for programs."""
    return [
        {
            "job": job.id,
            "kind": job.kind,
            "what": job.what,
            "pid": job.parent,
            "started": job.started,
            "grace_period": job.grace,
            "nprocs": len(job.ranks),
            "ranks": [
                _rank_as_data(rank, row)
                for rank, row in zip(job.ranks, job_rows(job, usage), strict=True)
            ],
        }
        for job in jobs
    ]


def _rank_as_data(rank: RankSeen, row: RankRow) -> dict[str, Any]:
    return {
        "rank": rank.rank,
        "pid": rank.pid,
        "device": rank.device or None,
        "state": rank.state,
        "cpu_percent": row.usage.cpu_percent,
        "memory": row.usage.memory,
        "step": row.steps.step if row.steps else None,
        "total": row.steps.total if row.steps else None,
        "values": dict(row.steps.values) if row.steps else {},
        "log": rank.log,
    }
