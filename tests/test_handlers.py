"""Handlers of signals: when they may run, and that what they raise leaves nothing half done."""

from __future__ import annotations

import gc
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import active_children
from types import FrameType
from typing import Any, NoReturn

import pytest

import rankspawn
from rankspawn import (
    MultiprocessContext,
    ProcessExitedException,
    ProcessRaisedException,
    cpython,
    handlers,
    machine,
)
from rankspawn.handlers import handler_of, handlers_held, handlers_let_through
from rankspawn.supervise import supervisor
from rankspawn.supervise.supervisor import SupervisionPolicy
from rankspawn.workers.guardian import Guardian
from tests import jobs
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import ScriptedEngine

Run = Callable[..., MultiprocessContext]
AT_FORK: list[Callable[[], None]] = []
IN_CHILD: list[Callable[[], None]] = []
os.register_at_fork(
    before=lambda: [call() for call in AT_FORK] and None,
    after_in_child=lambda: [call() for call in IN_CHILD] and None,
)


class Interrupted(Exception):
    """What the handlers of these tests raise."""


def interrupt(*_: object) -> NoReturn:
    raise Interrupted


@contextmanager
def handled(number: int, handler: Callable[..., Any] = interrupt) -> Iterator[None]:
    """A block in which the signal has this handler."""
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        assert signal.signal(number, before) is handler


def test_what_is_held_back_is_handled_after_it_and_at_once_where_it_is_let_through() -> None:
    calls: list[int] = []
    with handled(signal.SIGUSR1, lambda *_: calls.append(len(calls))):
        with handlers_held():
            signal.raise_signal(signal.SIGUSR1)
            assert calls == []
            with handlers_let_through():
                assert calls == [0]
                signal.raise_signal(signal.SIGUSR1)
                assert calls == [0, 1]
            with handlers_held(firmly=True), handlers_let_through():
                signal.raise_signal(signal.SIGUSR1)
            assert calls == [0, 1]
        assert calls == [0, 1, 2]


def test_every_handler_runs_whatever_the_others_raise() -> None:
    def interrupt_twice() -> None:
        with handlers_held():
            signal.raise_signal(signal.SIGUSR1)
            signal.raise_signal(signal.SIGUSR2)

    with handled(signal.SIGUSR1), handled(signal.SIGUSR2), pytest.raises(Interrupted) as caught:
        interrupt_twice()
    assert isinstance(caught.value.__context__, Interrupted)


def test_what_a_handler_raised_is_not_interrupted_by_the_next_one() -> None:
    done = []

    def interrupt_twice() -> None:
        with handlers_held():
            try:
                with handlers_let_through():
                    signal.raise_signal(signal.SIGUSR1)
            finally:
                signal.raise_signal(signal.SIGUSR1)
                done.append("cleaned up")

    with handled(signal.SIGUSR1), pytest.raises(Interrupted) as caught:
        interrupt_twice()
    assert isinstance(caught.value.__context__, Interrupted)
    assert done == ["cleaned up"]


def test_a_handler_that_was_set_meanwhile_stays() -> None:
    def other(*_: object) -> None: ...

    with handled(signal.SIGUSR1):
        with handlers_held():
            before = signal.signal(signal.SIGUSR1, other)
        assert signal.signal(signal.SIGUSR1, interrupt) is other
        assert before is not interrupt


def test_an_interrupt_that_comes_twice_in_an_instant_is_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls: list[int] = []
    with handled(signal.SIGINT, lambda *_: calls.append(1)), handlers_held():
        monkeypatch.setattr(handlers, "_ECHO", 1000.0)
        monkeypatch.setattr(handlers._Held, "interrupted_at", float("-inf"))
        with handlers_let_through():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
            assert calls == [1]
            monkeypatch.setattr(handlers, "_ECHO", 0.0)
            signal.raise_signal(signal.SIGINT)
            assert calls == [1, 1]


