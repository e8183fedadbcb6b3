"""``rankspawn.compat.torch`` against torch's own spawn, case by case.

Every test runs one case under both and compares what a program can see: the value, the class
of the error, its attributes, and its text. Where the two differ on purpose, a test of its own
says how.
"""

from __future__ import annotations

import inspect
import multiprocessing
import os
import pickle
import select
import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import wait
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from tests.interop import torch_cases as cases  # noqa: E402  # only where torch is installed
from tests.interop.torch_cases import CASES, Case  # noqa: E402

pytestmark = [
    pytest.mark.interop,
    # Python 3.12 and later warn that torch's threads make fork unsafe; fork is the subject here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

DEADLOCK = 60.0
TORCH = "torch.multiprocessing"
COMPAT = "rankspawn.compat.torch"
NAMES = [
    "spawn",
    "start_processes",
    "ProcessContext",
    "ProcessException",
    "ProcessRaisedException",
    "ProcessExitedException",
]


def api_of(module: str) -> Any:
    """The module whose names a torch script uses."""
    # torch.multiprocessing has all but the base class of the exceptions, and its attribute
    # ``spawn`` is the function, so that the module of that name comes by import only.
    return pytest.importorskip(module + ".spawn" if module == TORCH else module)


@pytest.fixture(params=[TORCH, COMPAT])
def module(request: pytest.FixtureRequest) -> str:
    """For what must hold of both, and needs no comparison."""
    return str(request.param)


@dataclass(frozen=True)
class Outcome:
    """What a caller can see of one run."""

    returned: object = None
    error: str | None = None
    bases: tuple[str, ...] = ()
    index: int | None = None
    pid_is_of_index: bool | None = None
    exit_code: int | None = None
    signal_name: str | None = None
    message: str = ""
    msg_is_message: bool = True
    survives_pickling: bool = True


def frames_of_the_case(message: str) -> str:
    """The message without the frames of either library: those of the worker functions only."""
    kept: list[str] = []
    own = True
    for line in message.splitlines(keepends=True):
        if line.startswith('  File "'):
            own = "torch_cases.py" in line
        elif not line.startswith("    "):
            own = True
        if own:
            kept.append(line)
    return "".join(kept)


def seen_of(error: Exception, pids: list[int]) -> Outcome:
    """The outcome of a run that raised."""
    index = getattr(error, "error_index", None)
    copy = pickle.loads(pickle.dumps(error))
    names = ("error_index", "error_pid", "exit_code", "signal_name")
    return Outcome(
        error=type(error).__name__,
        # The classes' own names, each once: ours are torch's, too.
        bases=tuple(dict.fromkeys(c.__name__ for c in type(error).__mro__ if c.__name__ in NAMES)),
        index=index,
        pid_is_of_index=index is not None and getattr(error, "error_pid", None) == pids[index],
        exit_code=getattr(error, "exit_code", None),
        signal_name=getattr(error, "signal_name", None),
        message=frames_of_the_case(str(error)),
        msg_is_message=getattr(error, "msg", None) == str(error),
        survives_pickling=type(copy) is type(error)
        and str(copy) == str(error)
        and all(getattr(copy, n, None) == getattr(error, n, None) for n in names),
    )


def join_in_a_loop(context: Any) -> object:
    """Join as torch's users do: again and again until it says True.

    torch's ``join`` returns False when some, not all, of the processes have ended.
    """
    while True:
        joined = context.join(timeout=DEADLOCK)
        assert joined in (True, False)
        if joined:
            return joined


def outcome_of(context: Any, pids: list[int]) -> Outcome:
    try:
        return Outcome(returned=join_in_a_loop(context))
    except api_of(TORCH).ProcessException as error:
        return seen_of(error, pids)
    except api_of(COMPAT).ProcessException as error:
        return seen_of(error, pids)


def run(module: str, case: Case, start_method: str) -> Outcome:
    """Run a case without blocking, and look at the outcome of joining it."""
    context = api_of(module).start_processes(
        case.function, args=case.args, nprocs=case.nprocs, join=False, start_method=start_method
    )
    outcome = outcome_of(context, context.pids())
    if case.any_rank and outcome.index is not None:
        message = outcome.message.replace(f"rocess {outcome.index} ", "rocess N ")
        message = message.replace(f"rank {outcome.index}\n", "rank N\n")
        outcome = replace(outcome, index=None, message=message)
    return outcome


def run_joined(module: str, case: Case, start_method: str) -> tuple[object, str, str]:
    """Run a case with ``join=True``: the value, or the error's class and text."""
    api = api_of(module)
    try:
        value = api.start_processes(
            case.function, args=case.args, nprocs=case.nprocs, start_method=start_method
        )
    except api.ProcessException as error:
        return None, type(error).__name__, frames_of_the_case(str(error))
    return value, "", ""


@pytest.mark.parametrize("case", CASES, ids=str)
def test_case_has_the_same_outcome(case: Case, start_method: str) -> None:
    expected = run(TORCH, case, start_method)
    assert expected.msg_is_message
    assert expected.survives_pickling

    assert run(COMPAT, case, start_method) == expected


JOINED_AT_ONCE = {"success", "exception_in_one", "sigkill", "sys_exit_7", "os_exit_7"}


@pytest.mark.parametrize("case", [c for c in CASES if c.name in JOINED_AT_ONCE], ids=str)
def test_case_has_the_same_outcome_when_joined_at_once(case: Case) -> None:
    expected = run_joined(TORCH, case, "spawn")
    assert expected[0] is None

    assert run_joined(COMPAT, case, "spawn") == expected


def test_exit_with_a_text_has_code_1(capfd: pytest.CaptureFixture[str]) -> None:
    case = Case("sys_exit_text", cases.sys_exit_rank_1, ("the reason",))
    expected = run(TORCH, case, "spawn")
    assert "the reason" in capfd.readouterr().err

    outcome = run(COMPAT, case, "spawn")

    # torch leaves the text to stderr; here it follows in the message.
    assert outcome.message.startswith(expected.message)
    assert replace(outcome, message=expected.message) == expected


def test_spawn_passes_the_rank_and_the_arguments(module: str) -> None:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with closing(queue):
        value = api_of(module).spawn(cases.put_arguments, args=(queue, "a", 2), nprocs=2)
        got = sorted(queue.get() for _ in range(2))

    assert value is None
    assert got == [(0, ("a", 2)), (1, ("a", 2))]


def test_spawn_starts_one_process_unless_told() -> None:
    for module in (TORCH, COMPAT):
        context = api_of(module).spawn(cases.succeed, join=False)
        assert len(context.processes) == 1
        assert join_in_a_loop(context) is True


def test_arguments_may_be_a_list(module: str) -> None:
    queue = multiprocessing.get_context("spawn").SimpleQueue()
    with closing(queue):
        api_of(module).spawn(cases.put_arguments, args=[queue, "a"], nprocs=1)
        assert queue.get() == (0, ("a",))


def test_join_tells_running_from_ended(module: str, start_method: str) -> None:
    gate = multiprocessing.get_context(start_method).Event()
    api = api_of(module)

    context = api.start_processes(
        cases.wait_for, args=(gate,), nprocs=2, join=False, start_method=start_method
    )

    assert type(context) is api.ProcessContext
    assert isinstance(context.pids(), list)
    assert context.pids() == [process.pid for process in context.processes]
    assert isinstance(context.sentinels, dict)
    assert sorted(context.sentinels.values()) == [0, 1]
    assert all(s == context.processes[i].sentinel for s, i in context.sentinels.items())
    assert [process.exitcode for process in context.processes] == [None, None]
    assert context.join(0) is False
    assert context.join(timeout=0.05) is False
    gate.set()
    assert join_in_a_loop(context) is True
    assert context.sentinels == {}
    assert [process.exitcode for process in context.processes] == [0, 0]
    assert context.join() is True
    assert context.join(0) is True


def test_first_success_then_failure(start_method: str) -> None:
    def run_it(module: str) -> Outcome:
        first_is_done = multiprocessing.get_context(start_method).Event()
        context = api_of(module).start_processes(
            cases.succeed_then_fail,
            args=(first_is_done,),
            nprocs=2,
            join=False,
            start_method=start_method,
        )
        assert wait([context.processes[0].sentinel], timeout=DEADLOCK)
        first_is_done.set()
        return outcome_of(context, context.pids())

    expected = run_it(TORCH)
    assert expected.index == 1

    assert run_it(COMPAT) == expected


def test_nested_success(start_method: str) -> None:
    def run_it(module: str) -> Outcome:
        args = (module, start_method, "succeed")
        return run(module, Case("nested_success", cases.nest, args), start_method)

    expected = run_it(TORCH)
    assert expected.returned is True

    assert run_it(COMPAT) == expected


def test_nested_failure_shows_both_tracebacks(start_method: str) -> None:
    def run_it(module: str) -> list[str]:
        args = (module, start_method, "raise_in_rank_1")
        case = Case("nested_failure", cases.nest, args, nprocs=1)
        outcome = run(module, case, start_method)
        assert outcome.error == "ProcessRaisedException"
        return [line for line in outcome.message.splitlines() if line.strip()]

    expected = run_it(TORCH)
    got = run_it(COMPAT)

    # In between they differ: the exception's module is named, and here its cause comes first.
    beginning, end = "-- Process 0 terminated", "ValueError: legitimate exception from rank 1"
    inner = "-- Process 1 terminated with the following error:"
    for lines in (expected, got):
        assert lines[0].startswith(beginning)
        assert lines[-1] == end
        assert inner in lines
    assert got[0] == expected[0]


@contextmanager
def ends_of(pids: list[int]) -> Iterator[Callable[[], bool]]:
    """Watch processes that are not our children: a function that waits until all have ended.

    On leaving, those that have not are killed.
    """
    handles = [os.pidfd_open(pid) for pid in pids]

    def all_ended() -> bool:
        return all(select.select([handle], [], [], DEADLOCK)[0] for handle in handles)

    try:
        yield all_ended
    finally:
        for handle in handles:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
            os.close(handle)


def test_nested_workers_end_with_the_worker_that_started_them(
    module: str, start_method: str
) -> None:
    if (module, start_method) == (TORCH, "forkserver"):
        pytest.skip("torch's nested workers outlive theirs here: their parent is the forkserver")
    if module == TORCH and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        pytest.skip("torch ends nested workers by SIGINT, which is ignored here, as under nohup")
    pids = multiprocessing.get_context(start_method).SimpleQueue()
    args = (module, start_method, "put_pid_and_wait", pids)
    context = api_of(module).start_processes(
        cases.nest, args=args, nprocs=1, join=False, start_method=start_method
    )
    inner = [pids.get() for _ in range(2)]
    pids.close()
    with ends_of(inner) as all_ended:
        context.processes[0].kill()

        outcome = outcome_of(context, context.pids())

        assert outcome.message == "process 0 terminated with signal SIGKILL"
        assert all_ended()


def test_grace_period_bounds_the_wait_for_a_stubborn_rank(module: str) -> None:
    ready = multiprocessing.get_context("spawn").Event()
    api = api_of(module)
    context = api.spawn(cases.ignore_sigterm, args=(ready,), nprocs=2, join=False)

    with pytest.raises(api.ProcessRaisedException, match="rank 0 will not stop for this"):
        context.join(grace_period=0.1)

    assert [process.exitcode for process in context.processes] == [-9, 1]


def test_daemon_flag_reaches_the_processes(module: str) -> None:
    context = api_of(module).spawn(cases.succeed, nprocs=2, join=False, daemon=True)

    assert [process.daemon for process in context.processes] == [True, True]
    assert join_in_a_loop(context) is True


def test_spawn_warns_of_another_start_method(module: str) -> None:
    with pytest.warns(FutureWarning, match="start_processes"):
        assert api_of(module).spawn(cases.succeed, nprocs=1, start_method="fork") is None


def test_unknown_start_method_is_a_value_error(module: str) -> None:
    with pytest.raises(ValueError, match="bogus"):
        api_of(module).start_processes(cases.succeed, nprocs=1, start_method="bogus")


@pytest.mark.parametrize("name", NAMES)
def test_name_is_there(name: str) -> None:
    assert hasattr(api_of(TORCH), name)
    assert hasattr(api_of(COMPAT), name)


@pytest.mark.parametrize("name", ["spawn", "start_processes", "ProcessContext.join"])
def test_signature_is_the_same(name: str) -> None:
    def parameters(module: str) -> list[tuple[str, object, object]]:
        target = api_of(module)
        for part in name.split("."):
            target = getattr(target, part)
        return [(p.name, p.kind, p.default) for p in inspect.signature(target).parameters.values()]

    assert parameters(COMPAT) == parameters(TORCH)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("ProcessException", {"msg": "text", "error_index": 3, "error_pid": 44}),
        ("ProcessRaisedException", {"msg": "text", "error_index": 3, "error_pid": 44}),
        (
            "ProcessExitedException",
            {
                "msg": "text",
                "error_index": 3,
                "error_pid": 44,
                "exit_code": -9,
                "signal_name": "SIGKILL",
            },
        ),
    ],
)
def test_exception_can_be_built_as_torch_builds_it(
    module: str, name: str, values: dict[str, Any]
) -> None:
    class_ = getattr(api_of(module), name)

    for error in (class_(*values.values()), class_(**values)):
        for copy in (error, pickle.loads(pickle.dumps(error))):
            assert str(copy) == "text"
            assert {key: getattr(copy, key) for key in values} == values


# Where the two differ, because torch lets a failed worker pass for a good one.


@pytest.mark.parametrize(
    "case",
    [
        Case("os_exit_0", cases.os_exit_everywhere, (0,), any_rank=True),
        Case("keyboard_interrupt", cases.raise_base_exception, any_rank=True),
    ],
    ids=str,
)
def test_vanished_worker_is_a_failure_only_here(case: Case, start_method: str) -> None:
    assert run(TORCH, case, start_method).returned is True

    assert run(COMPAT, case, start_method).error is not None


def test_join_after_a_failure_raises_the_same_only_here() -> None:
    def join_three_times(module: str) -> list[str]:
        api = api_of(module)
        context = api.spawn(cases.raise_in_rank_1, nprocs=2, join=False)
        seen = []
        for _ in range(3):
            try:
                seen.append(str(context.join()))
            except api.ProcessException as error:
                seen.append(f"{type(error).__name__} {error.error_index}")
        return seen

    # torch then blames rank 0, which it stopped itself, and at last calls it a success.
    assert join_three_times(TORCH) == [
        "ProcessRaisedException 1",
        "ProcessExitedException 0",
        "True",
    ]

    assert join_three_times(COMPAT) == ["ProcessRaisedException 1"] * 3
