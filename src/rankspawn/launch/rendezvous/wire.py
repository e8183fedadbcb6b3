"""How the embedded master and its clients talk: who may, and that nobody repeats old words.

Pure: bytes in, bytes out.

::

    master  ► client    magic, nonce S
    client  ► master    nonce C, HMAC(key, "client" S C)
    master  ► client    HMAC(key, "master" S C)          or zeros: wrong token
    then, both ways     length, sequence number, payload, HMAC(own key, number payload)

The key comes from the job's id and its token, which itself never travels. A stranger gets a
random number and nothing else; nothing is parsed before its HMAC was right. Each connection and
each direction has a key of its own, made of both nonces, so a message that is recorded and sent
again fits nowhere: on its own connection the sequence number has passed, on any other, or in
the other direction, the key differs. What is sent can be read on its way, as it is not
encrypted; it cannot be changed.
"""

from __future__ import annotations

import hmac
import struct

_MAGIC = b"rankspn1"
NONCE_SIZE = 32
_MAC_SIZE = 32
_HEADER = struct.Struct(">IQ")  # length of the payload, sequence number

GREETING_SIZE = len(_MAGIC) + NONCE_SIZE
PROOF_SIZE = NONCE_SIZE + _MAC_SIZE
MASTER_PROOF_SIZE = _MAC_SIZE
REFUSAL = bytes(MASTER_PROOF_SIZE)


class WireError(Exception):
    """What came is not what somebody with the key, and at this point, would have sent."""


def derive_key(token: str, job_id: str) -> bytes:
    """The key of a job; two jobs with one token have different ones."""
    return _mac(token.encode(), b"rankspawn job\0" + job_id.encode())


def greet(master_nonce: bytes) -> bytes:
    """The master's first words."""
    return _MAGIC + master_nonce


def read_greeting(greeting: bytes) -> bytes:
    """The master's nonce.

    Raises:
        WireError: It is not one of our masters, or one of another version.
    """
    if not greeting.startswith(_MAGIC):
        raise WireError(f"it greets with {greeting[:16]!r}")
    return greeting[len(_MAGIC) :]


def prove_client(key: bytes, master_nonce: bytes, client_nonce: bytes) -> bytes:
    """The client's answer to the greeting."""
    return client_nonce + _mac(key, b"client" + master_nonce + client_nonce)


def check_proof(key: bytes, master_nonce: bytes, proof: bytes) -> bytes:
    """The client's nonce.

    Raises:
        WireError: The client does not have the key.
    """
    client_nonce, given = proof[:NONCE_SIZE], proof[NONCE_SIZE:]
    wanted = _mac(key, b"client" + master_nonce + client_nonce)
    if not hmac.compare_digest(given, wanted):
        raise WireError("wrong token")
    return client_nonce


def prove_master(key: bytes, master_nonce: bytes, client_nonce: bytes) -> bytes:
    """The master's last words before the talk begins."""
    return _mac(key, b"master" + master_nonce + client_nonce)


def check_master(key: bytes, master_nonce: bytes, client_nonce: bytes, proof: bytes) -> None:
    """See that the master has the key, too.

    Raises:
        WireError: It does not, or it says that the client does not.
    """
    wanted = prove_master(key, master_nonce, client_nonce)
    if not hmac.compare_digest(proof, wanted):
        raise WireError("wrong token")


def session_keys(key: bytes, master_nonce: bytes, client_nonce: bytes) -> tuple[bytes, bytes]:
    """The keys of one connection: for messages to the master, and to the client."""
    nonces = master_nonce + client_nonce
    return _mac(key, b"to master" + nonces), _mac(key, b"to client" + nonces)


class Sealer:
    """Makes messages of one direction."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, payload: bytes) -> bytes:
        """The bytes of one message with this payload."""
        self._number += 1
        header = _HEADER.pack(len(payload), self._number)
        return header + payload + _mac(self._key, header + payload)


class Opener:
    """Reads messages of one direction out of a stream of bytes.

    Args:
        key: Of this direction.
        longest: Bytes of the longest payload that is taken.
    """

    def __init__(self, key: bytes, longest: int) -> None:
        self._key = key
        self._longest = longest
        self._number = 0
        self._buffer = bytearray()

    @property
    def buffered(self) -> int:
        """Bytes that wait for the rest of their message, or to be taken."""
        return len(self._buffer)

    @property
    def wants_more(self) -> bool:
        """Whether there is room for more bytes."""
        return len(self._buffer) < self._longest + _HEADER.size + _MAC_SIZE

    def feed(self, data: bytes) -> None:
        """Take up bytes as they come."""
        self._buffer += data

    def take(self) -> bytes | None:
        """The next payload; None if it is not complete.

        Raises:
            WireError: It is too long, comes out of turn, or is not from who it should be.
        """
        if len(self._buffer) < _HEADER.size:
            return None
        length, number = _HEADER.unpack_from(self._buffer)
        if length > self._longest:
            raise WireError(f"a message of {length} bytes; at most {self._longest} are taken")
        if number != self._number + 1:
            raise WireError(f"message {number} after message {self._number}")
        end = _HEADER.size + length
        if len(self._buffer) < end + _MAC_SIZE:
            return None
        message, given = bytes(self._buffer[:end]), bytes(self._buffer[end : end + _MAC_SIZE])
        if not hmac.compare_digest(given, _mac(self._key, message)):
            raise WireError("a message that was not made with this connection's key")
        del self._buffer[: end + _MAC_SIZE]
        self._number = number
        return message[_HEADER.size :]


def _mac(key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, "sha256")
