"""The pytest of a rank, which runs one test and tells the parent how it went.

Runs in the worker.
"""

from __future__ import annotations

import io
import os
import sys
import warnings
from collections.abc import Generator, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rankspawn.parallel_env import get_rank
from rankspawn.pytest_plugin import ASSIGNMENT
from rankspawn.pytest_plugin.messages import (
    BROKEN,
    DEBUG_INSTEAD,
    EXIT,
    REPORT,
    STARTED,
    WARNING,
    Assignment,
    append_message,
    pack_warning,
)
from rankspawn.workers.exceptions import pack

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.pytest_plugin.in_warm_process import WarmSession

# Plugins that belong to the run as a whole: the parent's write files and the terminal.
_PLUGINS_OF_PARENT = ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin")
# Options of the same kind, and what stands for "not given".
_OPTIONS_OF_PARENT: dict[str, Any] = {
    "usepdb": False,
    "trace": False,
    "lf": False,
    "failedfirst": False,
    "newfirst": False,
    "stepwise": False,
    "stepwise_skip": False,
    "cacheclear": False,
    "xmlpath": None,
    "htmlpath": None,
    "report_log": None,
    "log_file": os.devnull,
    "pyargs": False,
    "keepduplicates": False,
    "reruns": 0,
    "numprocesses": None,
    "dist": "no",
    "tx": [],
}

_NOT_FOUND = (
    "the test was not found here. Are its parameters made anew in every process, or does a "
    "condition leave it out in a worker?"
)
_WHY_NOT: dict[int, str] = {
    pytest.ExitCode.USAGE_ERROR: _NOT_FOUND,
    pytest.ExitCode.NO_TESTS_COLLECTED: _NOT_FOUND,
}


def run_test(assignment: Assignment, channel: Connection) -> None:
    """Run the assigned test as this rank; its failure is a message, no exception."""
    _use_own_streams()
    _leave_watchdog_alone()
    os.chdir(assignment.folder)
    teller = Teller(assignment, channel)
    warm = _session_of_warm_process()
    status = None if warm is None else warm.run(teller, assignment)
    if status is None:
        # Captured by the parent, through the log: so it is there even if this process crashes.
        status = pytest.main([*assignment.args, "--capture=no"], plugins=[teller, Silencer()])
    if not teller.is_configured:
        teller.tell(BROKEN, "pytest could not start here. What it printed is below")
    elif not teller.has_told_end:
        teller.tell(BROKEN, _WHY_NOT.get(status, f"pytest ended here with status {int(status)}"))


def _session_of_warm_process() -> WarmSession | None:
    """The session that has collected the test, if this process is a copy of the warm one."""
    module: Any = sys.modules.get("rankspawn.pytest_plugin.in_warm_process")
    return None if module is None else module.warm_session


def take_options(config: pytest.Config, chosen: Mapping[str, Any]) -> None:
    """Set the options of a pytest that runs a rank's test, before other plugins look at them.

    Args:
        config: Its configuration.
        chosen: What the parent, or a plugin of it, has chosen for the whole run.
    """
    for name, value in {**_OPTIONS_OF_PARENT, **chosen}.items():
        if hasattr(config.option, name):
            setattr(config.option, name, value)