def handler_in_worker() -> str:
    return f"{handler_of(signal.SIGUSR1)} {signal.getsignal(signal.SIGUSR1)}"


def test_a_forked_worker_has_the_handlers_of_the_program() -> None:
    with handled(signal.SIGUSR1):
        context = rankspawn.spawn(handler_in_worker, nprocs=1, backend="gloo", start_method="fork")

    assert context.results() == [f"{interrupt} {interrupt}"]


def test_a_process_forked_meanwhile_holds_nothing_back() -> None:
    with handled(signal.SIGUSR1), handlers_held():
        pid = os.fork()
        if pid == 0:
            try:
                signal.raise_signal(signal.SIGUSR1)
            except Interrupted:
                os._exit(7)
            os._exit(0)
        _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 7


def test_terminate_in_a_handler_while_the_main_thread_joins(run: Run) -> None:
    """As programs do it that are told ahead of their end."""
    context = run(jobs.sleep_for_ever, nprocs=2, join=False)
    with handled(signal.SIGALRM, lambda *_: context.terminate()):
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        with pytest.raises(ProcessExitedException, match="SIGTERM"):
            context.join()

    assert context.exitcodes() == [-signal.SIGTERM] * 2


def test_a_group_that_a_handler_has_stopped_is_not_restarted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    engine = ScriptedEngine(lambda group: group.raises(0, ValueError("on purpose")))
    policy = SupervisionPolicy(DEADLOCK, max_restarts=3)
    with engine.context(policy) as context, handled(signal.SIGUSR1, lambda *_: stop(context)):
        group = engine.groups[0]

        def stop(context: MultiprocessContext) -> None:
            monkeypatch.undo()
            context.terminate()

        def stop_and_hear_a_signal(*_: object, **__: object) -> None:
            with handlers_let_through():
                signal.raise_signal(signal.SIGUSR1)

        monkeypatch.setattr(group, "stop", stop_and_hear_a_signal)
        with pytest.raises(ProcessRaisedException, match="on purpose"):
            context.join()
    assert engine.groups == [group]


def test_a_handler_of_sigchld_that_raises(run: Run) -> None:
    """Each worker's end interrupts, the ends of those that are stopped because of it too."""
    with handled(signal.SIGCHLD), pytest.raises(Interrupted):
        run(jobs.rank_fails, args=(0, "exit 7"), nprocs=4)

    assert active_children() == []


def test_a_handler_of_sigchld_that_raises_while_a_finished_group_closes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guardian is a child, too, and its end is told in the middle of that."""
    closing = []

    def close(guard: Guardian, close: Callable[[Guardian], None] = Guardian.close) -> None:
        closing.append(guard)
        close(guard)
        signal.raise_signal(signal.SIGCHLD)  # it came already, or another one comes

    def raise_if_closing(*_: object) -> None:
        if closing:
            raise Interrupted

    monkeypatch.setattr(Guardian, "close", close)
    with handled(signal.SIGCHLD, raise_if_closing), pytest.raises(Interrupted):
        run(jobs.do_nothing, nprocs=2)
    assert active_children() == []


def test_what_a_handler_raises_in_a_fork_is_not_lost() -> None:
    AT_FORK.append(lambda: signal.raise_signal(signal.SIGUSR1))
    try:
        with handled(signal.SIGUSR1), pytest.raises(Interrupted):
            rankspawn.spawn(jobs.sleep_for_ever, nprocs=2, backend="gloo", start_method="fork")
    finally:
        AT_FORK.clear()


@pytest.mark.parametrize("moment", ["hook of the fork", "first lines"])
def test_a_forked_worker_that_is_told_to_end_before_it_began(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It must neither lose that, nor have it raised in the code that it is a copy of."""
    forget = cpython.forget_exit_functions

    def be_told_and_forget(finalize: Any) -> None:
        signal.raise_signal(signal.SIGTERM)
        forget(finalize)

    if moment == "first lines":
        monkeypatch.setattr(cpython, "forget_exit_functions", be_told_and_forget)
    else:
        IN_CHILD.append(lambda: signal.raise_signal(signal.SIGTERM))
    try:
        with handled(signal.SIGTERM), pytest.raises(ProcessRaisedException) as caught:
            rankspawn.spawn(jobs.do_nothing, nprocs=2, backend="gloo", start_method="fork")
    finally:
        IN_CHILD.clear()
    assert isinstance(caught.value.__cause__, Interrupted)


