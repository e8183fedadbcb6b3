"""Records on their way from ranks to the parent; some processes die in the middle of a write."""

from __future__ import annotations

import logging
import sys
from typing import Any

from rankspawn.workers.log_frames import FrameReader, pack_record


def record_of(msg: object, *args: object, **fields: Any) -> logging.LogRecord:
    record = logging.LogRecord("app", logging.INFO, "file.py", 3, msg, args, None)
    record.__dict__.update(fields)
    return record


def carried(record: logging.LogRecord) -> dict[str, Any]:
    ((rank, fields),) = FrameReader().feed(pack_record(record, 2))
    assert rank == 2
    return fields


class Odd:
    def __str__(self) -> str:
        return "odd"

    def __reduce__(self) -> str:
        raise TypeError("not to be sent")


def test_plain_arguments_go_along_and_others_as_text() -> None:
    plain = carried(record_of("%s of %d", "one", 2, extra={"a": [1, (None, 2.5)]}))
    assert (plain["msg"], plain["args"]) == ("%s of %d", ("one", 2))
    assert plain["extra"] == {"a": [1, (None, 2.5)]}

    odd = carried(record_of("an %s", Odd(), extra=Odd()))
    assert (odd["msg"], odd["args"], odd["extra"]) == ("an odd", None, "odd")
    assert carried(record_of(Odd()))["msg"] == "odd"
    endless: list[Any] = []
    endless.append(endless)
    assert carried(record_of("%s", endless))["msg"] == "[[...]]"


def test_an_exception_goes_along_as_text() -> None:
    try:
        int("why")
    except ValueError:
        record = record_of("it failed")
        record.exc_info = sys.exc_info()
    fields = carried(record)
    assert fields["exc_info"] is None
    assert fields["exc_text"].endswith("'why'")
    assert record.exc_text is None, "other handlers of the rank format it themselves"


def test_pieces_of_any_size_make_the_same_records() -> None:
    data = b"".join(pack_record(record_of("%d", number), number) for number in range(5))
    for size in (1, 7, 100, len(data)):
        reader = FrameReader()
        pieces = [data[at : at + size] for at in range(0, len(data), size)]
        found = [rank for piece in pieces for rank, _ in reader.feed(piece)]
        assert found == list(range(5))
        assert reader.finish() == []


def test_a_part_of_a_frame_hides_no_other() -> None:
    first, torn, last = (pack_record(record_of("x" * 50), rank) for rank in (1, 2, 3))
    for cut in range(len(torn)):
        reader = FrameReader()
        found = reader.feed(first + torn[:cut] + last) + reader.finish()
        assert [rank for rank, _ in found] == [1, 3], cut
    reader = FrameReader()
    assert [rank for rank, _ in reader.feed(first + torn[:30]) + reader.finish()] == [1]
