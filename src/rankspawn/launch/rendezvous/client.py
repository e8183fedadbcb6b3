"""A store behind an embedded master, over TCP.

Two connections: one for requests that are answered at once, one that waits for changes. Each is
made when it is first needed, and again after it broke; a request whose answer did not come is
never repeated here, because whether it took effect is not known.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from typing import Any

from rankspawn.descriptors import close_in_forks
from rankspawn.launch.rendezvous import wire
from rankspawn.launch.rendezvous.connections import LONGEST_ANSWER
from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    Lease,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
    StoreRefusedError,
    StoreUnreachableError,
)
from rankspawn.plan.topology import join

_ERRORS = {"lease": LeaseExpiredError, "revision": RevisionGoneError}
_CHUNK = 1 << 18


class MasterStore:
    """The store of a job; see :class:`~rankspawn.launch.rendezvous.store.Store`.

    Nothing is connected before the first call.

    Args:
        host: The master's address or name.
        port: Its port.
        key: See :func:`~rankspawn.launch.rendezvous.wire.derive_key`.
        answer_within: Seconds that a request may take.
    """

    def __init__(self, host: str, port: int, key: bytes, *, answer_within: float = 2.0) -> None:
        # Where it is, and what it is entered with.
        self.place: tuple[str, int, bytes] = (host, port, key)
        self._answer_within = answer_within
        self._calls = _Line(host, port, key)
        self._watching = _Line(host, port, key)

    def get(self, key: str) -> Entry | None:
        """One entry; None if there is none."""
        found = self._ask("get", key=key)
        return None if found is None else Entry(*found)

    def prefix(self, prefix: str) -> Snapshot:
        """All entries whose keys begin with ``prefix``."""
        revision, entries = self._ask("prefix", prefix=prefix)
        return Snapshot(revision, tuple(Entry(*fields) for fields in entries))

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        """Write an entry."""
        return int(self._ask("put", key=key, value=value, lease=lease))

    def swap(self, key: str, expected: int, value: str | None, *, lease: int = 0) -> int | None:
        """Write or delete an entry if its revision is still the expected one."""
        revision = self._ask("swap", key=key, expected=expected, value=value, lease=lease)
        return None if revision is None else int(revision)

    def delete(self, key: str) -> None:
        """Delete an entry, if it is there."""
        self._ask("delete", key=key)

    def grant(self, seconds: float) -> Lease:
        """A new lease."""
        return Lease(*self._ask("grant", seconds=seconds))

    def renew(self, lease: int) -> None:
        """Have a lease last its whole time again."""
        self._ask("renew", lease=lease)

    def revoke(self, lease: int) -> None:
        """End a lease, and delete what is bound to it."""
        self._ask("revoke", lease=lease)

    def changes(self, prefix: str, after: int, *, wait: float) -> Changes:
        """What happened to keys with this prefix after a revision."""
        request = {"op": "changes", "prefix": prefix, "after": after, "wait": wait}
        answer = self._watching.ask(request, wait + self._answer_within)
        revision, entries, deleted = _unpack(answer)
        return Changes(revision, tuple(Entry(*fields) for fields in entries), tuple(deleted))

    def close(self) -> None:
        """Let go of the connections; calls under way end with an error."""
        self._calls.close()
        self._watching.close()

    def _ask(self, operation: str, **fields: object) -> Any:
        return _unpack(self._calls.ask({"op": operation, **fields}, self._answer_within))


def _unpack(answer: dict[str, Any]) -> Any:
    if "ok" in answer:
        return answer["ok"]
    raise _ERRORS.get(answer["error"], StoreRefusedError)(answer["text"])


class _Line:
    """One connection to the master, made anew when it is needed; one request at a time."""

    def __init__(self, host: str, port: int, key: bytes) -> None:
        self._where = (host, port)
        self._name = f"the master at {join(host, port)}"
        self._key = key
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None
        self._closed = False

    def ask(self, request: dict[str, object], seconds: float) -> dict[str, Any]:
        """The answer to one request."""
        payload = json.dumps(request, separators=(",", ":")).encode()
        deadline = time.monotonic() + seconds
        with self._lock:
            try:
                if self._socket is None:
                    self._connect(deadline)
                self._send(self._sealer.seal(payload), deadline)
                answer = self._receive_answer(deadline)
            except BaseException as error:
                # Whatever is still under way on this connection belongs to no later request.
                self._hang_up()
                if isinstance(error, wire.WireError):
                    raise StoreUnreachableError(f"{self._name} is not itself: {error}") from error
                if isinstance(error, OSError):
                    raise StoreUnreachableError(self._explain(error)) from error
                raise
        decoded: dict[str, Any] = json.loads(answer)
        return decoded

    def close(self) -> None:
        """Break the connection, whatever is under way, and make no other."""
        self._closed = True
        # Not under the lock, which a waiting request holds.
        sock = self._socket
        if sock is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._hang_up()

    def _connect(self, deadline: float) -> None:
        if self._closed:
            raise StoreUnreachableError(f"the connection to {self._name} was closed")
        sock = socket.create_connection(self._where, timeout=_left(deadline))
        self._socket = sock
        close_in_forks(sock)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        try:
            master_nonce = wire.read_greeting(self._receive(wire.GREETING_SIZE, deadline))
        except wire.WireError as error:
            raise StoreRefusedError(
                f"{self._name} is something else, or of another version: {error}"
            ) from error
        self._introduce(master_nonce, deadline)
        if self._closed:
            raise StoreUnreachableError(f"the connection to {self._name} was closed")

    def _introduce(self, master_nonce: bytes, deadline: float) -> None:
        client_nonce = os.urandom(wire.NONCE_SIZE)
        self._send(wire.prove_client(self._key, master_nonce, client_nonce), deadline)
        proof = self._receive(wire.MASTER_PROOF_SIZE, deadline)
        try:
            wire.check_master(self._key, master_nonce, client_nonce, proof)
        except wire.WireError as error:
            raise StoreRefusedError(
                f"{self._name} belongs to another job, or its job has another token: give the same "
                "--job_id and the same RANKSPAWN_JOB_TOKEN on every node"
            ) from error
        to_master, to_client = wire.session_keys(self._key, master_nonce, client_nonce)
        self._sealer = wire.Sealer(to_master)
        self._opener = wire.Opener(to_client, LONGEST_ANSWER)

    def _send(self, data: bytes, deadline: float) -> None:
        assert self._socket is not None
        self._socket.settimeout(_left(deadline))
        self._socket.sendall(data)

    def _receive(self, size: int, deadline: float) -> bytes:
        data = b""
        while len(data) < size:
            data += self._receive_some(size - len(data), deadline)
        return data

    def _receive_answer(self, deadline: float) -> bytes:
        while (payload := self._opener.take()) is None:
            self._opener.feed(self._receive_some(_CHUNK, deadline))
        return payload

    def _receive_some(self, most: int, deadline: float) -> bytes:
        assert self._socket is not None
        self._socket.settimeout(_left(deadline))
        data = self._socket.recv(most)
        if not data:
            raise ConnectionResetError("it closed the connection")
        return data

    def _hang_up(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _explain(self, error: OSError) -> str:
        if isinstance(error, TimeoutError):
            return f"{self._name} does not answer"
        if isinstance(error, ConnectionRefusedError):
            return f"nobody listens at {join(*self._where)}, where the master should be"
        if isinstance(error, socket.gaierror):
            return f"the master's name {self._where[0]!r} cannot be resolved: {error.strerror}"
        return f"{self._name} cannot be reached: {error.strerror or error}"


def _left(deadline: float) -> float:
    """Seconds until then; never 0, which would mean not to wait at all."""
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
