"""Words that are shown without ``logging``, and with it."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rankspawn import telling
from tests.jobs import DEADLOCK

SOURCE = Path(__file__).parent.parent / "src"
PLAIN = """
import sys
from rankspawn.telling import attach_to_logging, get_logger, show_with

logger = get_logger("rankspawn.some")
said = []
show_with(lambda level, text: said.append((level, text)), lambda: said.append("attached"))
logger.debug("%s of %d", "one", 2)
logger.info("100 %")
logger.warning("w")
logger.error("e")
logger.critical("c")
assert "logging" not in sys.modules
assert said == [(10, "one of 2"), (20, "100 %"), (30, "w"), (40, "e"), (50, "c")], said
import logging
logger.info("to %s", "nobody")
attach_to_logging()
assert said[5:] == ["attached"], said
assert logger.name == "rankspawn.some"
"""


@pytest.fixture
def nobody_shows() -> Iterator[None]:
    show, attach = telling._show, telling._attach
    telling.show_with(None)
    yield
    telling.show_with(show, attach)


def test_plain_words_need_no_logging() -> None:
    command = [sys.executable, "-S", "-c", PLAIN]
    subprocess.run(command, env={"PYTHONPATH": str(SOURCE)}, check=True, timeout=DEADLOCK)


@pytest.mark.usefixtures("nobody_shows")
def test_records_are_of_the_caller(caplog: pytest.LogCaptureFixture) -> None:
    logger = telling.get_logger("rankspawn.some")
    with caplog.at_level(logging.INFO, "rankspawn"):
        logger.info("%d words", 2)

    (record,) = caplog.records
    assert (record.name, record.getMessage()) == ("rankspawn.some", "2 words")
    assert (record.filename, record.levelname) == ("test_telling.py", "INFO")
