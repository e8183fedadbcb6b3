"""A breakpoint in a rank that has no terminal, and in one that another is debugged beside."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from rankspawn import MultiprocessContext, ProcessRaisedException
from rankspawn.plan.environ import DEBUG_VARIABLE
from rankspawn.view.terminal import check_terminal
from rankspawn.workers import breakpoints, child
from rankspawn.workers.meeting import MEETING_VARIABLE, MeetingPlace
from tests import jobs

Run = Callable[..., MultiprocessContext]


def reach_a_breakpoint() -> None:
    breakpoint()


def reach_a_debugger() -> None:
    import pdb

    pdb.Pdb().set_trace()  # not the function: pytest has another there
    jobs.do_nothing()


def test_a_breakpoint_without_a_terminal_says_what_to_do(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(reach_a_breakpoint, nprocs=1)

    last = str(caught.value).splitlines()[-1]
    assert last.startswith("RuntimeError: a breakpoint in rank 0, which has no terminal")
    assert "debug=0" in last


def test_so_does_a_debugger_that_is_called_by_its_name(run: Run) -> None:
    with pytest.raises(ProcessRaisedException, match=r"BdbQuit\n\(a breakpoint .* debug=0"):
        run(reach_a_debugger, nprocs=1)


def test_what_the_user_chose_for_breakpoints_counts(run: Run) -> None:
    run(reach_a_breakpoint, nprocs=1, env={"PYTHONBREAKPOINT": "0"})


def test_a_hook_of_the_program_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    hook = lambda: None  # noqa: E731
    monkeypatch.setattr(sys, "breakpointhook", hook)
    child.refuse_breakpoints()
    assert sys.breakpointhook is hook


def test_the_others_wait_until_the_debugged_rank_has_passed_as_many(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(breakpoints, "_reached", 0)
    monkeypatch.setenv(DEBUG_VARIABLE, "1,hold")
    monkeypatch.setenv("RANK", "0")
    passed: list[None] = []
    with contextlib.closing(MeetingPlace()) as place:
        monkeypatch.setenv(MEETING_VARIABLE, place.address)

        def pass_one(_: float) -> None:
            passed.append(None)
            breakpoints._note_passed(len(passed))

        monkeypatch.setattr(breakpoints, "time", SimpleNamespace(sleep=pass_one))
        breakpoints.stop()
        assert len(passed) == 1
        breakpoints.stop()
        assert len(passed) == 2
    breakpoints.stop()  # the group is gone, and nobody to wait for


def test_a_rank_beside_one_that_is_debugged_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DEBUG_VARIABLE, "1")
    monkeypatch.setenv("RANK", "0")
    breakpoints.stop()


def test_debugging_needs_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="debug=1 needs a terminal, which a notebook has not"):
        check_terminal("debug=1", in_notebook=True)
    monkeypatch.setattr(os, "isatty", lambda _: False)
    with pytest.raises(ValueError, match="debug=1 needs a terminal, and the standard input of"):
        check_terminal("debug=1", in_notebook=False)
