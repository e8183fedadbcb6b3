"""The embedded master's side of one connection: what came, what goes, who it is."""

from __future__ import annotations

import os
import socket

from rankspawn.launch.rendezvous import wire
from rankspawn.launch.rendezvous.service import WaitingRequest

# A value of 1 MiB in which every byte has to be escaped would be longer; such are not ours.
LONGEST_REQUEST = 2 << 20
LONGEST_ANSWER = 32 << 20
_CHUNK = 1 << 16


class Connection:
    """The master's side of one connection.

    Before it has proved that it has the job's token it can make the master keep 64 bytes, and
    get 40 of no value.

    Attributes:
        host: Where it comes from.
        heard_at: When it last said something, or connected.
        waiting_request: Its request that waits for changes, if it has one.
        counted: How many of its buffered bytes the master has counted.
    """

    def __init__(self, sock: socket.socket, host: str, key: bytes, now: float) -> None:
        self.socket = sock
        self.host = host
        self.opened_at: float = now
        self.heard_at: float = now
        self.waiting_request: WaitingRequest | None = None
        self.counted = 0
        self._key = key
        self._nonce = os.urandom(wire.NONCE_SIZE)
        self._proof = b""
        self._opener: wire.Opener | None = None
        self._sealer: wire.Sealer | None = None
        self._out = bytearray(wire.greet(self._nonce))

    @property
    def is_trusted(self) -> bool:
        """Whether it has proved that it has the job's token."""
        return self._opener is not None

    @property
    def buffered(self) -> int:
        """Bytes that are kept for it."""
        return len(self._out) + (self._opener.buffered if self._opener else len(self._proof))

    @property
    def wants_to_write(self) -> bool:
        """Whether something waits to be sent."""
        return bool(self._out)

    @property
    def wants_to_read(self) -> bool:
        """Whether more may come; not while a client that does not listen keeps on asking."""
        return self._opener is None or self._opener.wants_more

    def read(self, now: float) -> bool:
        """Take up what has come; False if nothing ever will again.

        Raises:
            OSError: The connection broke.
            WireError: It has not got the token.
        """
        data = self.socket.recv(_CHUNK if self.is_trusted else wire.PROOF_SIZE - len(self._proof))
        if not data:
            return False
        self.heard_at = now
        if self._opener is not None:
            self._opener.feed(data)
            return True
        self._proof += data
        if len(self._proof) == wire.PROOF_SIZE:
            self._begin_to_trust()
        return True

    def next_request(self) -> bytes | None:
        """The next request, once the answer to the last one is on its way.

        Raises:
            WireError: What came is none of this connection's own, or too long.
        """
        if self._opener is None or self._out or self.waiting_request is not None:
            return None
        return self._opener.take()

    def answer(self, payload: bytes) -> None:
        """Send an answer, as far as it goes at once."""
        assert self._sealer is not None
        self.waiting_request = None
        self._out += self._sealer.seal(payload)

    def write(self) -> None:
        """Send what the system takes.

        Raises:
            OSError: The connection broke.
        """
        try:
            while self._out:
                del self._out[: self.socket.send(self._out[:_CHUNK])]
        except (BlockingIOError, InterruptedError):
            return

    def refuse(self) -> None:
        """Say that the token is wrong, if that can be said at once."""
        try:
            self.socket.send(wire.REFUSAL)
        except OSError:
            return

    def _begin_to_trust(self) -> None:
        client_nonce = wire.check_proof(self._key, self._nonce, self._proof)
        to_master, to_client = wire.session_keys(self._key, self._nonce, client_nonce)
        self._opener = wire.Opener(to_master, LONGEST_REQUEST)
        self._sealer = wire.Sealer(to_client)
        self._out += wire.prove_master(self._key, self._nonce, client_nonce)
