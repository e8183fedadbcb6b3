"""Rate and time left. No processes in here, and no clock."""

from __future__ import annotations

import pytest

from rankspawn.supervise.reports import Steps
from rankspawn.view.pace import Pace, rate_text, time_text


def test_rate_and_time_left() -> None:
    pace = Pace()
    assert pace.describe(None, 0) == ""
    assert pace.describe(Steps(values={"phase": "warm up"}), 0) == ""
    assert pace.describe(Steps(0, 1000), 10) == ""  # of one look nothing is known
    assert pace.describe(Steps(4, 1000), 11) == ""
    assert pace.describe(Steps(40, 1000), 20) == "4/s 4:00 left"
    assert pace.describe(Steps(1000, 1000), 260) == "4/s"
    assert Steps(40, 1000, {"loss": 0.5}).describe("4/s") == "40/1000 4% 4/s loss=0.5"


def test_it_is_of_the_last_minute() -> None:
    pace = Pace()
    for second in range(100):
        pace.describe(Steps(second, 1000), second)
    for second in range(100, 200):
        told = pace.describe(Steps(100 + 10 * (second - 100), None), second)
    assert told == "10/s"


def test_who_stands_still_gets_slower() -> None:
    pace = Pace()
    pace.describe(Steps(0, 100), 0)
    assert pace.describe(Steps(10, 100), 10) == "1/s 1:30 left"
    assert pace.describe(Steps(10, 100), 40) == "4 s each 6:00 left"


def test_who_begins_again_is_looked_at_anew() -> None:
    pace = Pace()
    pace.describe(Steps(0, 100), 0)
    pace.describe(Steps(90, 100), 30)
    assert pace.describe(Steps(1, 100), 31) == ""
    assert pace.describe(Steps(5, 100), 35) == "1/s 1:35 left"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.25, "0.25 s"), (45, "45 s"), (200, "3:20"), (93_800, "26:03:20")],
)
def test_times(seconds: float, text: str) -> None:
    assert time_text(seconds) == text


def test_rates() -> None:
    assert rate_text(1234.56) == "1235/s"
    assert rate_text(0.02) == "50 s each"
