"""The memory of the embedded master: entries, revisions and leases within fixed limits.

Pure: no clock and no socket in here. What it can hold is bounded, so that not even somebody
with the job's token can make the launcher run out of memory.
"""

from __future__ import annotations

import heapq
from collections import deque
from dataclasses import dataclass

from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    Lease,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
    StoreRefusedError,
)

LONGEST_KEY = 512


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be stored; a thousand nodes with eight workers each need about a tenth of it."""

    keys: int = 20_000
    key_bytes: int = LONGEST_KEY
    value_bytes: int = 1 << 20
    total_bytes: int = 64 << 20
    leases: int = 20_000
    # Changes that are remembered; who has missed more reads everything again.
    history: int = 20_000


@dataclass(slots=True)
class _HeldLease:
    seconds: float
    ends_at: float
    keys: set[str]


class KeyValues:
    """Entries with revisions, some of them bound to leases.

    Args:
        first_revision: What revisions count up from. A store that takes the place of another
            begins above all of that one's, so that nobody takes the one for the other.
        limits: What may be stored.
    """

    def __init__(self, first_revision: int = 0, limits: Limits | None = None) -> None:
        self.revision: int = first_revision
        self._limits = limits or Limits()
        self._entries: dict[str, Entry] = {}
        self._lease_of: dict[str, int] = {}
        self._leases: dict[int, _HeldLease] = {}
        # (earliest end, lease), once per lease: renewing one does not touch its place.
        self._ends: list[tuple[float, int]] = []
        self._last_lease = first_revision
        self._bytes = 0
        self._history: deque[tuple[int, str]] = deque()
        self._known_since = first_revision

    def get(self, key: str) -> Entry | None:
        """One entry; None if there is none."""
        return self._entries.get(key)

    def prefix(self, prefix: str) -> Snapshot:
        """All entries whose keys begin with ``prefix``."""
        found = tuple(entry for key, entry in self._entries.items() if key.startswith(prefix))
        return Snapshot(self.revision, found)

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        """Write an entry; see :class:`~rankspawn.launch.rendezvous.store.Store`."""
        if lease and lease not in self._leases:
            raise LeaseExpiredError(f"there is no lease {lease}")
        before = self._entries.get(key)
        self._check_room(key, value, before)
        self._unbind(key)
        if lease:
            self._leases[lease].keys.add(key)
            self._lease_of[key] = lease
        self._note_change(key)
        created = before.created if before else self.revision
        self._bytes += _size(key, value) - (_size(key, before.value) if before else 0)
        self._entries[key] = Entry(key, value, created, self.revision)
        return self.revision

    def swap(self, key: str, expected: int, value: str | None, *, lease: int = 0) -> int | None:
        """Write or delete an entry if its revision is still the expected one."""
        before = self._entries.get(key)
        if (before.revision if before else 0) != expected:
            return None
        if value is not None:
            return self.put(key, value, lease=lease)
        self.delete(key)
        return self.revision

    def delete(self, key: str) -> None:
        """Delete an entry, if it is there."""
        before = self._entries.pop(key, None)
        if before is not None:
            self._unbind(key)
            self._bytes -= _size(key, before.value)
            self._note_change(key)

    def grant(self, seconds: float, now: float) -> Lease:
        """A new lease."""
        if len(self._leases) >= self._limits.leases:
            raise StoreRefusedError(f"the store has {self._limits.leases} leases, its limit")
        self._last_lease += 1
        self._leases[self._last_lease] = _HeldLease(seconds, now + seconds, set())
        heapq.heappush(self._ends, (now + seconds, self._last_lease))
        return Lease(self._last_lease, seconds)

    def renew(self, lease: int, now: float) -> None:
        """Have a lease last its whole time again."""
        held = self._leases.get(lease)
        if held is None:
            raise LeaseExpiredError(f"there is no lease {lease}")
        held.ends_at = now + held.seconds

    def revoke(self, lease: int) -> None:
        """End a lease, and delete what is bound to it."""
        held = self._leases.pop(lease, None)
        for key in sorted(held.keys if held else ()):
            self.delete(key)
        # Their places are let go when their time is up, unless more come and go before.
        if len(self._ends) > 2 * self._limits.leases:
            self._ends = [(other.ends_at, number) for number, other in self._leases.items()]
            heapq.heapify(self._ends)

    def expire(self, now: float) -> float | None:
        """End all leases whose time is up; return when the next one may end."""
        while self._ends:
            ends_at, lease = self._ends[0]
            held = self._leases.get(lease)
            if held is None:
                heapq.heappop(self._ends)
            elif held.ends_at > ends_at:
                heapq.heapreplace(self._ends, (held.ends_at, lease))
            elif ends_at <= now:
                heapq.heappop(self._ends)
                self.revoke(lease)
            else:
                return ends_at
        return None

    def prolong(self, seconds: float) -> None:
        """Add to the time of all leases; always safe, because their holders assume less."""
        for held in self._leases.values():
            held.ends_at += seconds

    def changes(self, prefix: str, after: int) -> Changes:
        """What happened to keys with this prefix after a revision."""
        if not self._known_since <= after <= self.revision:
            raise RevisionGoneError(f"revision {after} is too old, or another store's")
        changed = sorted(key for key in self.changed_keys(after) if key.startswith(prefix))
        entries = tuple(self._entries[key] for key in changed if key in self._entries)
        deleted = tuple(key for key in changed if key not in self._entries)
        return Changes(self.revision, entries, deleted)

    def changed_keys(self, after: int) -> set[str]:
        """The keys that changed after a revision, as far as is remembered."""
        found = set()
        for revision, key in reversed(self._history):
            if revision <= after:
                break
            found.add(key)
        return found

    def _check_room(self, key: str, value: str, before: Entry | None) -> None:
        limits = self._limits
        if len(key.encode()) > limits.key_bytes:
            raise StoreRefusedError(f"a key of more than {limits.key_bytes} bytes")
        if len(value.encode()) > limits.value_bytes:
            raise StoreRefusedError(f"a value of more than {limits.value_bytes} bytes: {key}")
        if before is None and len(self._entries) >= limits.keys:
            raise StoreRefusedError(f"the store has {limits.keys} keys, its limit")
        grows_by = _size(key, value) - (_size(key, before.value) if before else 0)
        if self._bytes + grows_by > limits.total_bytes:
            raise StoreRefusedError(f"the store would hold more than {limits.total_bytes} bytes")

    def _unbind(self, key: str) -> None:
        lease = self._lease_of.pop(key, 0)
        if lease in self._leases:
            self._leases[lease].keys.discard(key)

    def _note_change(self, key: str) -> None:
        self.revision += 1
        self._history.append((self.revision, key))
        if len(self._history) > self._limits.history:
            self._known_since, _ = self._history.popleft()


def _size(key: str, value: str) -> int:
    return len(key.encode()) + len(value.encode())
