"""One outcome and one report of a test, from the reports of all its ranks. Pure."""

from __future__ import annotations

import bdb
from dataclasses import dataclass, field
from typing import Any

import pytest

from rankspawn.pytest_plugin.messages import DEBUG_INSTEAD
from rankspawn.pytest_plugin.run_ranks import RankHistory, Run

_NO_DEBUGGER = (
    "--pdb was left out: the failure is in a worker process, which has no terminal. "
    + DEBUG_INSTEAD
)


class RankFailedError(AssertionError):
    """A rank failed without an exception that could be raised here."""


class RanksTimeoutError(TimeoutError):
    """The ranks of a test did not end in time."""


@dataclass(frozen=True, slots=True)
class MergedReport:
    """What the parent's report of a test takes from its ranks.

    Attributes:
        exception: What the parent raises, so that pytest and its markers (``xfail``) make of it
            what they make of any test's; None if the test passed.
        longrepr: What pytest shows for the exception.
        sections: Output of the ranks, each with a title.
        user_properties: The properties that the first rank recorded.
    """

    exception: BaseException | None = None
    longrepr: Any = None
    sections: list[tuple[str, str]] = field(default_factory=list)
    user_properties: list[tuple[str, object]] = field(default_factory=list)


def merge_reports(run: Run) -> MergedReport:
    """The report of all ranks: passed if all of them did, or some and the rest was skipped."""
    exception, longrepr = _failure(run) or _no_failure(run)
    if run.uses_pdb and exception is not None:
        exception = _without_debugger(exception)
    first = run.histories[0].reports
    return MergedReport(
        exception,
        longrepr,
        _sections(run),
        list(first[-1].user_properties) if first else [],
    )


def _failure(run: Run) -> tuple[BaseException, Any] | None:
    """The exception of a test that failed and what is shown for it; None if no rank failed."""
    if run.failed:
        history = run.failed[0]
        exception = history.exception or RankFailedError(
            f"rank {history.rank} failed: {history.broken}"
        )
        longrepr = _show_failure(run, history)
    elif run.timeout is not None:
        text = (
            f"the {len(run.histories)} ranks did not end within {run.timeout:g} s and were stopped"
        )
        exception, longrepr = RanksTimeoutError(text), f"{text}\n{_describe(run, None)}"
    else:
        return None
    if run.uses_pdb:
        longrepr = _with_section(longrepr, "no debugger", _NO_DEBUGGER)
    return exception, longrepr


def _no_failure(run: Run) -> tuple[BaseException | None, Any]:
    """The exception by which a test without failures is xfailed or skipped; None if it passed."""
    for history in run.histories:
        expected = history.first(lambda report: hasattr(report, "wasxfail"))
        if expected is not None and expected.skipped:
            reason = str(expected.wasxfail).removeprefix("reason: ")
            return pytest.xfail.Exception(reason), expected.longrepr
    skips = [history.first(lambda report: report.skipped) for history in run.histories]
    if skips[0] is not None and all(skips):
        longrepr = skips[0].longrepr
        reason = longrepr[2] if isinstance(longrepr, tuple) else str(longrepr)
        return pytest.skip.Exception(reason.removeprefix("Skipped: ")), longrepr
    return None, None


def _show_failure(run: Run, history: RankHistory) -> Any:
    """The failed rank's own report, with the state of all ranks below it."""
    longrepr: Any = history.broken if history.failure is None else history.failure.longrepr
    if not hasattr(longrepr, "addsection"):
        longrepr = f"rank {history.rank} failed: {longrepr}"
    crash = _crash_of(longrepr)
    if crash is not None:
        crash.message = f"rank {history.rank}: {crash.message}"  # for the short summary
    title = (
        f"rank {history.rank} failed, as shown above; the {len(run.histories)} ranks of this test"
    )
    longrepr = _with_section(longrepr, title, _describe(run, history))
    for other in run.failed[1:]:
        if other.failure is not None and not _is_same_failure(other.failure, history.failure):
            title = f"rank {other.rank} failed in another way"
            longrepr = _with_section(longrepr, title, str(other.failure.longrepr))
    return longrepr


