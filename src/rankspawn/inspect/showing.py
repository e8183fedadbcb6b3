"""What a job does, as it goes on: its live table, and its logs."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from contextlib import closing, suppress

from rankspawn.descriptors import Owned, write_patiently
from rankspawn.inspect.finding import RunningJob, find_jobs, runs
from rankspawn.inspect.tables import headline, job_rows
from rankspawn.inspect.usage import TreeMeter
from rankspawn.view.ranks import plain_lines
from rankspawn.workers.tail import Growth, Tail

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self

    from rankspawn.inspect.finding import RankSeen

_TABLE_SECONDS, _LINES_SECONDS = 1.0, 5.0
# How often it is looked whether anybody is left who might write; and while a rank has yet to open
# its log, which is found only as long as that rank runs.
_LOOK_SECONDS, _SOON_SECONDS = 0.5, 0.02


def show_top(job: RunningJob, interval: float | None) -> None:
    """Show the job's ranks over and over, until it ends or somebody interrupts."""
    if sys.stdout.isatty():
        with suppress(ImportError):
            _show_table(job, interval or _TABLE_SECONDS)
            return
    for now, meter in _looks(job, interval or _LINES_SECONDS):
        usage = meter.look(rank.pid for rank in now.ranks)
        _say("\n".join(plain_lines(job_rows(now, usage), time.time() - now.started)))


def _show_table(job: RunningJob, interval: float) -> None:
    from rich.console import Console, Group
    from rich.live import Live
    from rich.text import Text

    from rankspawn.view.live import make_table

    console = Console()
    with Live(console=console, auto_refresh=False, transient=False) as live:
        for now, meter in _looks(job, interval):
            usage = meter.look(rank.pid for rank in now.ranks)
            rows = job_rows(now, usage)
            size = console.size
            table = make_table(rows, time.time() - now.started, size.width, size.height - 2)
            live.update(Group(Text(headline(now)), table), refresh=True)


def _looks(job: RunningJob, interval: float) -> Iterator[tuple[RunningJob, TreeMeter]]:
    """The job as it is now, as long as it runs; a restart of it is the same job."""
    meter = TreeMeter()
    meter.look(rank.pid for rank in job.ranks)
    now: RunningJob | None = job
    while now is not None:
        yield now, meter
        time.sleep(interval)
        now = _again(now)
    _say(f"job {job.id} has ended")


def _again(job: RunningJob) -> RunningJob | None:
    jobs = [each for each in find_jobs() if each.parent == job.parent]
    same = [each for each in jobs if each.id == job.id]
    # After a restart it has another name, but the same parent and what it runs.
    return next((each for each in [*same, *jobs] if each.what == job.what), None)


def show_logs(job: RunningJob, rank: int | None, *, follow: bool) -> None:
    """Copy what ranks have printed; with ``follow`` also what they print, until they end.

    Args:
        job: Whose ranks.
        rank: Only this one.
        follow: Go on.
    """
    ranks = job.chosen(rank)
    with _Logs(has_prefixes=len(ranks) > 1) as logs:
        logs.open_new(ranks)
        logs.copy(is_last=not follow)
        if not follow:
            return
        with closing(Growth()) as growth:
            growth.watch_only(logs.paths)
            pids = [each.pid for each in ranks if each.is_alive]
            is_over = False
            while not is_over:
                # A rank opens its log when it has started, which may be after we looked.
                is_early = any(each.will_print for each in ranks)
                growth.wait(_SOON_SECONDS if is_early else _LOOK_SECONDS)
                if is_early:
                    ranks = [each for each in _now(job) if rank in (None, each.rank)]
                    if logs.open_new(ranks):
                        growth.watch_only(logs.paths)
                # Looked at before what is left is read, or the last words could be missed.
                is_over = not any(runs(pid) for pid in pids)
                logs.copy(is_last=is_over)


def _now(job: RunningJob) -> Sequence[RankSeen]:
    """The ranks of the job as they are now; none if it has ended."""
    return next((each.ranks for each in find_jobs() if each.mark == job.mark), ())


class _Logs:
    """The logs of some ranks, each copied once."""

    def __init__(self, *, has_prefixes: bool) -> None:
        self._has_prefixes = has_prefixes
        self._lines: dict[str, _Lines] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for lines in self._lines.values():
            lines.close()

    @property
    def paths(self) -> list[str]:
        return list(self._lines)

    def open_new(self, ranks: Sequence[RankSeen]) -> bool:
        """Open those that are not open yet; whether there were any."""
        count = len(self._lines)
        printing = Counter(rank.log for rank in ranks)
        for rank in ranks:
            if rank.log is not None and rank.log not in self._lines:
                # A file that several print to is copied as it is.
                own = self._has_prefixes and printing[rank.log] == 1
                try:
                    file = Owned(os.open(rank.log, os.O_RDONLY | os.O_CLOEXEC))
                except OSError:  # it was removed; a rank with a file in memory has ended
                    continue
                self._lines[rank.log] = _Lines(f"[rank {rank.rank}] " if own else "", Tail(file))
        return len(self._lines) > count

    def copy(self, *, is_last: bool) -> None:
        """Copy what was added to each."""
        for lines in self._lines.values():
            lines.copy(is_last=is_last)


class _Lines:
    """One log on its way to standard output, whole lines with a prefix."""

    def __init__(self, prefix: str, tail: Tail) -> None:
        self._prefix, self._tail, self._rest = prefix.encode(), tail, b""

    def copy(self, *, is_last: bool) -> None:
        """Write what was added; a line without an end waits for it, unless this is the last."""
        while chunk := self._tail.read():
            text = self._rest + chunk
            end = text.rfind(b"\n") + 1
            self._rest = text[end:]
            self._write(text[:end])
        if is_last and self._rest:
            self._write(self._rest + b"\n")
            self._rest = b""

    def close(self) -> None:
        """Close the file."""
        self._tail.close()

    def _write(self, text: bytes) -> None:
        data = b"".join(self._prefix + line for line in text.splitlines(keepends=True))
        sys.stdout.flush()
        while data:
            data = data[write_patiently(sys.stdout.fileno(), data) :]


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201 - what the command is for
