"""What goes from a rank to the parent, without processes."""

from __future__ import annotations

import threading
import warnings
from pathlib import Path

from rankspawn.pytest_plugin.messages import (
    REPORT,
    append_message,
    pack_warning,
    read_message,
    unpack_warning,
)


def test_messages_are_read_one_by_one(tmp_path: Path) -> None:
    path = str(tmp_path / "messages.0")
    first = append_message(path, (REPORT, {"outcome": "passed"}, None))
    second = append_message(path, (REPORT, {"outcome": "failed"}, {"text": "why"}))

    assert read_message(path, 0, first) == (REPORT, {"outcome": "passed"}, None)
    assert read_message(path, first, second) == (REPORT, {"outcome": "failed"}, {"text": "why"})


def test_what_a_plugin_added_to_a_report_and_cannot_be_sent_arrives_as_text(tmp_path: Path) -> None:
    path = str(tmp_path / "messages.0")
    lock = threading.Lock()
    length = append_message(path, (REPORT, {"outcome": "passed", "extra": lock}, None))

    assert read_message(path, 0, length) == (
        REPORT,
        {"outcome": "passed", "extra": repr(lock)},
        None,
    )


def test_a_warning_of_an_unknown_class_arrives_as_the_nearest_one() -> None:
    odd = type("Odd", (DeprecationWarning,), {"__module__": "nowhere"})
    recorded = warnings.WarningMessage(odd("old"), odd, "t.py", 3)

    back = unpack_warning(pack_warning(recorded))

    assert back.category is DeprecationWarning
    assert (str(back.message), back.filename, back.lineno) == ("old", "t.py", 3)