class Silencer:
    """A plugin of the rank's pytest, which leaves to the parent what belongs to it."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Unregister the parent's plugins; last of all, so that they are there."""
        for name in _PLUGINS_OF_PARENT:
            config.pluginmanager.unregister(name=name)
        _refuse_breakpoints()

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave markers that decide about the outcome to the parent, which sees all ranks."""
        for item in items:
            for node in item.listchain():
                node.own_markers[:] = [
                    marker
                    for marker in node.own_markers
                    if marker.name not in ("xfail", "skip", "skipif")
                ]


class Teller:
    """A plugin of the rank's pytest, which has it run the test and tells the parent about it.

    Attributes:
        has_told_end: Whether the parent was told how the test, or a phase of it, ended.
        is_configured: Whether pytest has got to the configuration of its plugins.

    Args:
        assignment: The test to run.
        channel: A pipe to the parent.
    """

    def __init__(self, assignment: Assignment, channel: Connection) -> None:
        self.has_told_end: bool = False
        self.is_configured: bool = False
        self._assignment = assignment
        self._channel = channel
        self._exceptions: dict[str, dict[str, Any]] = {}

    def tell(self, kind: str, content: Any, exception: dict[str, Any] | None = None) -> None:
        """Tell the parent something: a message in this rank's file, its length in the pipe."""
        self.has_told_end |= kind not in (STARTED, WARNING)
        # The pipe alone would do, but a rank that is killed in the middle of a long message would
        # leave the parent waiting for the rest of it: other ranks have the same pipe open.
        path = self._assignment.message_file(get_rank())
        length = append_message(path, (kind, content, exception))
        try:
            self._channel.send_bytes(str(length).encode())
        except OSError:  # the parent has heard enough and is about to stop this process
            return

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Make this the run of one test, before other plugins look at the options."""
        assignment = self._assignment
        self._config = config
        self.is_configured = True
        config.stash[ASSIGNMENT] = assignment
        take_options(config, assignment.options)
        config.option.basetemp = Path(assignment.temporary, f"rank-{get_rank()}")
        config.args = [assignment.target]

    def pytest_runtest_logstart(self) -> None:
        """Tell where the test's own output begins, after that of pytest's and its plugins'."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.tell(STARTED, os.fstat(1).st_size)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
        """Keep the exception of a phase, which the report has as text only."""
        outcome = yield
        if call.excinfo is not None and outcome.get_result().failed:
            self._exceptions[call.when] = pack(call.excinfo.value)

    @pytest.hookimpl(trylast=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Tell what became of a phase: setup, call or teardown."""
        # Properties may be any object; text goes everywhere.
        report.user_properties = [(name, str(value)) for name, value in report.user_properties]
        content = self._config.hook.pytest_report_to_serializable(
            config=self._config, report=report
        )
        self.tell(REPORT, content, self._exceptions.get(report.when))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        """Tell why the test cannot be found."""
        if report.failed:
            self.tell(BROKEN, f"the test could not be collected:\n{report.longreprtext}")

    def pytest_warning_recorded(
        self,
        warning_message: warnings.WarningMessage,
        when: str,
        nodeid: str,
        location: tuple[str, int, str] | None,
    ) -> None:
        """Tell of a warning in the test; the parent has seen those of the collection itself."""
        if when == "runtest":
            message = pack_warning(warning_message)
            where = {"when": when, "nodeid": nodeid, "location": location}
            self.tell(WARNING, {"warning_message": message, **where})

    def pytest_keyboard_interrupt(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        """Tell of ``pytest.exit``, or that this process was interrupted."""
        if isinstance(excinfo.value, pytest.exit.Exception):
            self.tell(EXIT, str(excinfo.value))
        else:
            # As pytest shows it: the rest of the traceback is pytest's own.
            self.tell(BROKEN, str(excinfo.getrepr().reprcrash))

    def pytest_internalerror(self, excrepr: object) -> None:
        """Tell of an error in pytest or one of its plugins."""
        self.tell(BROKEN, f"pytest itself failed:\n{excrepr}")


def _use_own_streams() -> None:
    """Undo what the parent's capturing did, which a fork copies."""
    sys.stdout = sys.__stdout__
    sys.stderr = sys.__stderr__
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the whole process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # They lead to a file, for which Python would keep 8 KiB to itself: what a rank said
            # just before it was killed is what people look for.
            stream.reconfigure(line_buffering=True)


def _leave_watchdog_alone() -> None:
    """Keep pytest's ``faulthandler_timeout`` from waiting for a thread that a fork has lost."""
    import faulthandler

    # The parent's watchdog runs while its ranks do, and a copy of the process without that thread
    # waits for ever when it cancels it. The parent shows the stacks of ranks anyway.

    def nothing(*args: object, **kwargs: object) -> None:
        """Do nothing, whatever the arguments."""

    faulthandler.dump_traceback_later = nothing
    faulthandler.cancel_dump_traceback_later = nothing


def _refuse_breakpoints() -> None:
    """Have breakpoints fail with a reason: a debugger would read the end of an empty file."""
    import pdb

    def refuse(*args: object, **kwargs: object) -> NoReturn:  # noqa: ARG001 - any breakpoint's
        __tracebackhide__ = True
        pytest.fail(f"a breakpoint in a rank: it has no terminal for a debugger. {DEBUG_INSTEAD}")

    sys.breakpointhook = refuse
    pdb.set_trace = refuse
