"""How fast a rank gets on, and how long it still takes, from the steps that were seen. Pure."""

from __future__ import annotations

from collections import deque

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.supervise.reports import Steps

# Over how many seconds the rate is taken, and how many looks of these are kept.
_WINDOW, _LOOKS = 60.0, 60
# Less says nothing: the first steps are slow, as a rule.
_SHORTEST = 2.0


class Pace:
    """The pace of one rank."""

    def __init__(self) -> None:
        # When it was seen at which step.
        self._seen: deque[tuple[float, float]] = deque()
        self._latest = 0.0

    def describe(self, steps: Steps | None, now: float) -> str:
        """Rate and time left, as in ``4.2/s 3:20 left``; empty where they are not known.

        Args:
            steps: What the rank said last.
            now: The time, on any clock that only goes forward.
        """
        if steps is None or steps.step is None:
            return ""
        self._note(steps.step, now)
        rate = self._rate(now)
        if not rate:
            return ""
        words = rate_text(rate)
        if steps.total is not None and steps.total > steps.step:
            words += f" {time_text((steps.total - steps.step) / rate)} left"
        return words

    def _note(self, step: float, now: float) -> None:
        seen = self._seen
        if seen and step < self._latest:  # it began again: another epoch, or another try
            seen.clear()
        self._latest = step
        if not seen or (step > seen[-1][1] and now - seen[-1][0] >= _WINDOW / _LOOKS):
            seen.append((now, step))
        # A rank that stands still gets slower as time goes by.
        while len(seen) > 2 and now - seen[1][0] > _WINDOW:
            seen.popleft()

    def _rate(self, now: float) -> float:
        began, first = self._seen[0]
        took = now - began
        return (self._latest - first) / took if took >= _SHORTEST else 0.0


def rate_text(rate: float) -> str:
    """A rate in words: steps in a second, or seconds for a step."""
    return f"{rate:.{3 if rate < 1000 else 4}g}/s" if rate >= 0.5 else f"{time_text(1 / rate)} each"


def time_text(seconds: float) -> str:
    """A time in words, as in ``45 s``, ``3:20`` and ``26:03:20`` (hours first)."""
    if seconds < 60:
        return f"{seconds:.0f} s" if seconds >= 10 else f"{seconds:.2g} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
