"""A recording of a group of ranks: what happened to each, and when. Pure.

Times are seconds since the recording began. A rank that is started again goes on in its lane.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field

from rankspawn.trace.series import Series
from rankspawn.workers.lines import clean

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from rankspawn.parallel.statistics import Talk
    from rankspawn.supervise.reports import Steps
    from rankspawn.view.ranks import Usage

# Of all curves of all ranks, and for each of them at least and at most.
_POINTS, _FEWEST, _MOST = 300_000, 24, 1500
# How many curves a rank has, as a rule.
_CURVES = 5
# Names of values of a rank that get a curve.
_VALUES = 8
# Of an error, and of the stacks of one rank: their ends.
_LONGEST_TEXT = 20_000
# What the states of a group are called here, where more is known of them.
STAGES = {"starting": "starting", "loading": "importing", "running": "running"}
# After the function returned or raised: it reports, and leaves. And after another rank failed.
ENDING, STOPPING = "reporting", "stopping"
# What `clean` leaves of the codes for terminals.
_COLOURS = re.compile(r"\x1b\[[0-9;:]*m")


@dataclass(slots=True)
class Span:
    """A stage of a rank."""

    start: float
    end: float
    stage: str


@dataclass(slots=True)
class Ended:
    """How a rank ended.

    Attributes:
        state: ``done``, ``failed``, ``stopped`` or ``exited``.
        text: The same in words.
        began: When its end began: it had returned, or raised; or another one had.
        is_cause: Its failure came first.
        failure: Its traceback.
    """

    state: str
    text: str
    began: float
    is_cause: bool = False
    failure: str = ""


@dataclass(slots=True)
class Lane:
    """One rank from start to end, over all tries."""

    rank: int
    device: str
    most: int
    pids: list[int] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    tries: list[dict[str, Any]] = field(default_factory=list)
    curves: dict[str, Series] = field(default_factory=dict)
    total: float | None = None
    texts: dict[str, str] = field(default_factory=dict)
    lines: list[tuple[float | None, str]] = field(default_factory=list)
    stack: str = ""
    collectives: Mapping[str, Any] | None = None
    # How much it had printed, and when.
    printed: Series = field(default_factory=lambda: Series(400))

    def starts(self, at: float, pid: int) -> None:
        """A process of it was started at this time."""
        self.pids.append(pid)
        self.spans.append(Span(at, at, "starting"))
        self.printed = Series(400)

    def is_in(self, state: str, at: float) -> None:
        """It was seen in a state of its group."""
        stage = STAGES.get(state)
        if stage is None:  # its end is known more exactly later
            return
        last = self.spans[-1]
        if stage != last.stage:
            last.end = max(last.end, at)
            self.spans.append(Span(last.end, at, stage))
        last = self.spans[-1]
        last.end = max(last.end, at)

    def ends(self, ended: Ended, gone: float) -> None:
        """Its process is gone; what it did from its return to then was its ending."""
        last = self.spans[-1]
        began = min(max(ended.began, last.start), gone)
        last.end = began
        if gone > began:
            stage = STOPPING if ended.state == "stopped" else ENDING
            self.spans.append(Span(began, gone, stage))
        self.tries.append(
            {
                "end": round(gone, 3),
                "state": ended.state,
                "text": ended.text,
                "cause": ended.is_cause,
                "failure": ended.failure[-_LONGEST_TEXT:],
            }
        )

    def curve(self, name: str) -> Series:
        """The curve of that name."""
        if name not in self.curves:
            self.curves[name] = Series(self.most)
        return self.curves[name]

    def reports(self, steps: Steps, at: float) -> None:
        """It has said how far it is."""
        self.total = steps.total
        if steps.step is not None:
            self.curve("step").add(at, steps.step)
        for name, value in steps.values.items():
            if isinstance(value, str) or not math.isfinite(value):
                self.texts[name] = str(value)
            elif f"={name}" in self.curves or len(self.curves) < _VALUES + 4:
                self.curve(f"={name}").add(at, value)  # never the name of one of ours

    def takes(self, usage: Usage, at: float) -> None:
        """It takes that much CPU and memory."""
        parts = {
            "cpu": usage.cpu_percent,
            "memory": usage.memory,
            "gpu_memory": usage.gpu_memory,
        }
        for name, value in parts.items():
            if value is not None:
                self.curve(name).add(at, value)

    def talks(self, talk: Talk, at: float) -> None:
        """It has called so many collectives, and waited so long for each other rank in them."""
        waited, spent = sum(talk.waited_for.values()), sum(talk.seconds.values())
        self.curve("waited").add(at, waited)
        self.curve("talked").add(at, spent)
        self.collectives = {
            "seconds": round(spent, 3),
            "bytes": talk.bytes,
            "calls": {
                name: [number, round(talk.seconds[name], 3)] for name, number in talk.calls.items()
            },
            "waited": round(waited, 3),
            "for": {str(rank): round(seconds, 3) for rank, seconds in talk.waited_for.items()},
        }

    def as_data(self) -> dict[str, Any]:
        """Plain data."""
        until = self.tries[-1]["end"] if self.tries else math.inf  # some was seen later
        return {
            "rank": self.rank,
            "device": self.device,
            "pids": self.pids,
            "spans": [
                [round(span.start, 3), round(span.end, 3), span.stage]
                for span in self.spans
                if span.end > span.start or len(self.spans) == 1
            ],
            "tries": self.tries,
            "curves": {name: series.as_data(until) for name, series in self.curves.items()},
            "total": self.total,
            "texts": self.texts,
            "lines": [[None if at is None else round(at, 2), line] for at, line in self.lines],
            "stack": self.stack[-_LONGEST_TEXT:],
            "collectives": self.collectives,
        }


class Recording:
    """All ranks of one node, and how it ended.

    Args:
        places: Rank and device of each, by index.
        facts: What else is known of the run, for people: name to text.
    """

    def __init__(self, places: Sequence[tuple[int, str]], facts: Mapping[str, str]) -> None:
        most = _POINTS // (_CURVES * max(1, len(places)))
        self._most = min(_MOST, max(_FEWEST, most))
        self._lanes: dict[tuple[int, str], Lane] = {}
        for rank, device in places:
            self.lane_of(rank, device)
        self.facts: dict[str, str] = dict(facts)
        self.starts: list[float] = []
        self.seconds: float = 0.0
        self.error: str = ""
        self.has_failed: bool = False

    def lane_of(self, rank: int, device: str) -> Lane:
        """The lane of a rank; a new one if it had none."""
        key = rank, device
        if key not in self._lanes:
            self._lanes[key] = Lane(rank, device, self._most)
        return self._lanes[key]

    @property
    def lanes(self) -> list[Lane]:
        """All of them, in the order in which they came."""
        return list(self._lanes.values())

    def fails(self, error: BaseException | str) -> None:
        """The answer of the whole job is this error."""
        self.has_failed = True
        self.error = str(error)[-_LONGEST_TEXT:] or type(error).__name__
        stacks = getattr(error, "stacks", None)
        if isinstance(stacks, dict):
            for lane in self.lanes:
                lane.stack = str(stacks.get(lane.rank, ""))

    def as_data(self) -> dict[str, Any]:
        """Plain data, as JSON has it."""
        return {
            "version": 1,
            "facts": self.facts,
            "seconds": round(self.seconds, 3),
            "starts": [round(start, 3) for start in self.starts],
            "failed": self.has_failed,
            "error": self.error,
            "ranks": [lane.as_data() for lane in self.lanes],
        }


def lines_of(
    data: bytes, begin: int, start: int, printed: Series
) -> list[tuple[float | None, str]]:
    """The whole lines of the end of an output, each with the time by which it was there.

    Args:
        data: What was read.
        begin: Where in the output that is.
        start: Where the output begins.
        printed: How much was there at which time.
    """
    pieces = data.split(b"\n")
    if begin > start:
        begin += len(pieces[0]) + 1
        pieces = pieces[1:]
    if pieces and not pieces[-1]:
        pieces.pop()
    lines: list[tuple[float | None, str]] = []
    at = 0
    for piece in pieces:
        begin += len(piece) + 1
        while at < len(printed.values) and printed.values[at] < begin - 1:
            at += 1
        time = printed.times[at] if at < len(printed.times) else None
        text = _COLOURS.sub("", clean(piece).decode("utf-8", "replace"))
        lines.append((time, text[:2000]))
    return lines


def describe_end(state: str, exit_code: int, seconds: float) -> str:
    """A short sentence on how a rank ended."""
    took = f"after {seconds:.2f} s"
    if state == "done":
        return f"returned {took}"
    if state == "stopped":
        return f"stopped {took}, because of others"
    how = f"by signal {-exit_code}" if exit_code < 0 else f"with exit code {exit_code}"
    return f"failed {how} {took}"
