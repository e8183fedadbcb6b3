"""A rank's ``logging`` is set up as its parent's, unless the rank sets up its own."""

from __future__ import annotations

import io
import logging
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankspawn.workers import log_capture, log_setup
from rankspawn.workers.log_setup import InheritedHandler, follow_streams
from tests.scripts import python, script

PARENT = """
    import logging, sys, threading
    import rankspawn

    def log_all():
        logging.info("of the root")
        logging.getLogger("app.part").debug("of a part")
        logging.getLogger("other").debug("not shown")

    def log_its_own_way():
        logging.basicConfig(format="own %(message)s", force=sys.argv[1] == "fork")
        logging.warning("once")

    if __name__ == "__main__":
        form = "P %(processName)s %(levelname)s %(message)s"
        logging.basicConfig(level=logging.INFO, format=form)
        logging.getLogger("app").setLevel(logging.DEBUG)
        options = {"nprocs": 1, "backend": "gloo", "start_method": sys.argv[1]}
        # As if another thread was writing while the ranks are forked.
        with logging.root.handlers[0].lock:
            rankspawn.spawn(log_all, **options)
        rankspawn.spawn(log_its_own_way, **options)
        if sys.argv[1] != "fork":
            rankspawn.spawn(log_all, logging=None, **options)
"""


def test_levels_and_formats_reach_the_ranks(tmp_path: Path, start_method: str) -> None:
    done = python(script(tmp_path, PARENT), start_method, cwd=tmp_path)
    assert done.stderr.splitlines() == [
        "P rank-0 INFO of the root",
        "P rank-0 DEBUG of a part",
        "own once",
    ]


SILENT = """
    import sys
    import rankspawn

    def look():
        return "logging" in sys.modules

    if __name__ == "__main__":
        print(rankspawn.spawn(look, nprocs=1, backend="gloo").results())
"""


def test_a_rank_of_a_program_without_any_has_none_of_it(tmp_path: Path) -> None:
    assert python(script(tmp_path, SILENT), cwd=tmp_path).stdout == "[False]\n"


@pytest.fixture
def logger(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """One of its own, which stands for all that there are, in a parent and in a rank."""
    only = logging.Logger("only")
    monkeypatch.setattr(log_capture, "_loggers", lambda: iter([("only", only)]))
    monkeypatch.setattr(log_setup, "_get_logger", lambda _: only)
    monkeypatch.setattr(logging, "basicConfig", logging.basicConfig)
    monkeypatch.setattr(log_capture, "_warned", [])
    yield only
    logging.disable(logging.NOTSET)


def inherited(logger: logging.Logger) -> list[InheritedHandler]:
    """What a rank makes of it, in place of what there was."""
    setup = log_capture.capture()
    logger.handlers.clear()
    log_setup.apply(setup, 0)
    return [handler for handler in logger.handlers if isinstance(handler, InheritedHandler)]


def test_what_nobody_reads_is_no_set_up(logger: logging.Logger) -> None:
    assert not log_capture.is_configured()
    logger.addHandler(logging.NullHandler())
    logger.addHandler(logging.StreamHandler(io.StringIO()))
    assert not log_capture.is_configured()
    logger.addHandler(logging.StreamHandler())
    assert log_capture.is_configured()


def test_a_program_that_logs_to_a_file_shows_the_same_lines(
    logger: logging.Logger, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = logging.FileHandler(tmp_path / "log", delay=True)
    file.setFormatter(logging.Formatter("{levelname}: {message}", style="{"))
    logger.addHandler(file)
    logger.setLevel(logging.WARNING)

    (handler,) = inherited(logger)
    logger.warning("seen")
    logger.info("not seen")

    assert capsys.readouterr().err == "WARNING: seen\n"
    logger.addHandler(logging.StreamHandler(sys.stdout))
    logger.warning("by the rank's own")
    assert capsys.readouterr() == ("by the rank's own\n", "")
    logger.handlers[:] = [handler]


class Secretive(logging.Filter):
    def filter(self, record: logging.LogRecord) -> bool:
        return "secret" not in record.getMessage()


class Locked(logging.Formatter):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()


def test_filters_and_names_of_levels_go_along(
    logger: logging.Logger,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging, "_levelToName", dict(logging._levelToName))
    monkeypatch.setattr(logging, "_nameToLevel", dict(logging._nameToLevel))
    logging.addLevelName(25, "NOTE")
    stream = logging.StreamHandler(sys.stdout)
    stream.addFilter(Secretive())
    stream.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    logger.addHandler(stream)
    assert pickle.loads(log_capture.capture())["names"] == {25: "NOTE"}

    inherited(logger)
    logger.log(25, "open")
    logger.log(25, "secret")

    assert capsys.readouterr().out == "NOTE open\n"


def test_what_cannot_be_sent_is_said_once(
    logger: logging.Logger, capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        stream = logging.StreamHandler()
        stream.setFormatter(Locked("%(name)s %(message)s"))
        logger.addHandler(stream)

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        assert len(inherited(logger)) == 2

    assert ["formatter of this program's logging" in str(each.message) for each in told] == [True]
    logger.warning("plain")
    assert capsys.readouterr().err == "only plain\n" * 2


def test_what_a_rank_cannot_load_has_the_plain_format() -> None:
    broken: Any = (b"no pickle", ("%(message)s!", None))
    handler = log_setup._make_handler(logging.Logger("x"), 0, "stderr", 0, broken, b"no pickle")
    assert handler.format(logging.LogRecord("x", 20, "", 0, "text", (), None)) == "text!"


def test_a_forked_rank_logs_to_its_own_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    parents, own = io.StringIO(), io.StringIO()
    handler = logging.StreamHandler(parents)
    logger = logging.getLogger("rankspawn.tests.forked")
    logger.addHandler(handler)
    monkeypatch.setattr(sys, "stderr", own)
    try:
        follow_streams((None, parents))
        assert handler.stream is own
    finally:
        logger.removeHandler(handler)
