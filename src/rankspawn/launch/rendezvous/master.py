"""The embedded master: a small authenticated key-value service in the launcher of node 0.

One thread with one selector; it is a daemon, so it ends with the launcher however that ends.
Strangers cannot keep it from its work: those who have not proved that they have the job's token
are few at a time, have little time, and make room for others, first of all for those from other
addresses.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass

from rankspawn.descriptors import close_in_forks
from rankspawn.launch.rendezvous.keyvalues import KeyValues, Limits
from rankspawn.launch.rendezvous.peers import LONGEST_ANSWER, Peer
from rankspawn.launch.rendezvous.service import Parked, Service
from rankspawn.launch.rendezvous.wire import WireError

__all__ = ["Master", "Patience"]

logger = logging.getLogger(__name__)

# Connections taken in one turn: a flood of them must not keep the others waiting.
_ACCEPTED_AT_ONCE = 64
_BACKLOG = 1024
# A loop that comes back this late was not running; then the leases are not to blame.
_PAUSE = 1.0
# How often connections are looked through for those whose time is up.
_SWEEP = 0.25
# Addresses that are remembered for having been refused, so that each is reported once.
_REPORTED_AT_MOST = 100


@dataclass(frozen=True, slots=True)
class Patience:
    """What connections may take: numbers, seconds and bytes."""

    strangers: int = 256
    trusted: int = 8192
    proof_seconds: float = 5.0
    idle_seconds: float = 120.0
    buffered_bytes: int = 256 << 20


class Master:
    """Serves the store of one job until it is closed.

    Args:
        host: The one address to listen on; empty for all of this machine's.
        port: The port; 0 for a free one.
        key: See :func:`~rankspawn.launch.rendezvous.wire.derive_key`.
        limits: What the store may hold.
        patience: What connections may take.

    Raises:
        OSError: The address is in use, or not this machine's.
    """

    def __init__(
        self,
        host: str,
        port: int,
        key: bytes,
        *,
        limits: Limits | None = None,
        patience: Patience | None = None,
    ) -> None:
        self._key = key
        self._patience = patience or Patience()
        # Above all revisions of any master that was here before, so that nobody who knew that
        # one takes this one's changes for the next of its.
        self._service = Service(KeyValues(time.time_ns(), limits))
        self._notified = self._service.values.revision
        self._listener = _listen(host, port)
        self.host, self.port = self._listener.getsockname()[:2]
        self._peers: set[Peer] = set()
        self._strangers: dict[Peer, None] = {}  # in the order in which they came
        self._parked: dict[str, set[Peer]] = {}
        self._buffered = 0
        self._reported: set[str] = set()
        self._accept_after = 0.0
        self._sweep_at = 0.0
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for one in (self._listener, self._wake_read, self._wake_write, self._selector):
            close_in_forks(one)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._thread = threading.Thread(target=self._serve, name="rankspawn-master", daemon=True)
        self._thread.start()

    @property
    def connections(self) -> tuple[int, int]:
        """How many clients there are, and how many strangers."""
        return len(self._peers) - len(self._strangers), len(self._strangers)

    def close(self) -> None:
        """Stop serving; a second call does nothing."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            with contextlib.suppress(OSError):
                self._wake_write.send(b"\0")
            self._thread.join()
        self._wake_write.close()

    # The rest runs in the master's thread.

    def _serve(self) -> None:
        try:
            looked = time.monotonic()
            timeout = 0.0
            while True:
                ready = self._selector.select(timeout)
                now = time.monotonic()
                # From turn to turn, whatever this thread was doing when it was stopped.
                if now - looked > timeout + _PAUSE:
                    self._service.values.prolong(now - looked - timeout)
                looked = now
                if any(key.fileobj is self._wake_read for key, _ in ready):
                    return
                for key, events in ready:
                    self._attend(key, events, now)
                timeout = self._keep_order(now)
        except Exception:
            logger.exception("the master of this job has failed; the job cannot go on")
        finally:
            self._let_go()

    def _attend(self, key: selectors.SelectorKey, events: int, now: float) -> None:
        if key.fileobj is self._listener:
            self._accept(now)
            return
        peer: Peer = key.data
        if peer not in self._peers:
            return  # dropped in this very turn
        try:
            if events & selectors.EVENT_READ and not self._read(peer, now):
                self._drop(peer)
                return
            self._talk(peer, now)
        except WireError as error:
            self._report(peer, error)
            self._drop(peer)
        except OSError:
            self._drop(peer)
        else:
            self._count(peer)

    def _count(self, peer: Peer) -> None:
        """Keep the memory of all connections together within its limit."""
        self._buffered += peer.buffered - peer.counted
        peer.counted = peer.buffered
        if self._buffered > self._patience.buffered_bytes:
            self._drop(max(self._peers, key=lambda one: one.counted))

    def _read(self, peer: Peer, now: float) -> bool:
        was_trusted = peer.is_trusted
        try:
            if not peer.read(now):
                return False
        except (BlockingIOError, InterruptedError):
            return True
        if peer.is_trusted and not was_trusted:
            del self._strangers[peer]
        return True

    def _talk(self, peer: Peer, now: float) -> None:
        """Answer one request after the other for as long as the peer takes the answers."""
        peer.write()
        while (request := peer.next_request()) is not None:
            answer = self._service.answer(request, now)
            if isinstance(answer, Parked):
                peer.parked = answer
                self._parked.setdefault(answer.prefix, set()).add(peer)
                break
            self._answer(peer, answer)
        self._watch(peer)

    def _answer(self, peer: Peer, answer: bytes) -> None:
        if len(answer) > LONGEST_ANSWER:
            raise WireError(f"an answer of {len(answer)} bytes was asked for")
        peer.answer(answer)
        peer.write()

    def _watch(self, peer: Peer) -> None:
        events = selectors.EVENT_READ if peer.wants_to_read else 0
        events |= selectors.EVENT_WRITE if peer.wants_to_write else 0
        if not events:
            raise WireError("it goes on talking while its last request waits")
        if events != self._selector.get_key(peer.socket).events:
            self._selector.modify(peer.socket, events, peer)

    def _accept(self, now: float) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                sock, address = self._listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionError):
                return
            except OSError as error:
                if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
                    raise
                self._make_room(now)
                return
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            close_in_forks(sock)
            peer = Peer(sock, str(address[0]), self._key, now)
            self._peers.add(peer)
            self._strangers[peer] = None
            self._count(peer)
            self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
            if len(self._strangers) > self._patience.strangers:
                self._drop_a_stranger()
            if len(self._peers) > self._patience.trusted + self._patience.strangers:
                self._drop(peer)

    def _make_room(self, now: float) -> None:
        """No descriptor is free: a stranger goes, or nobody new is taken for a moment."""
        if self._strangers:
            self._drop_a_stranger()
        else:
            self._accept_after = now + 0.1
            self._selector.unregister(self._listener)

    def _drop_a_stranger(self) -> None:
        """The oldest one of those from the address with the most of them."""
        crowd, _ = Counter(peer.host for peer in self._strangers).most_common(1)[0]
        self._drop(next(peer for peer in self._strangers if peer.host == crowd))

    def _report(self, peer: Peer, error: WireError) -> None:
        if not peer.is_trusted:
            peer.refuse()
        if peer.host not in self._reported and len(self._reported) < _REPORTED_AT_MOST:
            self._reported.add(peer.host)
            logger.warning("the master has sent away %s: %s", peer.host, error)

    def _drop(self, peer: Peer) -> None:
        self._peers.discard(peer)
        self._strangers.pop(peer, None)
        self._unpark(peer)
        self._buffered -= peer.counted
        self._selector.unregister(peer.socket)
        peer.socket.close()

    def _unpark(self, peer: Peer) -> None:
        if peer.parked is None:
            return
        waiting = self._parked[peer.parked.prefix]
        waiting.discard(peer)
        if not waiting:
            del self._parked[peer.parked.prefix]
        peer.parked = None

    def _keep_order(self, now: float) -> float:
        """End what is overdue, tell who waits; return how long nothing else is due."""
        values = self._service.values
        due = [values.expire(now)]
        changed = values.changed_keys(self._notified)
        self._notified = values.revision
        for prefix in list(self._parked):
            if any(key.startswith(prefix) for key in changed):
                self._answer_parked(list(self._parked[prefix]))
        if now >= self._sweep_at:
            self._answer_overdue(now)
            self._drop_overdue(now)
            self._sweep_at = now + _SWEEP
        due.append(self._sweep_at if self._peers else None)
        if self._accept_after and now >= self._accept_after:
            self._accept_after = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        due.append(self._accept_after or None)
        times = [when for when in due if when is not None]
        return max(0.0, min(times) - now) if times else 60.0

    def _answer_parked(self, peers: list[Peer]) -> None:
        for peer in peers:
            parked = peer.parked
            assert parked is not None
            self._unpark(peer)
            try:
                self._answer(peer, self._service.answer_parked(parked))
                self._watch(peer)
            except (OSError, WireError):
                self._drop(peer)

    def _answer_overdue(self, now: float) -> None:
        overdue = [
            peer
            for peers in self._parked.values()
            for peer in peers
            if peer.parked is not None and now >= peer.parked.until
        ]
        self._answer_parked(overdue)

    def _drop_overdue(self, now: float) -> None:
        """Who has not proved anything in time, and who has not been heard of for long."""
        patience = self._patience
        late = [one for one in self._strangers if now >= one.opened_at + patience.proof_seconds]
        silent = [one for one in self._peers if now >= one.heard_at + patience.idle_seconds]
        for peer in {*late, *silent}:
            self._drop(peer)

    def _let_go(self) -> None:
        for peer in list(self._peers):
            peer.socket.close()
        self._peers.clear()
        self._strangers.clear()
        for one in (self._selector, self._listener, self._wake_read):
            one.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        # A port of the last run is not in use, though the system remembers its connections.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(_BACKLOG)
        listener.setblocking(False)
    except BaseException:
        listener.close()
        raise
    return listener
