"""The threads of a session that wait for its store: one keeps the lease, one waits for changes.

Neither decides anything; both tell the session what they heard.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from queue import SimpleQueue

from rankspawn.launch.rendezvous.fence import LeaseTimes, now
from rankspawn.launch.rendezvous.store import (
    Changes,
    Lease,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
    Store,
    StoreError,
)

# Between two tries at a store that cannot be reached.
RETRY_SECONDS = 0.2


class LeaseKeeper:
    """Renews a lease until it is stopped or the lease is lost.

    Args:
        store: Whose lease.
        lease: Which.
        times: What follows from its length.
        held: Is called with the time at which a renewal was sent that was answered.
        lost: Is called once if the store does not know the lease any more.
    """

    def __init__(
        self,
        store: Store,
        lease: Lease,
        times: LeaseTimes,
        *,
        held: Callable[[float], None],
        lost: Callable[[], None],
    ) -> None:
        self._store = store
        self._lease = lease
        self._times = times
        self._held = held
        self._lost = lost
        self._stopped = threading.Event()
        # A renewal must not wait for whatever else the launcher does.
        self._thread = threading.Thread(target=self._run, name="rankspawn-lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Renew no more; returns when no renewal is under way."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        wait = self._times.renew_every
        while not self._stopped.wait(wait):
            sent = now()
            try:
                self._store.renew(self._lease.id)
            except LeaseExpiredError:
                self._lost()
                return
            except StoreError:
                wait = min(RETRY_SECONDS, self._times.renew_every)
                continue
            wait = self._times.renew_every
            self._held(sent)


class ChangeWatcher:
    """Reads entries, and then their changes, one request after the other.

    Args:
        store: Where.
        wait: Seconds that one wait for changes may take.
        heard: Is called with the request and what was read, or the error.
    """

    def __init__(
        self,
        store: Store,
        wait: float,
        heard: Callable[[str, int | None, Snapshot | Changes | StoreError], None],
    ) -> None:
        self._store = store
        self._wait = wait
        self._heard = heard
        self._requests: SimpleQueue[tuple[str, int | None] | None] = SimpleQueue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rankspawn-watch", daemon=True)
        self._thread.start()

    def watch(self, prefix: str, after: int | None) -> None:
        """Wait for changes after a revision; None: read everything."""
        self._requests.put((prefix, after))

    def stop(self) -> None:
        """Take no more requests; one that is under way ends when its store is closed."""
        self._stopped.set()
        self._requests.put(None)

    def join(self) -> None:
        """Wait for the end of its thread."""
        self._thread.join()

    def _run(self) -> None:
        while (request := self._requests.get()) is not None:
            prefix, after = request
            try:
                found: Snapshot | Changes | StoreError = (
                    self._store.prefix(prefix)
                    if after is None
                    else self._store.changes(prefix, after, wait=self._wait)
                )
            except RevisionGoneError as error:
                found = error
            except StoreError as error:
                # Here, so that the session need not wait between its tries.
                self._stopped.wait(RETRY_SECONDS)
                found = error
            self._heard(prefix, after, found)
