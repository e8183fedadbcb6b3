"""The queues of a context: what Paddle gives its users, without the pipes.

Each has at most one item, which is there once the rank ended. ``get`` waits for that; where
nothing will ever come it raises instead of waiting for ever.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from typing import Any, Protocol


class RankView(Protocol):
    """What a queue asks its context."""

    def wait_for_rank(self, at: int, deadline: float | None, *, failures: bool) -> bool:
        """Wait for the end of one rank; False if the time ran out first."""

    def has_ended(self, at: int, *, failures: bool) -> bool:
        """The rank ended for good, seen without waiting."""


class RankQueue:
    """One rank's result, or its error text; taken at most once."""

    def __init__(
        self,
        view: RankView,
        at: int,
        has_item: Callable[[int], bool],
        take: Callable[[int], Any],
        *,
        failures: bool,
    ) -> None:
        self._failures = failures
        self._view = view
        self._at = at
        self._has_item = has_item
        self._take = take
        self._taken = False

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The item, once the rank ended.

        Raises:
            queue.Empty: It did not end in time, the item was taken before, or there is none.
            ProcessException: From a return queue, if the rank failed.
        """
        deadline = None if timeout is None else time.monotonic() + max(0.0, timeout)
        if not block:
            deadline = 0.0
        if self._taken or not self._view.wait_for_rank(self._at, deadline, failures=self._failures):
            raise queue.Empty
        item = self._take(self._at)
        self._taken = True
        return item

    def get_nowait(self) -> Any:
        """The item, if it is there."""
        return self.get(block=False)

    def empty(self) -> bool:
        """True if there is no item now."""
        if self._taken or not self._view.has_ended(self._at, failures=self._failures):
            return True
        return not self._has_item(self._at)

    def qsize(self) -> int:
        """1 or 0."""
        return int(not self.empty())
