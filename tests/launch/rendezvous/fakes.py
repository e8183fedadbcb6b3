"""A store in this process, which can be made to fail."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from rankspawn.launch.rendezvous.keyvalues import KeyValues
from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    Lease,
    Snapshot,
    StoreError,
    StoreUnreachableError,
)


class FakeStore:
    """The real store's memory without the network; any number of sessions can share one.

    Attributes:
        failing: Says with what error a call fails, by its name and its key; None for none.
    """

    def __init__(self) -> None:
        self.values = KeyValues(1)
        self.failing: Callable[[str, str], StoreError | None] = lambda _call, _key: None
        self._changed = threading.Condition()
        self._closed = False

    def unreachable(self) -> None:
        """From now on nobody answers."""
        self.failing = lambda _call, _key: StoreUnreachableError("the store is gone")

    def get(self, key: str) -> Entry | None:
        with self._call("get", key):
            return self.values.get(key)

    def prefix(self, prefix: str) -> Snapshot:
        with self._call("prefix", prefix):
            return self.values.prefix(prefix)

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        with self._call("put", key):
            return self.values.put(key, value, lease=lease)

    def swap(self, key: str, expected: int, value: str | None, *, lease: int = 0) -> int | None:
        with self._call("swap", key):
            return self.values.swap(key, expected, value, lease=lease)

    def delete(self, key: str) -> None:
        with self._call("delete", key):
            self.values.delete(key)

    def grant(self, seconds: float) -> Lease:
        with self._call("grant", ""):
            return self.values.grant(seconds, time.monotonic())

    def renew(self, lease: int) -> None:
        with self._call("renew", ""):
            self.values.renew(lease, time.monotonic())

    def revoke(self, lease: int) -> None:
        with self._call("revoke", ""):
            self.values.revoke(lease)

    def changes(self, prefix: str, after: int, *, wait: float) -> Changes:
        deadline = time.monotonic() + wait
        while True:
            with self._call("changes", prefix):
                found = self.values.changes(prefix, after)
                left = deadline - time.monotonic()
                if found.entries or found.deleted or left <= 0 or self._closed:
                    return found
                # Leases end by themselves; nobody else looks after them here.
                self._changed.wait(min(left, 0.05))

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _call(self, call: str, key: str) -> _Call:
        return _Call(self, call, key)


class _Call:
    def __init__(self, store: FakeStore, call: str, key: str) -> None:
        self._store = store
        self._what = (call, key)

    def __enter__(self) -> None:
        error = self._store.failing(*self._what)
        if error is not None:
            raise error
        self._store._changed.acquire()
        self._store.values.expire(time.monotonic())

    def __exit__(self, *_: object) -> None:
        self._store._changed.notify_all()
        self._store._changed.release()
