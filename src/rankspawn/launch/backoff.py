"""How long a job waits before it starts its workers again.

What fails at once fails again at once, for some time: a device that is being reset, a file server
that is away. So the first restart is immediate, and those after it wait longer and longer, as long
as no try has lasted.
"""

from __future__ import annotations

import threading
import time

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

# Seconds after which a failure has nothing to do with the one before it.
LASTING = 60.0
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0


class Backoff:
    """The pauses of a job on one machine; one on several has them in its state (``job_state``).

    Args:
        clock: Gives the time in seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._short_tries = 0

    def begin(self) -> None:
        """A try begins."""
        self._began = self._clock()

    def pause(self) -> float:
        """Seconds to wait after a try that failed; 0 for none."""
        self._short_tries = count_tries(self._short_tries, self._clock() - self._began)
        return pause_after(self._short_tries)


def count_tries(before: int, lasted: float) -> int:
    """How many tries have failed in a row, none of which lasted, or one that did.

    Args:
        before: The same before the last try.
        lasted: Seconds from its start to its failure.
    """
    return before + 1 if lasted < LASTING else 1


def pause_after(tries: int) -> float:
    """Seconds to wait after so many failed tries; 0 for none."""
    if tries <= 1:
        return 0.0
    # Bounded before it is shifted: a job may be restarted a million times.
    return min(_LONGEST_PAUSE, _FIRST_PAUSE * (1 << min(tries - 2, 10)))


def call_later(seconds: float, call: Callable[[], None]) -> Callable[[], None]:
    """Have a call made in a thread of its own; returns what calls it off."""
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
    return timer.cancel
