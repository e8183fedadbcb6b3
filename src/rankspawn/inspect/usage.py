"""How much CPU and memory ranks take, with all that they started."""

from __future__ import annotations

import time
from collections import defaultdict

import psutil

from rankspawn.view.ranks import Usage
from rankspawn.workers.marker import list_processes, parent_of

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable


class TreeMeter:
    """Measures processes and their descendants, from one look to the next."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._looked = 0.0

    def look(self, roots: Iterable[int]) -> dict[int, Usage]:
        """Process to what it and its descendants take; the first look knows no CPU."""
        children = defaultdict(list)
        for pid in list_processes():
            children[parent_of(pid)].append(pid)
        now = time.monotonic()
        since, self._looked = now - self._looked, now
        before, self._seconds = self._seconds, {}
        return {root: self._look_at(root, children, before, since) for root in roots}

    def _look_at(
        self, root: int, children: dict[int, list[int]], before: dict[int, float], since: float
    ) -> Usage:
        used, memory, waiting = 0.0, 0, [root]
        while waiting:
            pid = waiting.pop()
            waiting += children[pid]
            try:
                process = psutil.Process(pid)
                times = process.cpu_times()
                memory += process.memory_info().rss
            except (psutil.Error, OSError):  # it ended
                continue
            self._seconds[pid] = times.user + times.system
            # One that is new has used all of it since.
            used += self._seconds[pid] - before.get(pid, 0.0)
        cpu = 100 * used / since if root in before else None
        return Usage(cpu, memory or None)