def blocked_in_worker() -> list[int]:
    return sorted(map(int, signal.pthread_sigmask(signal.SIG_BLOCK, [])))


def test_a_forked_worker_blocks_what_the_program_blocks() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1, signal.SIGINT])
    try:
        context = rankspawn.spawn(blocked_in_worker, nprocs=1, backend="gloo", start_method="fork")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert context.results() == [[int(signal.SIGUSR1)]]


@pytest.mark.parametrize("method", ["spawn", "fork"])
def test_what_comes_as_a_start_returns_stops_the_workers(
    monkeypatch: pytest.MonkeyPatch, method: Any
) -> None:
    """Nobody has the context then, who could."""

    def let_through_too_early() -> None:
        handlers.let_handlers_through()
        signal.raise_signal(signal.SIGUSR1)

    monkeypatch.setattr(supervisor, "let_handlers_through", let_through_too_early)
    with handled(signal.SIGUSR1), pytest.raises(Interrupted):
        rankspawn.spawn(
            jobs.sleep_for_ever, nprocs=2, backend="gloo", start_method=method, join=False
        )
    assert active_children() == []


class Alarming:
    """Has a signal come while it is pickled."""

    def __reduce__(self) -> Any:
        signal.raise_signal(signal.SIGUSR1)
        return Alarming, ()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", [TimeoutError, ValueError])
def test_what_a_handler_raises_while_arguments_are_pickled(
    method: Any, kind: type[Exception]
) -> None:
    def fail(*_: object) -> NoReturn:
        raise kind("of the handler")

    with handled(signal.SIGUSR1, fail), pytest.raises(kind, match=r"^of the handler$"):
        rankspawn.spawn(
            jobs.do_nothing, args=(Alarming(),), nprocs=1, backend="gloo", start_method=method
        )


TRACED = ("rankspawn", "contextlib", "multiprocessing", "subprocess")
UNTRACED = (
    # Reads of the machine before anything is started: its files go with their frame.
    "rankspawn.machine",
    # Makes values, in many lines, and opens nothing.
    "rankspawn.values",
    # Walks through all classes of this process, which are thousands, and opens nothing.
    "rankspawn.workers.known_classes",
    # Holds a lock of its own at the end of a block, where a tracer can raise, and no handler can.
    "multiprocessing.resource_tracker",
)


class InterruptAt:
    """Has a signal come before one of the lines that run in here, as they are counted."""

    def __init__(self, number: int) -> None:
        self.seen = 0
        self.where = "no line"
        self._pid = os.getpid()  # a forked worker is not to be interrupted
        self._number = number

    def __enter__(self) -> InterruptAt:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, _: object) -> Any:
        name = frame.f_globals.get("__name__", "")
        # Nor what is collected: Python swallows all that is raised in there.
        if name in UNTRACED or not name.startswith(TRACED) or is_collecting(frame):
            return None
        if event == "line" and os.getpid() == self._pid:
            self.seen += 1
            if self.seen - 1 == self._number:
                self.where = f"{name}, line {frame.f_lineno}"
                signal.raise_signal(signal.SIGUSR1)
        return self._trace


