"""How a worker ends, and what its caller is told."""

from __future__ import annotations

import linecache
import multiprocessing
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace

import pytest

from rankspawn import (
    MultiprocessContext,
    ProcessExitedException,
    ProcessRaisedException,
    SpawnTimeoutError,
)
from rankspawn.supervise.failures import OURS, Wording, make_error
from rankspawn.supervise.outcome import End, Outcome
from tests import jobs
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import ScriptedReport

Run = Callable[..., MultiprocessContext]


def test_the_worker_traceback_is_raised_and_the_exception_is_its_last_line(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.rank_fails, args=(1, "raise"), nprocs=2)

    error = caught.value
    lines = str(error).splitlines()
    assert lines[0] == "Process 1 terminated with the following error:"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[-1] == "ValueError: on purpose"
    assert "rankspawn/workers" not in str(error)
    assert (error.rank, error.error_index) == (1, 1)
    assert isinstance(error.exception, ValueError)
    assert error.__cause__ is error.exception
    assert error.traceback.endswith("ValueError: on purpose\n")
    assert [failure.rank for failure in error.failures] == [1]


def test_the_traceback_has_the_code_of_a_function_without_a_file(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As a notebook or a REPL keeps it.
    cell, code = "<cell 1>", "def fail():\n    return len(1)\n"
    monkeypatch.setitem(linecache.cache, cell, (len(code), None, code.splitlines(True), cell))
    names = {"__name__": "__main__"}
    exec(compile(code, cell, "exec"), names)

    with pytest.raises(ProcessRaisedException) as caught:
        run(names["fail"], nprocs=1)

    assert caught.value.traceback.splitlines()[1:3] == [
        '  File "<cell 1>", line 2, in fail',
        "    return len(1)",
    ]


def test_an_exception_whose_constructor_takes_two_arguments_comes_back(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.rank_fails, args=(0, "two arguments"), nprocs=2)

    original = caught.value.exception
    assert type(original) is jobs.TwoArguments
    assert (original.code, original.reason, str(original)) == (7, "bad luck", "bad luck (7)")


def test_an_exception_that_cannot_be_pickled_comes_back_with_what_can(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.rank_fails, args=(0, "lock"), nprocs=2)

    original = caught.value.exception
    assert type(original) is jobs.HoldsLock
    assert original.text == "cannot travel"
    assert str(caught.value).endswith("HoldsLock: cannot travel")


def test_an_exception_of_a_local_class_comes_back_as_that_class(run: Run) -> None:
    class Local(Exception):
        pass

    def fail() -> None:
        raise Local("here")

    with pytest.raises(ProcessRaisedException) as caught:
        run(fail, nprocs=1)

    assert type(caught.value.exception).__name__ == "Local"
    # Under fork nothing was sent, so nothing ties the two classes together.
    is_fork = run.keywords["start_method"] == "fork"  # type: ignore[attr-defined]
    assert type(caught.value.exception) is Local or is_fork


@pytest.mark.parametrize(
    ("how", "words", "code", "name"),
    [
        ("exit 7", "Process 1 terminated with exit code 7", 7, None),
        ("exit text", "Process 1 terminated with exit code 1: no data", 1, None),
        ("os._exit 7", "Process 1 terminated with exit code 7", 7, None),
        (
            "os._exit 0",
            "Process 1 terminated with exit code 0: process .* exited without returning",
            0,
            None,
        ),
        (
            "SIGKILL",
            "Process 1 terminated with signal SIGKILL: .*memory may have run out",
            -9,
            "SIGKILL",
        ),
        ("SIGSEGV", "Process 1 terminated with signal SIGSEGV", -11, "SIGSEGV"),
        ("SIGTERM", "Process 1 terminated with signal SIGTERM", -15, "SIGTERM"),
    ],
)
def test_a_death_without_a_report(
    run: Run, how: str, words: str, code: int, name: str | None
) -> None:
    with pytest.raises(ProcessExitedException, match=f"^{words}") as caught:
        run(jobs.rank_fails, args=(1, how), nprocs=2)

    error = caught.value
    assert (error.rank, error.exit_code, error.signal_name) == (1, code, name)


CRASHES = {"spawn": ["SIGSEGV"], "forkserver": ["SIGABRT"], "fork": ["SIGFPE", "SIGBUS"]}


def test_a_crash_in_c_code_has_the_python_stack(run: Run, start_method: str) -> None:
    for name in CRASHES[start_method]:
        check_crash(run, name)


def check_crash(run: Run, name: str) -> None:
    with pytest.raises(ProcessExitedException, match=f"terminated with signal {name}") as caught:
        run(jobs.rank_crashes, args=(1, name), nprocs=2)

    last = str(caught.value).splitlines()[-1]
    assert "jobs.py" in last
    assert last.endswith(" in rank_crashes")
    assert pickle.loads(pickle.dumps(caught.value)).crash in str(caught.value)


def test_a_crash_is_told_of_ranks_that_crashed() -> None:
    """Not of those whose child did; and torch's wording has nothing of it."""
    outcome = Outcome(1, 77, End.DIED, -signal.SIGKILL, 0, reached_function=True)
    report = ScriptedReport(crash="Fatal Python error: Segmentation fault")
    assert "Segmentation" not in str(make_error(outcome, report, OURS))
    crashed = replace(outcome, exit_code=-signal.SIGSEGV)
    assert str(make_error(crashed, report, OURS)).endswith(report.crash)
    raw = Wording(explains=False)
    assert str(make_error(crashed, report, raw)) == "Process 1 terminated with signal SIGSEGV"


def test_keyboard_interrupt_in_a_worker_is_a_failure(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.rank_fails, args=(0, "interrupt"), nprocs=2)

    assert isinstance(caught.value.exception, KeyboardInterrupt)


@pytest.mark.parametrize("code", [None, 0])
def test_sys_exit_without_an_error_is_success(run: Run, code: int | None) -> None:
    import sys

    assert run(sys.exit, args=(code,), nprocs=2).results() == [None, None]


def test_all_failures_are_known_in_order_of_time(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.all_fail, nprocs=3)

    failures = caught.value.failures
    assert failures[0] is caught.value
    assert 1 <= len(failures) <= 3
    assert len({failure.rank for failure in failures}) == len(failures)


def test_a_failed_rank_that_does_not_end_is_noticed_and_stopped(run: Run) -> None:
    """Its non-daemon thread keeps it alive; the others must not wait for that."""
    mp = multiprocessing.get_context("spawn")
    receive, send = mp.Pipe(duplex=False)
    with receive, send, pytest.raises(ProcessRaisedException, match="the cause"):
        run(jobs.fail_in_order, args=(send, receive), nprocs=2)


def test_a_success_before_a_failure_is_kept(run: Run) -> None:
    mp = multiprocessing.get_context("spawn")
    receive, send = mp.Pipe(duplex=False)
    with receive, send:
        context = run(jobs.first_succeeds_then_fail, args=(receive,), nprocs=2, join=False)
        assert context.return_queues[0].get() == "done"
        send.send(None)
        with pytest.raises(ProcessRaisedException, match="later"):
            context.join()
    assert context.return_queues[0].empty()
    assert not context.error_queues[1].empty()
    assert context.error_queues[1].get().endswith("ValueError: later\n")
    assert context.error_queues[0].empty()


def test_a_result_that_cannot_be_pickled_names_the_culprit(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.unpicklable_result, nprocs=1)

    assert 'result["model"].lock cannot be sent back' in str(caught.value).splitlines()[-1]


def test_a_result_that_cannot_be_read_does_not_hide_the_others(run: Run) -> None:
    context = run(jobs.breaks_on_rank_1, nprocs=3)

    assert context.return_queues[0].get() == 0
    with pytest.raises(ZeroDivisionError, match="while unpickling"):
        context.return_queues[1].get()
    assert context.return_queues[2].get() == 2
    with pytest.raises(ZeroDivisionError):
        context.results()


def test_a_huge_traceback_comes_back(run: Run) -> None:
    def fail() -> None:
        raise ValueError("x" * 5_000_000)

    with pytest.raises(ProcessRaisedException) as caught:
        run(fail, nprocs=2)

    assert len(str(caught.value)) > 5_000_000
    assert len(str(caught.value.exception)) == 5_000_000


def test_causes_notes_and_groups_come_back(run: Run) -> None:
    def fail() -> None:
        try:
            os.environ["NO_SUCH_VARIABLE"]
        except KeyError as inner:
            outer = ExceptionGroup("several", [ValueError(1), jobs.TwoArguments(2, "two")])
            outer.add_note("a note")
            raise outer from inner

    with pytest.raises(ProcessRaisedException) as caught:
        run(fail, nprocs=1)

    original = caught.value.exception
    assert isinstance(original, ExceptionGroup)
    assert original.message == "several"
    assert [type(one) for one in original.exceptions] == [ValueError, jobs.TwoArguments]
    assert isinstance(original.__cause__, KeyError)
    assert original.__notes__ == ["a note"]


def test_a_worker_that_fails_on_its_way_out_is_no_success(run: Run) -> None:
    def die_at_exit() -> str:
        import atexit

        atexit.register(os.kill, os.getpid(), signal.SIGKILL)
        return "returned"

    with pytest.raises(ProcessExitedException, match="failed on its way out") as caught:
        run(die_at_exit, nprocs=1)

    assert caught.value.signal_name == "SIGKILL"


def test_timeout_tells_where_every_rank_is(run: Run) -> None:
    with pytest.raises(SpawnTimeoutError, match="did not end within 1 s") as caught:
        run(jobs.sleep_for_ever, nprocs=2, timeout=1)

    assert set(caught.value.stacks) == {0, 1}


@pytest.mark.parametrize(
    ("how", "code"), [("return", 0), ("exit 7", 7), ("exit text", 1), ("raise", 1)]
)
def test_the_end_of_a_process_that_the_function_forked_is_not_the_ranks(
    run: Run, how: str, code: int
) -> None:
    ours, theirs = multiprocessing.get_context("spawn").Pipe()
    with ours, theirs, run(jobs.fork_one_that, args=(how, theirs), nprocs=1, join=False) as context:
        assert ours.poll(jobs.DEADLOCK)
        assert ours.recv() == code
        assert not context.join(timeout=0)
        ours.send("go on")

        assert context.results() == ["of the rank"]


def test_the_result_of_a_process_that_the_function_forked_is_not_the_ranks(run: Run) -> None:
    with pytest.raises(ProcessExitedException, match="exited without returning"):
        run(jobs.fork_one_that_returns_and_vanish, nprocs=1)


def test_timeout_names_the_rank_that_differs(run: Run) -> None:
    places = {0: "never_wake_up", 1: "hold_the_gil", 2: "never_wake_up"}
    deadline = time.monotonic() + DEADLOCK
    with run(hold_up_the_others, nprocs=4, timeout=DEADLOCK, join=False, grace_period=0) as context:
        context.processes[3].join()
        while not all(text in context.dump_stacks()[rank] for rank, text in places.items()):
            assert time.monotonic() < deadline, context.dump_stacks()
        context._supervisor.deadline = time.monotonic()
        with pytest.raises(SpawnTimeoutError) as caught:
            context.join()

    assert str(caught.value).splitlines()[1:4] == [
        "rank 3 had returned before.",
        "rank 1 differs from the other 2, look there first:",
        "--- rank 1 ---",
    ]
    assert sorted(caught.value.stacks) == [0, 1, 2]


def hold_up_the_others() -> None:
    if jobs.rank() == 1:
        hold_the_gil()
    elif jobs.rank() < 3:
        jobs.never_wake_up()


def hold_the_gil() -> None:
    import ctypes

    # PyDLL keeps the GIL, so that no Python code of this process runs any more. And a read goes
    # on after a signal, which a sleep does not.
    read, _ = os.pipe()
    ctypes.PyDLL(None).read(read, ctypes.create_string_buffer(1), 1)