def _with_section(longrepr: Any, title: str, text: str) -> Any:
    """What is shown, be it an object of pytest's or a text, with a section below it."""
    if not hasattr(longrepr, "addsection"):
        return f"{longrepr}\n{'-' * 10} {title} {'-' * 10}\n{text}"
    longrepr.addsection(title, text)
    return longrepr


def _is_same_failure(report: pytest.TestReport, other: pytest.TestReport | None) -> bool:
    """Whether both failed at the same line, or for the same reason where no line is known."""
    if other is None or _line_of(report) != _line_of(other):
        return False
    return _line_of(report) is not None or str(report.longrepr) == str(other.longrepr)


def _line_of(report: pytest.TestReport) -> tuple[str, int] | None:
    """The file and the line where a test failed, if pytest knows."""
    crash = _crash_of(report.longrepr)
    return None if crash is None else (str(crash.path), int(crash.lineno))


def _crash_of(longrepr: Any) -> Any:
    """Where and why a test failed, as pytest has it; None if that is a mere text."""
    return getattr(longrepr, "reprcrash", None)


def _describe(run: Run, shown: RankHistory | None) -> str:
    """A line about each rank, and its stack below if it was running."""
    lines: list[str] = []
    for history in run.histories:
        lines.append(f"rank {history.rank}: {_state(history, shown)}")
        if history.stacks is not None and not history.has_failed:
            lines += [f"    {line}" for line in _own_frames(history.stacks)]
    return "\n".join(lines)


def _state(history: RankHistory, shown: RankHistory | None) -> str:
    """What became of a rank, in a few words; ``shown`` is the one whose failure is shown whole."""
    if history is shown:
        when = (
            ""
            if history.failure is None or history.failure.when == "call"
            else history.failure.when
        )
        return f"failed in {when}" if when else "failed"
    if history.failure is not None:
        crash = _crash_of(history.failure.longrepr)
        lines = str(crash.message if crash is not None else history.failure.longrepr).splitlines()
        return f"failed too: {lines[0] if lines else ''}"
    if history.broken is not None:
        return f"failed too: {history.broken.rstrip().splitlines()[-1] if history.broken else ''}"
    if history.stacks is not None:
        return f"was running {_phase(history)}, and was stopped here (innermost call first):"
    if any(report.skipped for report in history.reports):
        return "skipped"
    return "passed"


def _phase(history: RankHistory) -> str:
    """Where a rank was when it was stopped: behind the phases that it reported."""
    done = {report.when for report in history.reports}
    if "teardown" in done:
        return "after the test, on its way out"
    if "call" in done:
        return "in teardown"
    return "the test" if "setup" in done else "in setup"


def _own_frames(stacks: str) -> list[str]:
    """The lines of faulthandler's dump, without the frames of pytest that called the test."""
    kept: list[str] = []
    inside = True
    for line in stacks.splitlines():
        if not line.startswith("  File "):
            inside = True
            if line.strip(" .") and not line.startswith("Current thread"):
                kept.append(line)
        elif "/_pytest/" in line or "/pluggy/" in line:
            inside = False
        elif inside:
            kept.append(line)
    return kept


def _sections(run: Run) -> list[tuple[str, str]]:
    """What pytest captured in each rank, and what the rank printed."""
    sections = []
    for history in run.histories:
        for report in history.reports[-1:]:
            sections += [(f"{name}, rank {history.rank}", text) for name, text in report.sections]
        if history.output:
            sections.append((f"Captured stdout and stderr, rank {history.rank}", history.output))
    return sections


def _without_debugger(exception: BaseException) -> BaseException:
    """A copy of an exception for which ``--pdb`` opens no debugger.

    It still is of its own class, for ``raises=``.
    """
    # pytest takes BdbQuit for a debugger that was left (check_interactive_exception in its runner).
    kind = type(exception)
    try:
        quiet: Any = type(kind.__name__, (kind, bdb.BdbQuit), {"__module__": kind.__module__})
        copy: BaseException = quiet.__new__(quiet, *exception.args)
        copy.args = exception.args
        vars(copy).update(vars(exception))  # pytest looks at those of its own
    except TypeError:  # classes that cannot be combined
        return bdb.BdbQuit(*exception.args)
    return copy