def is_collecting(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code.co_name != "__del__":
        frame = frame.f_back
    return frame is not None


def state() -> tuple[list[str], int]:
    return sorted(jobs.open_files()), len(active_children())


def interrupt_at_each_line(call: Callable[[], object], step: int) -> None:
    """Run it over and over, interrupted at another line each time, until it was at none."""
    call()  # makes what stays for ever
    gc.collect()
    before = state()
    with handled(signal.SIGUSR1):
        for number in itertools.count(0, step):
            try:
                with InterruptAt(number) as tracer:
                    call()
            except Interrupted:
                pass
            if state() != before:
                gc.collect()
            assert state() == before, f"left behind after an interrupt in {tracer.where}"
            assert signal.getsignal(signal.SIGUSR1) is interrupt, f"not given back: {tracer.where}"
            if tracer.seen <= number:
                return


class Quiet:
    """A stream on which a signal comes while it is flushed."""

    def flush(self) -> None:
        signal.raise_signal(signal.SIGUSR1)


class Finder:
    """Looks for modules, and a signal comes meanwhile."""

    def find_spec(self, *_: object) -> None:
        signal.raise_signal(signal.SIGUSR1)


@pytest.mark.parametrize("moment", ["plan", "flush", "import"])
def test_a_timeout_error_of_a_handler_is_no_error_of_a_file(
    monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """It is an OSError, too, and these are harmless in many places."""

    def time_out(*_: object) -> NoReturn:
        raise TimeoutError("of the handler")

    signals = [signal.SIGUSR1]

    def read(_: str) -> str:
        with suppress(OSError):
            while signals:
                signal.raise_signal(signals.pop())
        return ""

    if moment == "plan":
        monkeypatch.setattr(machine, "read_file", read)
    elif moment == "flush":
        monkeypatch.setattr(sys, "stderr", Quiet())
    else:
        monkeypatch.setattr(sys, "meta_path", [Finder(), *sys.meta_path])
    method: Any = "spawn" if moment == "import" else "fork"
    with handled(signal.SIGUSR1, time_out), pytest.raises(TimeoutError, match="of the handler"):
        rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", start_method=method)


# The file of a module that the first call imports is looked for when the signal comes.
FIRST_CALL = """
import os, signal, sys
from importlib import _bootstrap_external as machinery
import rankspawn

def time_out(*_):
    raise TimeoutError("of the handler")

def look(path, real=machinery._path_stat):
    while signals and path.endswith(sys.argv[1]):
        signal.raise_signal(signals.pop())
    return real(path)

signals = [signal.SIGUSR1]
signal.signal(signal.SIGUSR1, time_out)
machinery._path_stat = look
try:
    how = {"nprocs": 1, "start_method": "fork", "join": False}
    if sys.argv[2] == "ours":
        context = rankspawn.spawn(os.getpid, backend="gloo", **how)
    else:
        from rankspawn.compat.torch import start_processes
        context = start_processes(abs, **how)
    context.dump_stacks()
except TimeoutError as error:
    print(error)
"""


@pytest.mark.parametrize(
    ("module", "names"),
    [
        *((module, "ours") for module in ("caller", "spawning", "pickling", "forked", "stacks")),
        *((module, "torch's") for module in ("starting", "pickling", "forked")),
    ],
)
def test_a_timeout_error_of_a_handler_is_not_lost_in_the_first_call(
    module: str, names: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FIRST_CALL, f"{module}.py", names],
        timeout=DEADLOCK,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "of the handler\n", done.stderr


def fork_one() -> None:
    rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", start_method="fork")


def test_nothing_is_left_by_an_interrupt_at_many_lines() -> None:
    interrupt_at_each_line(fork_one, 97)


@pytest.mark.slow
def test_nothing_is_left_by_an_interrupt_at_more_lines() -> None:
    interrupt_at_each_line(fork_one, 4)


@pytest.mark.slow
def test_the_same_with_a_fresh_interpreter() -> None:
    interrupt_at_each_line(lambda: rankspawn.spawn(jobs.do_nothing, nprocs=2, backend="gloo"), 41)
