"""What a rendezvous needs of a store, and the ways in which one can fail.

Keys and values are text. Each change gives the store a higher revision. All calls block, but
never longer than the store's own time limit; ``changes`` blocks for as long as it is told. Any
number of threads may call: one of them can wait for changes while others write.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


class StoreError(Exception):
    """Base of all that can go wrong with a store."""


class StoreUnreachableError(StoreError):
    """Nobody answered; whether a write took place is not known. Trying again may help."""


class StoreRefusedError(StoreError):
    """The store answered and said no: wrong token, too large, full. Trying again will not help."""


class LeaseExpiredError(StoreError):
    """The store does not know this lease (any more)."""


class RevisionGoneError(StoreError):
    """What happened since that revision is not known any more: read everything again."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key and its value.

    Attributes:
        created: The revision at which the key came to be.
        revision: That of its last change.
    """

    key: str
    value: str
    created: int
    revision: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Some entries as they were together at one revision."""

    revision: int
    entries: tuple[Entry, ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """What became of keys between two revisions; several changes of one key are one.

    Attributes:
        revision: Everything up to here is in it.
        entries: Keys that were written, with their newest values.
        deleted: Keys that are gone.
    """

    revision: int
    entries: tuple[Entry, ...] = ()
    deleted: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Lease:
    """Entries that are bound to it go when it ends, ``seconds`` after it was last renewed."""

    id: int
    seconds: float


class Store(Protocol):
    """A small key-value store with revisions and leases.

    Raises:
        StoreUnreachableError: From any call.
        StoreRefusedError: From any call.
    """

    def get(self, key: str) -> Entry | None:
        """One entry; None if there is none."""

    def prefix(self, prefix: str) -> Snapshot:
        """All entries whose keys begin with ``prefix``."""

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        """Write an entry, bound to a lease unless that is 0; return the new revision.

        Raises:
            LeaseExpiredError: There is no such lease.
        """

    def swap(self, key: str, expected: int, value: str | None, *, lease: int = 0) -> int | None:
        """Write an entry, or delete it with None, if its revision is still ``expected``.

        Args:
            key: Which one.
            expected: The revision of its last change; 0 if there must be no such key.
            value: The new value; None deletes it.
            lease: What to bind it to; 0 for none.

        Returns:
            The new revision; None if the entry is another one by now.

        Raises:
            LeaseExpiredError: There is no such lease.
        """

    def delete(self, key: str) -> None:
        """Delete an entry, if it is there."""

    def grant(self, seconds: float) -> Lease:
        """A new lease; a store may make it longer than asked for, never shorter."""

    def renew(self, lease: int) -> None:
        """Have a lease last its whole time again, counted from now.

        Raises:
            LeaseExpiredError: It has ended.
        """

    def revoke(self, lease: int) -> None:
        """End a lease, and delete what is bound to it."""

    def changes(self, prefix: str, after: int, *, wait: float) -> Changes:
        """What happened to keys with this prefix after a revision.

        Args:
            prefix: How they begin.
            after: The revision up to which all is known.
            wait: Seconds to wait for the first change. With none, the answer is empty.

        Raises:
            RevisionGoneError: It is too long ago.
        """

    def close(self) -> None:
        """Let go of everything; calls under way in other threads end with an error."""
