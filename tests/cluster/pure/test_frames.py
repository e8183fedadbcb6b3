"""Frames: bytes in any pieces, garbage before, garbage instead."""

from __future__ import annotations

import os
import tracemalloc

import pytest

from rankspawn.cluster.frames import GREETING, PIECE, FrameReader, GarbledError, Outbox, encode

FRAMES = [({"is": "ping", "at": 1}, b""), ({"is": "output", "index": 0}, b"text" * 100)]


def stream() -> bytes:
    return b"".join(encode(header, blob) + blob for header, blob in FRAMES)


@pytest.mark.parametrize("size", [1, 2, 7, 64, 10_000])
def test_frames_come_whole_in_pieces_of_any_size(size: int) -> None:
    reader = FrameReader()
    data = b"Welcome to node1\r\n" + GREETING + stream()
    heard = []
    for start in range(0, len(data), size):
        heard += list(reader.feed(data[start : start + size]))

    assert heard == FRAMES
    assert reader.preamble == b"Welcome to node1\r\n"


def test_what_is_no_agent_is_known_by_its_words() -> None:
    reader = FrameReader()

    assert list(reader.feed(b"bash: python: command not found\n")) == []
    assert reader.preamble == b"bash: python: command not found\n"
    with pytest.raises(GarbledError, match="no word of an agent"):
        list(reader.feed(b"x" * (1 << 17)))


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 20,
        encode({"is": "x"}).replace(b"{", b"["),
        encode({"no": 1}),
        b"\0\0\0\2" + b"\0" * 8 + b"[]",
    ],
)
def test_what_is_no_frame_is_an_error(data: bytes) -> None:
    with pytest.raises(GarbledError):
        list(FrameReader(is_greeted=True).feed(data))


def test_what_is_urgent_goes_between_pieces() -> None:
    outbox = Outbox()
    large = os.urandom(2 * PIECE + 5)
    outbox.put_pieces({"is": "data"}, large)
    outbox.put_last({"is": "stopped"})
    read, write = os.pipe()
    try:
        os.set_blocking(write, False)
        os.set_blocking(read, False)
        assert outbox.write_to(write)  # the pipe is full
        outbox.put({"is": "pong"})
        reader, heard = FrameReader(is_greeted=True), []
        is_left = True
        while is_left:
            heard += list(reader.feed(os.read(read, 1 << 16)))
            is_left = outbox.write_to(write)
        heard += list(reader.feed(os.read(read, 1 << 20)))
    finally:
        os.close(read)
        os.close(write)

    names = [header["is"] for header, _ in heard]
    assert names[-1] == "stopped"
    assert 0 < names.index("pong") < 3
    pieces = {header["offset"]: blob for header, blob in heard if header["is"] == "data"}
    assert b"".join(blob for _, blob in sorted(pieces.items())) == large
    assert outbox.size == 0


def test_a_large_blob_is_cut_only_when_it_goes() -> None:
    blob = memoryview(bytes(64 << 20))
    outboxes = [Outbox() for _ in range(50)]
    tracemalloc.start()
    try:
        for outbox in outboxes:
            outbox.put_pieces({"is": "payload"}, blob)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert taken < 50 * 10_000
    assert outboxes[0].size == len(blob)
