"""``compat.torch`` is ``torch.multiprocessing``: what its own suite looks at, over both.

Outcomes of ``start_processes`` are compared case by case in ``test_torch_spawn_parity.py``.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rankspawn.compat.torch as compat  # noqa: E402  # only where torch is installed
from tests.interop import torch_cases as cases  # noqa: E402

pytestmark = [
    pytest.mark.interop,
    # Python 3.12 and later warn that torch's threads make fork unsafe; fork is a subject here.
    pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork:DeprecationWarning"),
]

DEADLOCK = 60.0
mp = torch.multiprocessing
LOGGERS = {mp: "torch.multiprocessing.spawn", compat: "rankspawn.compat.torch"}


@pytest.fixture(params=[mp, compat], ids=["torch", "compat"])
def module(request: pytest.FixtureRequest) -> Any:
    return request.param


def join_in_a_loop(context: Any, **arguments: Any) -> None:
    while not context.join(**arguments):
        pass


@pytest.mark.parametrize("name", [n for n in mp.__all__ if n not in compat.__all__])
def test_every_public_name_is_torchs_own(name: str) -> None:
    assert getattr(compat, name) is getattr(mp, name)


def test_a_name_that_torch_lacks_is_an_attribute_error(module: Any) -> None:
    with pytest.raises(AttributeError, match="no attribute 'spown'"):
        _ = module.spown


def test_a_failure_is_caught_under_torchs_name(module: Any, start_method: str) -> None:
    with pytest.raises(mp.ProcessRaisedException, match="legitimate exception from rank 1"):
        module.start_processes(cases.raise_in_rank_1, nprocs=2, start_method=start_method)
    with pytest.raises(mp.ProcessExitedException) as caught:
        module.start_processes(
            cases.kill_rank_1, args=(signal.SIGUSR1,), nprocs=2, start_method=start_method
        )
    error = caught.value
    assert (error.exit_code, error.signal_name) == (-signal.SIGUSR1, "SIGUSR1")
    for copy in (error, pickle.loads(pickle.dumps(error))):
        assert isinstance(copy, mp.ProcessExitedException)
        assert (copy.error_index, copy.exit_code) == (1, -signal.SIGUSR1)


def test_the_context_is_an_instance_of_torchs(module: Any) -> None:
    context = module.start_processes(cases.succeed, nprocs=2, join=False, start_method="fork")

    assert isinstance(context, mp.ProcessContext)
    assert isinstance(context, module.ProcessContext)
    join_in_a_loop(context)


def test_start_method_of_none_is_the_default(module: Any) -> None:
    assert module.start_processes(cases.succeed, nprocs=1, start_method=None) is None


@pytest.mark.parametrize("args", [["a"], "a", {"a": 1}, {"a"}], ids=["list", "str", "dict", "set"])
def test_arguments_are_of_any_iterable(module: Any, args: Any) -> None:
    module.start_processes(cases.expect, args=args, nprocs=1, start_method="fork")


@pytest.mark.parametrize("grace_period", [None, DEADLOCK])
def test_grace_period_is_for_ending_without_a_signal(
    module: Any, grace_period: float | None
) -> None:
    """Rank 0 ends by itself once rank 1 has; a SIGTERM before that is its exit code."""
    pipe = multiprocessing.get_context("spawn").Pipe()
    context = module.start_processes(
        cases.end_after_rank_1, args=(*pipe, grace_period is None), nprocs=2, join=False
    )

    with pytest.raises(mp.ProcessRaisedException, match="rank 0 goes on"):
        join_in_a_loop(context, grace_period=grace_period)

    expected = -signal.SIGTERM if grace_period is None else 0
    assert [process.exitcode for process in context.processes] == [expected, 1]
    for end in pipe:
        end.close()


def test_who_is_terminated_is_logged(module: Any, caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger(LOGGERS[module])
    logger.addHandler(caplog.handler)  # torch's do not go further up
    try:
        context = module.spawn(cases.raise_in_rank_1, nprocs=2, join=False)
        with pytest.raises(mp.ProcessRaisedException):
            join_in_a_loop(context)
    finally:
        logger.removeHandler(caplog.handler)

    assert f"Terminating process {context.pids()[0]} via signal SIGTERM" in caplog.messages


def write_error(path: str) -> None:
    Path(path).write_bytes(pickle.dumps("the traceback\n"))
    os._exit(1)


def test_a_context_of_processes(module: Any, tmp_path: Path) -> None:
    fork = multiprocessing.get_context("fork")
    paths = [str(tmp_path / str(index)) for index in range(2)]
    processes = [
        fork.Process(target=cases.wait_until_stopped),
        fork.Process(target=write_error, args=(paths[1],)),
    ]
    for process in processes:
        process.start()

    context = module.ProcessContext(processes, paths)

    assert context.error_files == paths
    assert context.pids() == [process.pid for process in processes]
    with pytest.raises(mp.ProcessRaisedException) as caught:
        join_in_a_loop(context)
    assert str(caught.value) == (
        "\n\n-- Process 1 terminated with the following error:\nthe traceback\n"
    )
    assert (caught.value.error_index, caught.value.error_pid) == (1, processes[1].pid)
    assert processes[0].exitcode == -signal.SIGTERM


def test_error_files_have_the_traceback(module: Any) -> None:
    context = module.start_processes(
        cases.raise_two_arguments, nprocs=1, join=False, start_method="fork"
    )
    (path,) = context.error_files
    assert wait([context.processes[0].sentinel], timeout=DEADLOCK)
    with pytest.raises(mp.ProcessRaisedException):
        context.join()

    text = pickle.loads(Path(path).read_bytes())
    assert text.endswith("TwoArguments: this and that\n")
    os.unlink(path)
