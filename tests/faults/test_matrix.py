"""Each fault at each stage of a worker's life, under each start method.

The table knows what the caller must be told. The faulty rank is rank 1 of 2; rank 0 waits to
be stopped, unless all is expected to end well. Whatever happens, nothing may be left behind.
"""

from __future__ import annotations

import multiprocessing
import re
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import spawn as mp_spawn
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessExitedException, ProcessRaisedException
from rankspawn.option_types import StartMethod
from tests.faults import injected
from tests.faults.conftest import AssertNothingLeft
from tests.faults.injected import FAULTY, Fault, FaultyWhenRead

pytestmark = pytest.mark.untraced


@dataclass(frozen=True)
class Raised:
    """The caller gets the worker's exception."""

    kind: type[BaseException]
    last_line: str


@dataclass(frozen=True)
class Died:
    """The caller gets an exit code, and words about it."""

    code: int
    words: str

    @property
    def signal_name(self) -> str | None:
        return signal.Signals(-self.code).name if self.code < 0 else None


@dataclass(frozen=True)
class Well:
    """Both ranks end well; the faulty one with this result."""

    result: object = "returned"


Expected = Raised | Died | Well

ON_PURPOSE = Raised(ValueError, "ValueError: on purpose")
INTERRUPTED = Raised(KeyboardInterrupt, "KeyboardInterrupt")
KILLED = Died(-9, "terminated with signal SIGKILL: .*memory may have run out")
VANISHED_0 = Died(0, "terminated with exit code 0: .*exited without returning")
VANISHED_5 = Died(5, "terminated with exit code 5: .*without a Python exception")
LATE_5 = Died(5, "terminated with exit code 5: its function had returned, .* on its way out")
LATE_KILLED = Died(-9, "terminated with signal SIGKILL: its function had returned")

# At these stages the fault is an argument of the function.
WHILE_UNPICKLING: list[tuple[Fault, Expected]] = [
    (injected.raise_value_error, ON_PURPOSE),
    (injected.raise_keyboard_interrupt, INTERRUPTED),
    (injected.exit_0, Raised(SystemExit, "SystemExit: 0")),  # the function was never called
    (injected.exit_5, Raised(SystemExit, "SystemExit: 5")),
    (injected.vanish_0, VANISHED_0),
    (injected.vanish_5, VANISHED_5),
    (injected.get_killed, KILLED),
    (injected.crash, Died(-11, "terminated with signal SIGSEGV")),
    (injected.ask_for_too_much_memory, Raised(MemoryError, "MemoryError")),
]
IN_THE_FUNCTION: list[tuple[Fault, Expected]] = [
    (injected.raise_value_error, ON_PURPOSE),
    (injected.raise_keyboard_interrupt, INTERRUPTED),
    (injected.exit_0, Well(None)),
    (injected.exit_5, Died(5, "terminated with exit code 5$|terminated with exit code 5: ")),
    (injected.vanish_0, VANISHED_0),
    (injected.vanish_5, VANISHED_5),
    (injected.get_killed, KILLED),
    (injected.crash, Died(-11, "terminated with signal SIGSEGV")),
    (injected.ask_for_too_much_memory, Raised(MemoryError, "MemoryError")),
    (injected.use_up_all_memory, Raised(MemoryError, "MemoryError")),
]
WHILE_PICKLING_THE_RESULT: list[tuple[Fault, Expected]] = [
    (
        injected.raise_value_error,
        Raised(
            TypeError,
            "TypeError: result cannot be sent back to the parent: "
            "FaultyWhenWritten object: on purpose",
        ),
    ),
    (injected.raise_keyboard_interrupt, INTERRUPTED),
    (injected.exit_0, Raised(SystemExit, "SystemExit: 0")),  # there is no result
    (injected.exit_5, Raised(SystemExit, "SystemExit: 5")),
    (injected.vanish_0, VANISHED_0),
    (injected.vanish_5, VANISHED_5),
    (injected.get_killed, KILLED),
    (injected.crash, Died(-11, "terminated with signal SIGSEGV")),
]
# Python prints what an exit handler raises, SystemExit too, and exits as it would have without.
IN_ATEXIT: list[tuple[Fault, Expected]] = [
    (injected.raise_value_error, Well()),
    (injected.raise_keyboard_interrupt, Well()),
    (injected.exit_0, Well()),
    (injected.exit_5, Well()),
    # The result is there, and the code says that all is well.
    (injected.vanish_0, Well()),
    (injected.vanish_5, LATE_5),
    (injected.get_killed, LATE_KILLED),
    (injected.crash, Died(-11, "terminated with signal SIGSEGV: its function had returned")),
]
# Nor does it take note of what a thread raises.
AFTER_THE_REPORT: list[tuple[Fault, Expected]] = [
    (injected.raise_value_error, Well()),
    (injected.raise_keyboard_interrupt, Well()),
    (injected.exit_0, Well()),
    (injected.exit_5, Well()),
    (injected.vanish_0, Well()),
    (injected.vanish_5, LATE_5),
    (injected.get_killed, LATE_KILLED),
]

STAGES: dict[str, tuple[Callable[..., object], list[tuple[Fault, Expected]]]] = {
    "unpickling": (injected.take_argument, WHILE_UNPICKLING),
    "function": (injected.strike_in_function, IN_THE_FUNCTION),
    "pickling": (injected.strike_while_pickling, WHILE_PICKLING_THE_RESULT),
    "atexit": (injected.strike_in_atexit, IN_ATEXIT),
    "thread": (injected.strike_in_thread, AFTER_THE_REPORT),
    "daemon thread": (injected.strike_in_daemon_thread, AFTER_THE_REPORT),
}


