"""Who may talk to the embedded master, and that nobody can repeat or change what was said."""

from __future__ import annotations

import os

import pytest

from rankspawn.launch.rendezvous import wire
from rankspawn.launch.rendezvous.wire import Opener, Sealer, WireError

KEY = wire.derive_key("a secret of sixteen letters", "job")


def nonces() -> tuple[bytes, bytes]:
    return os.urandom(wire.NONCE_SIZE), os.urandom(wire.NONCE_SIZE)


def open_one(opener: Opener, message: bytes) -> bytes | None:
    opener.feed(message)
    return opener.take()


class TestHandshake:
    def test_both_sides_come_to_trust_each_other(self) -> None:
        master, client = nonces()
        assert wire.read_greeting(wire.greet(master)) == master
        proof = wire.prove_client(KEY, master, client)
        assert len(proof) == wire.PROOF_SIZE
        assert wire.check_proof(KEY, master, proof) == client
        wire.check_master(KEY, master, client, wire.prove_master(KEY, master, client))

    @pytest.mark.parametrize(
        "other",
        [wire.derive_key("another secret", "job"), wire.derive_key("a secret", "another job")],
    )
    def test_another_token_or_another_job_is_refused(self, other: bytes) -> None:
        master, client = nonces()
        with pytest.raises(WireError, match="wrong token"):
            wire.check_proof(KEY, master, wire.prove_client(other, master, client))
        with pytest.raises(WireError, match="wrong token"):
            wire.check_master(KEY, master, client, wire.prove_master(other, master, client))

    def test_a_recorded_proof_fits_no_other_connection(self) -> None:
        master, client = nonces()
        proof = wire.prove_client(KEY, master, client)
        with pytest.raises(WireError):
            wire.check_proof(KEY, os.urandom(wire.NONCE_SIZE), proof)

    def test_a_proof_cannot_be_sent_back_as_the_masters(self) -> None:
        master, client = nonces()
        proof = wire.prove_client(KEY, master, client)[wire.NONCE_SIZE :]
        with pytest.raises(WireError):
            wire.check_master(KEY, master, client, proof)

    def test_a_refusal_is_no_proof(self) -> None:
        with pytest.raises(WireError):
            wire.check_master(KEY, *nonces(), wire.REFUSAL)

    def test_something_else_is_recognised(self) -> None:
        with pytest.raises(WireError, match="SSH-2"):
            wire.read_greeting(b"SSH-2.0-OpenSSH_9.2p1".ljust(wire.GREETING_SIZE, b"\0"))


class TestMessages:
    def test_come_out_as_they_went_in_in_pieces_or_together(self) -> None:
        sealer, opener = Sealer(KEY), Opener(KEY, 1000)
        stream = b"".join(sealer.seal(payload) for payload in (b"one", b"", b"three" * 100))
        found = []
        for index in range(len(stream)):
            opener.feed(stream[index : index + 1])
            if (payload := opener.take()) is not None:
                found.append(payload)
        assert found == [b"one", b"", b"three" * 100]
        assert opener.buffered == 0

    def test_sent_twice_on_one_connection_is_rejected(self) -> None:
        message = Sealer(KEY).seal(b"put")
        opener = Opener(KEY, 1000)
        assert open_one(opener, message) == b"put"
        with pytest.raises(WireError, match="message 1 after message 1"):
            open_one(opener, message)

    def test_left_out_or_out_of_turn_is_rejected(self) -> None:
        sealer = Sealer(KEY)
        sealer.seal(b"lost")
        with pytest.raises(WireError, match="message 2 after message 0"):
            open_one(Opener(KEY, 1000), sealer.seal(b"put"))

    def test_of_another_connection_or_direction_is_rejected(self) -> None:
        master, client = nonces()
        to_master, to_client = wire.session_keys(KEY, master, client)
        elsewhere, _ = wire.session_keys(KEY, master, os.urandom(wire.NONCE_SIZE))
        for other in (to_client, elsewhere, KEY):
            with pytest.raises(WireError, match="not made with this connection's key"):
                open_one(Opener(to_master, 1000), Sealer(other).seal(b"put"))

    @pytest.mark.parametrize("place", [4, 11, 12, 14, -1, -32])
    def test_changed_on_the_way_is_rejected(self, place: int) -> None:
        message = bytearray(Sealer(KEY).seal(b"put"))
        message[place] ^= 1
        with pytest.raises(WireError):
            open_one(Opener(KEY, 1000), bytes(message))

    def test_too_long_is_rejected_before_it_has_come(self) -> None:
        message = Sealer(KEY).seal(b"x" * 1001)
        with pytest.raises(WireError, match="1001 bytes"):
            open_one(Opener(KEY, 1000), message[:12])
