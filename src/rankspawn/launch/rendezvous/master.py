"""The embedded master: a small authenticated key-value service in the launcher of node 0.

One thread with one selector. Strangers, who have not proved that they have the job's token, cannot
keep it from its work: they are few at a time, have little time, and make room for others.
"""

from __future__ import annotations

import errno
import logging
import selectors
import socket
import threading
import time
from collections import Counter
from dataclasses import dataclass

from rankspawn.descriptors import Waker, close_in_forks
from rankspawn.launch.rendezvous.connections import LONGEST_ANSWER, Connection
from rankspawn.launch.rendezvous.keyvalues import KeyValues, Limits
from rankspawn.launch.rendezvous.service import Service, WaitingRequest
from rankspawn.launch.rendezvous.wire import WireError

logger: logging.Logger = logging.getLogger(__name__)

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
class ConnectionLimits:
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
        connection_limits: What connections may take.

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
        connection_limits: ConnectionLimits | None = None,
    ) -> None:
        self._key = key
        self._connection_limits = connection_limits or ConnectionLimits()
        # Above all revisions of any master that was here before, so that nobody who knew that
        # one takes this one's changes for the next of its.
        self._service = Service(KeyValues(time.time_ns(), limits))
        self._notified = self._service.values.revision
        self._listener = _listen(host, port)
        self.host: str
        self.port: int
        self.host, self.port = self._listener.getsockname()[:2]
        self._connections: set[Connection] = set()
        self._strangers: dict[Connection, None] = {}  # in the order in which they came
        self._waiting_requests: dict[str, set[Connection]] = {}
        self._buffered = 0
        self._reported: set[str] = set()
        self._sent_away: dict[str, None] = {}
        self._accept_after = 0.0
        self._sweep_at = 0.0
        self._closing = Waker()
        self._selector = selectors.DefaultSelector()
        for resource in (self._listener, self._selector):
            close_in_forks(resource)
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(self._closing, selectors.EVENT_READ)
        # A daemon, so that it ends with the launcher however that ends.
        self._thread = threading.Thread(target=self._serve, name="rankspawn-master", daemon=True)
        self._thread.start()

    @property
    def sent_away(self) -> tuple[str, ...]:
        """Where those came from who had not the job's token, as far as is remembered."""
        return tuple(self._sent_away)

    def close(self) -> None:
        """Stop serving; a second call does nothing."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._closing.wake()
            self._thread.join()

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
                if any(key.fileobj is self._closing for key, _ in ready):
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
        connection: Connection = key.data
        if connection not in self._connections:
            return  # dropped in this very turn
        try:
            if events & selectors.EVENT_READ and not self._read(connection, now):
                self._drop(connection)
                return
            self._talk(connection, now)
        except WireError as error:
            self._report(connection, error)
            self._drop(connection)
        except OSError:
            self._drop(connection)
        else:
            self._count(connection)

    def _count(self, connection: Connection) -> None:
        """Keep the memory of all connections together within its limit."""
        self._buffered += connection.buffered - connection.counted
        connection.counted = connection.buffered
        if self._buffered > self._connection_limits.buffered_bytes:
            self._drop(max(self._connections, key=lambda each: each.counted))

    def _read(self, connection: Connection, now: float) -> bool:
        was_trusted = connection.is_trusted
        try:
            if not connection.read(now):
                return False
        except (BlockingIOError, InterruptedError):
            return True
        if connection.is_trusted and not was_trusted:
            del self._strangers[connection]
        return True

    def _talk(self, connection: Connection, now: float) -> None:
        """Answer one request after the other for as long as the client takes the answers."""
        connection.write()
        while (request := connection.next_request()) is not None:
            answer = self._service.answer(request, now)
            if isinstance(answer, WaitingRequest):
                connection.waiting_request = answer
                self._waiting_requests.setdefault(answer.prefix, set()).add(connection)
                break
            self._answer(connection, answer)
        self._watch(connection)

    def _answer(self, connection: Connection, answer: bytes) -> None:
        if len(answer) > LONGEST_ANSWER:
            raise WireError(f"an answer of {len(answer)} bytes was asked for")
        connection.answer(answer)
        connection.write()

    def _watch(self, connection: Connection) -> None:
        events = selectors.EVENT_READ if connection.wants_to_read else 0
        events |= selectors.EVENT_WRITE if connection.wants_to_write else 0
        if not events:
            raise WireError("it goes on talking while its last request waits")
        if events != self._selector.get_key(connection.socket).events:
            self._selector.modify(connection.socket, events, connection)

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
            connection = Connection(sock, str(address[0]), self._key, now)
            self._connections.add(connection)
            self._strangers[connection] = None
            self._count(connection)
            self._selector.register(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, connection)
            if len(self._strangers) > self._connection_limits.strangers:
                self._drop_a_stranger()
            if (
                len(self._connections)
                > self._connection_limits.trusted + self._connection_limits.strangers
            ):
                self._drop(connection)

    def _make_room(self, now: float) -> None:
        """No descriptor is free: a stranger goes, or nobody new is taken for a moment."""
        if self._strangers:
            self._drop_a_stranger()
        else:
            self._accept_after = now + 0.1
            self._selector.unregister(self._listener)

    def _drop_a_stranger(self) -> None:
        """Drop the oldest of those from the address with the most of them."""
        # So that a flood from one address makes room for nodes from all others.
        crowd, _ = Counter(connection.host for connection in self._strangers).most_common(1)[0]
        self._drop(next(connection for connection in self._strangers if connection.host == crowd))

    def _report(self, connection: Connection, error: WireError) -> None:
        if not connection.is_trusted:
            connection.refuse()
        if connection.host not in self._reported and len(self._reported) < _REPORTED_AT_MOST:
            self._reported.add(connection.host)
            if not connection.is_trusted:
                self._sent_away[connection.host] = None
            logger.warning("the master has sent away %s: %s", connection.host, error)

    def _drop(self, connection: Connection) -> None:
        self._connections.discard(connection)
        self._strangers.pop(connection, None)
        self._stop_waiting(connection)
        self._buffered -= connection.counted
        self._selector.unregister(connection.socket)
        connection.socket.close()

    def _stop_waiting(self, connection: Connection) -> None:
        if connection.waiting_request is None:
            return
        waiting = self._waiting_requests[connection.waiting_request.prefix]
        waiting.discard(connection)
        if not waiting:
            del self._waiting_requests[connection.waiting_request.prefix]
        connection.waiting_request = None

    def _keep_order(self, now: float) -> float:
        """End what is overdue, tell who waits; return how long nothing else is due."""
        values = self._service.values
        due = [values.expire(now)]
        changed = values.changed_keys(self._notified)
        self._notified = values.revision
        for prefix in list(self._waiting_requests):
            if any(key.startswith(prefix) for key in changed):
                self._answer_waiting(list(self._waiting_requests[prefix]))
        if now >= self._sweep_at:
            self._answer_overdue(now)
            self._drop_overdue(now)
            self._sweep_at = now + _SWEEP
        due.append(self._sweep_at if self._connections else None)
        if self._accept_after and now >= self._accept_after:
            self._accept_after = 0.0
            self._selector.register(self._listener, selectors.EVENT_READ)
        due.append(self._accept_after or None)
        times = [when for when in due if when is not None]
        return max(0.0, min(times) - now) if times else 60.0

    def _answer_waiting(self, connections: list[Connection]) -> None:
        for connection in connections:
            waiting_request = connection.waiting_request
            assert waiting_request is not None
            self._stop_waiting(connection)
            try:
                self._answer(connection, self._service.answer_waiting(waiting_request))
                self._watch(connection)
            except (OSError, WireError):
                self._drop(connection)

    def _answer_overdue(self, now: float) -> None:
        overdue = [
            connection
            for connections in self._waiting_requests.values()
            for connection in connections
            if connection.waiting_request is not None and now >= connection.waiting_request.until
        ]
        self._answer_waiting(overdue)

    def _drop_overdue(self, now: float) -> None:
        """Who has not proved anything in time, and who has not been heard of for long."""
        limits = self._connection_limits
        late = {
            stranger
            for stranger in self._strangers
            if now >= stranger.opened_at + limits.proof_seconds
        }
        silent = {
            connection
            for connection in self._connections
            if now >= connection.heard_at + limits.idle_seconds
        }
        for connection in late | silent:
            self._drop(connection)

    def _let_go(self) -> None:
        for connection in list(self._connections):
            connection.socket.close()
        self._connections.clear()
        self._strangers.clear()
        for resource in (self._selector, self._listener, self._closing):
            resource.close()


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