def cases() -> Iterator[Any]:
    for stage, (job, faults) in STAGES.items():
        for fault, expected in faults:
            name = f"{stage}: {fault.__name__.replace('_', ' ')}"
            yield pytest.param(job, fault, expected, id=name)


@pytest.mark.parametrize(("job", "fault", "expected"), [*cases()])
def test_fault(
    start_method: StartMethod,
    job: Callable[..., object],
    fault: Fault,
    expected: Expected,
    assert_nothing_left: AssertNothingLeft,
) -> None:
    argument: object = fault
    if job is injected.take_argument:
        argument = FaultyWhenRead(fault)
        if start_method == "fork":
            expected = Well()  # nothing is pickled, so nothing is unpickled
    context = rankspawn.spawn(
        job,
        args=(argument, isinstance(expected, Well)),
        nprocs=2,
        backend="gloo",
        start_method=start_method,
        join=False,
    )

    assert_outcome(context, expected)
    assert_nothing_left()


def assert_outcome(context: MultiprocessContext, expected: Expected) -> None:
    if isinstance(expected, Well):
        assert context.results() == ["returned", expected.result]
        return
    if isinstance(expected, Raised):
        with pytest.raises(ProcessRaisedException) as raised:
            context.join()
        assert type(raised.value.exception) is expected.kind
        assert str(raised.value).splitlines()[-1] == expected.last_line
        error: rankspawn.ProcessException = raised.value
    else:
        with pytest.raises(ProcessExitedException) as died:
            context.join()
        assert (died.value.exit_code, died.value.signal_name) == (
            expected.code,
            expected.signal_name,
        )
        assert re.search(expected.words, str(died.value))
        error = died.value
    assert error.rank == FAULTY
    assert error.pid == context.pids()[FAULTY]
    assert error.failures == (error,), "the other rank is a victim"
    assert context.exitcodes()[1 - FAULTY] == -signal.SIGTERM
    assert context.return_queues[1 - FAULTY].empty()


def test_a_stopped_rank_does_not_hold_a_failed_one(
    start_method: StartMethod, assert_nothing_left: AssertNothingLeft
) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with ours, theirs:
        context = rankspawn.spawn(
            injected.stop_and_fail,
            args=(ours, theirs),
            nprocs=2,
            backend="gloo",
            start_method=start_method,
            join=False,
        )
        with pytest.raises(ProcessRaisedException, match="on purpose") as caught:
            context.join()

    assert caught.value.rank == 1 - FAULTY
    assert context.exitcodes() == [1, -signal.SIGTERM]
    assert_nothing_left()


def start_well(start_method: StartMethod, *arguments: object, **options: Any) -> list[str]:
    """A start without a fault in the worker; the faults before it are the subject."""
    return rankspawn.spawn(
        injected.take_argument,
        args=(arguments, True),
        nprocs=2,
        backend="gloo",
        start_method=start_method,
        **options,
    ).results()


def test_an_argument_that_cannot_be_pickled(
    start_method: StartMethod, assert_nothing_left: AssertNothingLeft
) -> None:
    argument = {"lock": threading.Lock()}
    if start_method == "fork":
        assert start_well(start_method, argument) == ["returned"] * 2
    else:
        words = re.escape('args[0][0]["lock"] cannot be sent to a worker: lock object')
        with pytest.raises(TypeError, match=words):
            start_well(start_method, argument)
    assert_nothing_left()


@pytest.mark.parametrize("fault", [injected.raise_value_error, injected.raise_keyboard_interrupt])
def test_an_argument_whose_pickling_fails(
    start_method: StartMethod, fault: Fault, assert_nothing_left: AssertNothingLeft
) -> None:
    argument = injected.FaultyWhenWritten(fault)
    if start_method == "fork":
        assert start_well(start_method, argument) == ["returned"] * 2
    elif fault is injected.raise_keyboard_interrupt:
        with pytest.raises(KeyboardInterrupt):
            start_well(start_method, argument)
    else:
        with pytest.raises(TypeError, match=r"cannot be sent to a worker: .*on purpose"):
            start_well(start_method, argument)
    assert_nothing_left()


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/dev/null", "/bin/false"])
def test_an_executable_that_is_no_python(
    start_method: StartMethod,
    executable: str,
    monkeypatch: pytest.MonkeyPatch,
    assert_nothing_left: AssertNothingLeft,
) -> None:
    monkeypatch.setattr(mp_spawn, "_python_exe", executable)
    if start_method == "fork":
        assert start_well(start_method) == ["returned"] * 2  # nothing is executed
    elif executable != "/bin/false":
        with pytest.raises(OSError, match=executable):
            start_well(start_method)
    elif start_method == "spawn":
        with pytest.raises(ProcessExitedException, match="terminated with exit code 1"):
            start_well(start_method)
    else:
        with pytest.raises(OSError, match="fork server ended unexpectedly"):
            start_well(start_method)
    assert_nothing_left()


def test_a_log_folder_that_cannot_be_made(
    start_method: StartMethod, tmp_path: Path, assert_nothing_left: AssertNothingLeft
) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(OSError, match="file"):
        start_well(start_method, log_dir=str(file / "logs"))
    assert_nothing_left()


def test_a_module_to_preload_that_ends_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, assert_nothing_left: AssertNothingLeft
) -> None:
    (tmp_path / "ends_the_server.py").write_text("import os\nos._exit(3)\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(OSError, match="fork server ended unexpectedly"):
        start_well("forkserver", preload=["ends_the_server"])
    assert_nothing_left()
