"""What is said in the end, and with which exit code."""

from __future__ import annotations

import pytest

from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.pod import Ending, name_of
from rankspawn.launch.programs import HETER, SERVER, TRAINER, ProgramSpec
from rankspawn.launch.session import may_restart
from rankspawn.launch.summary import (
    describe_cause,
    describe_end,
    exit_code_of,
    find_traceback,
    summarize,
)
from rankspawn.supervise.outcome import End, Outcome

TRACEBACK = ["Traceback (most recent call last):", '  File "a.py", line 1', "ValueError: x"]


def outcome(end: End, code: int, evidence: str | None = None) -> Outcome:
    return Outcome(1, 42, end, code, 0, True, evidence=evidence)


def ending(rank: int, how: Outcome | None, seconds: float = 1.0, role: str = TRAINER) -> Ending:
    spec = ProgramSpec(role, rank, ("x",), {}, f"workerlog.{rank}", rank == 0)
    return Ending(name_of(spec), spec, how, seconds, f"/logs/workerlog.{rank}", 0)


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        (End.RETURNED, 0, "finished"),
        (End.DIED, 7, "exit code 7"),
        (End.DIED, -9, "SIGKILL"),
        (End.DIED, -37, "SIG37"),
        (End.DIED, 255, "exit code 255, or not known"),
        (End.STOPPED, -15, "stopped (SIGTERM)"),
        (End.STOPPED, 0, "stopped (exit code 0)"),
    ],
)
def test_how_a_program_ended(end: End, code: int, words: str) -> None:
    assert describe_end(outcome(end, code)) == words


def test_who_cannot_be_reaped() -> None:
    assert "cannot be reaped" in describe_end(None)


@pytest.mark.parametrize(("code", "expected"), [(1, 1), (255, 255), (-9, 137), (-2, 130)])
def test_exit_codes(code: int, expected: int) -> None:
    assert exit_code_of(outcome(End.DIED, code)) == expected


class TestSummary:
    def test_each_by_itself(self) -> None:
        endings = [
            ending(0, outcome(End.STOPPED, -15), 2.0),
            ending(1, outcome(End.DIED, 3), 1.5),
            ending(0, outcome(End.STOPPED, -15), 2.0, SERVER),
            ending(0, None, 9.25, HETER),
        ]
        assert summarize(endings, host="box", tries=1).splitlines() == [
            "4 workers on box, 9.2 s",
            "  rank 0               2.0 s  stopped (SIGTERM)",
            "  rank 1               1.5 s  exit code 3",
            "  server 0             2.0 s  stopped (SIGTERM)",
            "  heter worker 0       9.2 s  still there, and cannot be reaped",
        ]

    def test_many_together(self) -> None:
        fine = outcome(End.RETURNED, 0)
        endings = [ending(rank, fine, float(rank)) for rank in range(100)]
        endings[50] = ending(50, outcome(End.DIED, 1), 3.0)
        first, *rows = summarize(endings, host="box", tries=1).splitlines()
        assert first == "100 workers on box, 99.0 s"
        assert [row.split() for row in rows] == [
            ["rank", "0-49,51-99", "99.0", "s", "finished"],
            ["rank", "50", "3.0", "s", "exit", "code", "1"],
        ]

    def test_restarts(self) -> None:
        text = summarize([ending(0, outcome(End.RETURNED, 0))], host="box", tries=3)
        assert "started 3 times" in text


class TestCause:
    def test_who_where_why_and_what_it_said(self) -> None:
        text = describe_cause(ending(3, outcome(End.DIED, 1), 2.25), TRACEBACK, host="box")
        assert text.splitlines() == [
            "rank 3 on box (pid 42) failed after 2.2 s: exit code 1",
            "the end of /logs/workerlog.3:",
            *TRACEBACK,
        ]

    def test_a_kill_may_mean_memory(self) -> None:
        text = describe_cause(ending(3, outcome(End.DIED, -9)), [], host="box")
        assert "memory may have run out" in text
        assert text.endswith("it printed nothing to /logs/workerlog.3")

    def test_a_kill_with_evidence(self) -> None:
        how = outcome(End.DIED, -9, "memory ran out: the kernel killed 1 process(es)")
        text = describe_cause(ending(3, how), [], host="box")
        assert "SIGKILL; memory ran out: the kernel killed 1 process(es)" in text
        assert "may have" not in text


class TestTraceback:
    def test_none(self) -> None:
        lines = [str(n) for n in range(100)]
        assert find_traceback(lines) == lines[-20:]
        assert find_traceback([]) == []

    def test_the_last_one_to_the_end(self) -> None:
        lines = ["noise", *TRACEBACK, "more noise", *TRACEBACK, "a library's last words"]
        assert find_traceback(lines) == [*TRACEBACK, "a library's last words"]

    @pytest.mark.parametrize(
        "link",
        [
            "During handling of the above exception, another exception occurred:",
            "The above exception was the direct cause of the following exception:",
        ],
    )
    def test_with_what_it_was_caused_by(self, link: str) -> None:
        chain = [*TRACEBACK, "", link, "", *TRACEBACK, "", link, "", *TRACEBACK]
        assert find_traceback(["noise", *TRACEBACK, "noise", *chain]) == chain

    def test_with_the_prefix_of_torch(self) -> None:
        lines = [f"[rank3]: {line}" for line in TRACEBACK]
        assert find_traceback(["noise", *lines]) == lines

    def test_of_a_group(self) -> None:
        lines = [f"  + Exception Group {TRACEBACK[0]}", "  | ExceptionGroup: x (1 sub-exception)"]
        assert find_traceback(["noise", *lines]) == lines

    def test_the_stacks_of_a_crash(self) -> None:
        head = ["Fatal Python error: Segmentation fault", "", "Current thread 0x1:"]
        frames = [f'  File "a.py", line {number} in f' for number in range(40)]
        lines = [*TRACEBACK, "handled", *head, *frames]
        assert find_traceback(lines) == [*head, *frames]
        said = describe_cause(ending(1, outcome(End.DIED, -11)), lines, host="n0")
        assert f"workerlog.1:\n  | {head[0]}\n" in said

    def test_a_very_long_one(self) -> None:
        lines = [TRACEBACK[0], *[f"  File {n}" for n in range(300)], "RecursionError"]
        found = find_traceback(lines)
        assert len(found) == 121
        assert (found[0], found[-1]) == (lines[0], lines[-1])
        assert "182 lines are left out" in found[60]


@pytest.mark.parametrize(
    ("level", "restarts", "expected"),
    [(-1, 0, False), (0, 0, False), (1, 0, True), (1, 2, True), (1, 3, False)],
)
def test_restarts(level: int, restarts: int, expected: bool) -> None:
    config = LaunchConfig(script="train.py", elastic_level=level, max_restart=3)
    assert may_restart(config, restarts) is expected
