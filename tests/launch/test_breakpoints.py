"""What ranks of rankrun do at a breakpoint: one has the terminal, or an editor, or none has."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from rankspawn.interrupts import Signals
from rankspawn.launch.breakpoints import check_debuggers, with_debuggers
from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import TRAINER, ProgramSpec
from rankspawn.plan.environ import DEBUG_VARIABLE, HOOK, HOOK_VARIABLE, breakpoint_env
from tests.launch.factories import config_of
from tests.launch.running import COMMAND, environment, run_script, write_script
from tests.terminal import Terminal

if TYPE_CHECKING:
    from rankspawn.descriptors import Closable

CPU = ("--device_type", "cpu")


def told(line: str, count: int = 2) -> tuple[list[ProgramSpec], list[Closable]]:
    config = config_of(line)
    specs = [
        ProgramSpec(TRAINER, rank, config.command("python"), {}, f"log.{rank}", rank == 0)
        for rank in range(count)
    ]
    resources: list[Closable] = []
    return with_debuggers(config, specs, resources), resources


@pytest.fixture(autouse=True)
def nothing_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(HOOK_VARIABLE, raising=False)


def inputs(specs: Sequence[ProgramSpec]) -> list[bool]:
    return [spec.reads_input for spec in specs]


def test_what_programs_are_told_without_a_debugger() -> None:
    told = breakpoint_env({HOOK_VARIABLE: HOOK, DEBUG_VARIABLE: "1"}, is_python=True)
    assert told == {DEBUG_VARIABLE: None, HOOK_VARIABLE: HOOK}
    assert breakpoint_env({HOOK_VARIABLE: "0"}, is_python=True) == {}
    assert breakpoint_env({}, is_python=False) == {}


def test_the_debugged_rank_has_the_terminal() -> None:
    specs, _ = told("--debug 1,hold")
    assert inputs(specs) == [False, True]
    assert [spec.debugged for spec in specs] == [False, True]
    assert not any(spec.on_terminal for spec in specs)
    assert specs[0].env == {DEBUG_VARIABLE: "1,hold"}
    with pytest.raises(UsageError, match="--debug 2 is no rank: the ranks are 0 to 1"):
        told("--debug 2")


def test_chosen_ranks_run_under_debugpy() -> None:
    specs, resources = told("--debugpy 1,wait")
    for each in resources:
        each.close()
    assert specs[0].command == ("python", "-u", "train.py", "--lr", "0.1")
    assert specs[0].env == {"PYTHONBREAKPOINT": "0"}
    before, address, *after = (
        " ".join(specs[1].command).split(" --listen ")[0],
        *specs[1].command[5:],
    )
    assert before == "python -u -m debugpy"
    assert address.startswith("127.0.0.1:")
    assert after == ["--wait-for-client", "train.py", "--lr", "0.1"]
    assert specs[1].env["PYTHONBREAKPOINT"] == "debugpy.breakpoint"
    with pytest.raises(UsageError, match="--debugpy 2 is no rank"):
        told("--debugpy 2")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("--debug 0", "--debug 0 needs a terminal, and the standard input"),
        ("--debug 0 --nnodes 2 --master a:1", "of this job are on several machines"),
        ("--debug 0 --progress", "--debug 0 and --progress both want the terminal"),
        ("--debug 0 --redirects 3", "and torchrun's words for streams both want"),
    ],
)
def test_what_is_refused_before_the_start(
    monkeypatch: pytest.MonkeyPatch, line: str, reason: str
) -> None:
    monkeypatch.setattr(os, "isatty", lambda _: False)
    with pytest.raises(UsageError, match=reason):
        check_debuggers(config_of(line))


def test_an_interrupt_that_is_meant_for_another() -> None:
    signals = Signals()
    answers = [False, True]
    signals.takes_interrupt = lambda: answers.pop(0)
    signals._note(2, None)
    assert signals.ending is None
    signals._note(2, None)
    assert signals.ending == 2


ALL_REACH_IT = """
import os, sys
rank = int(os.environ["RANK"])
answer = 40 + rank
breakpoint()
print("rank", rank, "has", answer, sys.stdin.read() if rank == 0 else "")
"""


def test_one_rank_is_debugged_in_the_terminal(tmp_path: Path) -> None:
    write_script(tmp_path, ALL_REACH_IT)
    flags = ("--nproc_per_node", "2", *CPU, "--debug", "1,hold", "train.py")
    session = Terminal([*COMMAND[1:], *flags], cwd=tmp_path, env=environment())
    try:
        session.read_until("(Pdb) ")
        # It is the debugger's: neither the launcher nor the other rank ends of it.
        session.press_ctrl_c()
        # One that comes before the prompt waits for a line is taken with the first line.
        while "('still', 'here')" not in session.output:
            session.type_line("p 'still', 'here'")
            session.read_for(0.2)
        session.type_line("answer = 42")
        session.type_line("continue")
        assert session.finish() == 0, session.output
    finally:
        session.close()
    assert "rank 1 has 42" in session.output
    assert "rank 0 has" not in session.output
    assert (tmp_path / "log" / "workerlog.0").read_text().split() == ["rank", "0", "has", "40"]
    assert (tmp_path / "log" / "workerlog.1").read_text() == ""


def test_a_breakpoint_without_a_terminal(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import os\nif os.environ['RANK'] == '1': breakpoint()", *CPU)
    assert done.code == 1
    assert "BdbQuit" not in done.errors
    assert "a breakpoint in rank 1, which has no terminal" in done.errors
    assert "rankrun --debug 1, or set PYTHONBREAKPOINT=0" in done.errors
