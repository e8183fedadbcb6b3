"""Where editors reach the ranks that they debug."""

from __future__ import annotations

import os
import sys
from importlib import util
from types import SimpleNamespace

import pytest

from rankspawn.option_values import DebugpyRequest
from rankspawn.plan.debuggers import check_debugged_rank, check_debugpy, hold_debug_ports
from rankspawn.workers import remote_debugger


def test_each_chosen_rank_has_a_port_and_the_others_none() -> None:
    held, told = hold_debug_ports(DebugpyRequest(3, waits=True), [2, 3])
    with_all, told_all = hold_debug_ports(DebugpyRequest(None), [2, 3])
    try:
        assert told == ["", f"{held.ports[0]},wait"]
        assert told_all == [str(port) for port in with_all.ports]
        assert len(set(with_all.ports)) == 2
    finally:
        held.close()
        with_all.close()


def test_what_cannot_be_debugged_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="debug=0 and debugpy=0 cannot be given at once"):
        check_debugpy("debugpy=0", other="debug=0")
    with pytest.raises(ValueError, match="debugpy=2,wait is no rank: the ranks are 0 to 1"):
        check_debugged_rank("debugpy=2,wait", 2, 2)
    check_debugged_rank("debugpy=all", None, 2)

    monkeypatch.setattr(util, "find_spec", lambda _: None)
    with pytest.raises(ModuleNotFoundError, match="debugpy=all needs the package debugpy"):
        check_debugpy("debugpy=all", other="")


@pytest.fixture
def debugger(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """One that notes what it is asked for."""
    asked: list[object] = []

    def listen(address: tuple[str, int]) -> tuple[str, int]:
        asked.append(address)
        return address

    fake = SimpleNamespace(
        asked=asked,
        listen=listen,
        breakpoint=lambda: None,
        wait_for_client=lambda: asked.append("wait"),
    )
    monkeypatch.setitem(sys.modules, "debugpy", fake)
    monkeypatch.setattr(sys, "breakpointhook", sys.breakpointhook)
    monkeypatch.setenv("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    monkeypatch.setenv("RANKSPAWN_DEBUGPY", "of this one")
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    return fake


def test_a_rank_listens_says_where_and_waits(
    debugger: SimpleNamespace, capsys: pytest.CaptureFixture[str]
) -> None:
    remote_debugger.listen("4321,wait")
    assert debugger.asked == [("127.0.0.1", 4321), "wait"]
    assert "waits for a debugger at 127.0.0.1:4321\n" in capsys.readouterr().err
    assert sys.breakpointhook is debugger.breakpoint
    assert "RANKSPAWN_DEBUGPY" not in os.environ


def test_the_others_pass_their_breakpoints(debugger: SimpleNamespace) -> None:
    remote_debugger.listen("")
    sys.breakpointhook("anything", header="else")
    assert debugger.asked == []


def test_what_the_user_chose_for_breakpoints_stays(
    debugger: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = sys.breakpointhook
    monkeypatch.setenv("PYTHONBREAKPOINT", "0")
    remote_debugger.listen("4321")
    assert sys.breakpointhook is chosen
    assert debugger.asked == [("127.0.0.1", 4321)]
