"""``logging="relay"``: what ranks log comes to the handlers of their parent."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessException
from rankspawn.view import relay
from rankspawn.workers import log_setup
from tests.jobs import DEADLOCK
from tests.scripts import python, script

Run = Callable[..., MultiprocessContext]


class Kept(logging.Handler):
    """Keeps records, and tells of the first one."""

    def __init__(self) -> None:
        super().__init__()
        self.records: list[logging.LogRecord] = []
        self.has_some = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
        self.has_some.set()

    def texts(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@pytest.fixture
def kept() -> Iterator[Kept]:
    """A handler of a logger that passes nothing on."""
    handler, logger = Kept(), logging.getLogger("rankspawn-tests.relayed")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    logger.propagate = False
    yield handler
    logger.removeHandler(handler)
    logger.setLevel(logging.NOTSET)
    logger.propagate = True


def log_and_end(end: str) -> None:
    logger = logging.getLogger("rankspawn-tests.relayed.part")
    logger.debug("not wanted")
    logger.info("%s of %d", "one", 2, extra={"rank": "another"})
    try:
        os.environ.pop("RANKSPAWN_TESTS_MISSING")
    except KeyError:
        logger.exception("an object: %s", threading.Lock())
    if end == "raise":
        raise ValueError("on purpose")
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)


def test_records_come_with_rank_and_device(run: Run, kept: Kept) -> None:
    run(log_and_end, args=("return",), nprocs=2, logging="relay")

    records = sorted(kept.records, key=lambda record: record.__dict__["rank"])
    assert [record.__dict__["rank"] for record in records] == [0, 0, 1, 1]
    assert {record.__dict__["device"] for record in records} == {"cpu"}
    assert (records[0].msg, records[0].args) == ("%s of %d", ("one", 2))
    assert records[1].getMessage().startswith("an object: <unlocked _thread.lock")
    assert "KeyError: 'RANKSPAWN_TESTS_MISSING'" in logging.Formatter().format(records[1])
    assert {record.name for record in records} == {"rankspawn-tests.relayed.part"}
    assert os.getpid() not in {record.process for record in records}


@pytest.mark.parametrize("end", [pytest.param("raise", marks=pytest.mark.slow), "die"])
def test_nothing_is_lost_when_a_rank_fails(kept: Kept, end: str) -> None:
    with pytest.raises(ProcessException):
        rankspawn.spawn(log_and_end, args=(end,), nprocs=1, backend="gloo", logging="relay")
    assert len(kept.records) == 2


def fail_once() -> None:
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    logging.getLogger("rankspawn-tests.relayed").info("try %s", count)
    if count == "0":
        raise ValueError("on purpose")


def test_a_restarted_group_relays_too(kept: Kept) -> None:
    rankspawn.spawn(fail_once, nprocs=1, backend="gloo", logging="relay", max_restarts=1)
    assert kept.texts() == ["try 0", "try 1"]


def log_and_wait() -> None:
    logging.getLogger("rankspawn-tests.relayed").info("here")
    threading.Event().wait()


def test_records_come_while_ranks_run(run: Run, kept: Kept) -> None:
    with run(log_and_wait, nprocs=1, logging="relay", join=False):
        assert kept.has_some.wait(DEADLOCK)


def log_much() -> None:
    for number in range(3000):
        logging.getLogger("rankspawn-tests.relayed").info("%d %s", number, "x" * 1000)


def test_ranks_wait_for_no_handler(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relay, "_PATIENCE_SECONDS", 0.1)
    with kept.lock:  # type: ignore[union-attr]
        rankspawn.spawn(log_much, nprocs=1, backend="gloo", logging="relay")
        assert not kept.records
    monkeypatch.setattr(relay, "_PATIENCE_SECONDS", DEADLOCK)
    relay.finish_all()
    assert [text.split()[0] for text in kept.texts()] == [str(each) for each in range(3000)]


PARENT = """
    import logging, sys
    import rankspawn

    def log_all():
        logging.basicConfig(format="own %(message)s")
        logging.getLogger("app.part").debug("of a part")
        logging.getLogger("other").debug("not shown")
        logging.getLogger("alone").warning("once")

    if __name__ == "__main__":
        logging.basicConfig(level=logging.INFO, format="%(rank)s %(device)s %(name)s %(message)s")
        logging.getLogger("app").setLevel(logging.DEBUG)
        handler = logging.FileHandler("alone.log")
        handler.setFormatter(logging.Formatter("%(rank)d: %(message)s"))
        logging.getLogger("alone").addHandler(handler)
        options = {"backend": "gloo", "start_method": sys.argv[1], "logging": "relay"}
        rankspawn.spawn(log_all, nprocs=1, join=False, **options)
"""


def test_handlers_of_a_program_that_joins_nobody(tmp_path: Path, start_method: str) -> None:
    done = python(script(tmp_path, PARENT), start_method, cwd=tmp_path)
    lines = [line for line in done.stderr.splitlines() if line.startswith("0 ")]
    assert lines == ["0 cpu app.part of a part", "0 cpu alone once"]
    assert (tmp_path / "alone.log").read_text() == "0: once\n"


def log_after_closing_files() -> None:
    os.closerange(3, 100)
    with open(os.devnull):
        logging.getLogger("rankspawn-tests.relayed").info("still")


@pytest.mark.slow
def test_a_rank_that_closed_all_files_still_relays(kept: Kept) -> None:
    rankspawn.spawn(log_after_closing_files, nprocs=1, backend="gloo", logging="relay")
    assert kept.texts() == ["still"]


def refuse(_: logging.LogRecord) -> bool:
    raise ValueError("broken filter")


def test_a_filter_that_raises_is_shown_and_costs_no_other_record(
    kept: Kept, capsys: pytest.CaptureFixture[str]
) -> None:
    part = logging.getLogger("rankspawn-tests.relayed.part")
    part.addFilter(refuse)
    try:
        rankspawn.spawn(log_both, nprocs=1, backend="gloo", logging="relay")
    finally:
        part.removeFilter(refuse)
    assert kept.texts() == ["after"]
    assert "broken filter" in capsys.readouterr().err


def log_both() -> None:
    logging.getLogger("rankspawn-tests.relayed.part").info("before")
    logging.getLogger("rankspawn-tests.relayed").info("after")


def test_where_ranks_cannot_reach_their_parent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logging.root, "handlers", [])  # pytest's show lines, too
    handler = log_setup._make_relaying((os.getpid(), 99_999, 0, 0), 0)
    handler.handle(logging.LogRecord("x", 20, "", 0, "shown here", (), None))
    assert capsys.readouterr().err == "shown here\n"

    monkeypatch.setattr(os.path, "isdir", lambda _: False)
    with pytest.raises(ValueError, match="needs /proc"):
        relay.check_relay()


def test_it_is_of_one_machine() -> None:
    options: rankspawn.Options = {"cluster": "local", "logging": "relay"}
    with pytest.raises(ValueError, match="logging='relay' and cluster"):
        rankspawn.spawn(sys.exit, **options)
