"""A rank's side: one pytest that runs one test, and tells the parent how it went.

Runs in the worker, but for the names of the messages.
"""

from __future__ import annotations

import os
import pickle
import sys
import warnings
from collections.abc import Generator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

import pytest

from rankspawn.parallel_env import get_rank
from rankspawn.pytest_plugin import IN_RANK
from rankspawn.pytest_plugin.orders import Orders
from rankspawn.pytest_plugin.warned import pack_warning
from rankspawn.workers.exceptions import pack, repr_of

__all__ = ["BROKEN", "EXIT", "REPORT", "STARTED", "WARNING", "run_test"]

# Kinds of messages, of which the first two are no verdict. Each is a tuple of the kind, a text or
# data, and a packed exception.
STARTED = "started"
WARNING = "warning"
REPORT = "report"
BROKEN = "broken"
EXIT = "exit"

# Plugins that belong to the run as a whole: the parent's write files and the terminal.
_OF_THE_PARENT = ("terminalreporter", "lfplugin", "nfplugin", "stepwiseplugin")
# Options of the same kind, and what stands for "not given".
_NOT_HERE: dict[str, Any] = {
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


def run_test(orders: Orders, channel: Connection) -> None:
    """Run the test as this rank; its failure is a message, no exception."""
    _use_own_streams()
    _leave_watchdog_alone()
    os.chdir(orders.folder)
    told = Teller(orders, channel)
    # Captured by the parent, through the log: so it is there even if this process crashes.
    status = pytest.main([*orders.args, "--capture=no"], plugins=[told, Silencer()])
    if not told.is_configured:
        told.tell(BROKEN, "pytest could not start here. What it printed is below")
    elif not told.has_told:
        told.tell(BROKEN, _WHY_NOT.get(status, f"pytest ended here with status {int(status)}"))


class Silencer:
    """A plugin that ends others, once they are there."""

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """After all others."""
        for name in _OF_THE_PARENT:
            config.pluginmanager.unregister(name=name)
        _refuse_breakpoints()


class Teller:
    """A plugin of the rank's pytest, which knows what to run and whom to tell."""

    def __init__(self, orders: Orders, channel: Connection) -> None:
        self.has_told = False
        self.is_configured = False
        self._orders = orders
        self._channel = channel
        self._exceptions: dict[str, dict[str, Any]] = {}

    def tell(self, kind: str, content: Any, exception: dict[str, Any] | None = None) -> None:
        """Write one message to the file, and its length to the pipe.

        The pipe alone would do, but a rank that is killed in the middle of a long message would
        leave the parent waiting for the rest of it: other ranks have the same pipe open.
        """
        self.has_told |= kind not in (STARTED, WARNING)
        message = _pickled(kind, content, exception)
        with open(self._orders.message_file(get_rank()), "ab") as file:
            file.write(message)
        try:
            self._channel.send_bytes(str(len(message)).encode())
        except OSError:  # the parent has heard enough and is about to stop this process
            return

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Make this the run of one test, before other plugins look at the options."""
        orders = self._orders
        self._config = config
        self.is_configured = True
        config.stash[IN_RANK] = orders
        for name, value in (_NOT_HERE | orders.options).items():
            if hasattr(config.option, name):
                setattr(config.option, name, value)
        config.option.basetemp = Path(orders.temporary, f"rank-{get_rank()}")
        config.args = [orders.target]

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Leave marks that judge a test to the parent, which sees the test as a whole."""
        for item in items:
            for node in item.listchain():
                node.own_markers[:] = [
                    mark
                    for mark in node.own_markers
                    if mark.name not in ("xfail", "skip", "skipif")
                ]

    def pytest_runtest_logstart(self) -> None:
        """Tell where the test's own output begins, after that of pytest's and its plugins'."""
        sys.stdout.flush()
        sys.stderr.flush()
        self.tell(STARTED, os.fstat(1).st_size)

    @pytest.hookimpl(hookwrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Generator[None, Any, None]:
        """Keep the exception, which the report has as text only."""
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


def _pickled(kind: str, content: Any, exception: dict[str, Any] | None) -> bytes:
    """A message; what a plugin added to a report and cannot be sent goes as text."""
    try:
        return pickle.dumps((kind, content, exception))
    except Exception:  # whatever a class of a plugin raises
        plain = {name: _or_text(value) for name, value in dict(content).items()}
        return pickle.dumps((kind, plain, exception))


def _or_text(value: Any) -> Any:
    try:
        pickle.dumps(value)
    except Exception:  # see above
        return repr_of(value)
    return value


def _use_own_streams() -> None:
    """Undo what the parent's capturing did, which a fork copies."""
    sys.stdout = sys.__stdout__
    sys.stderr = sys.__stderr__
    sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115 - for the whole process


def _leave_watchdog_alone() -> None:
    """Keep pytest's ``faulthandler_timeout`` from waiting for a thread that a fork has lost.

    The parent's watchdog runs while its ranks do, and a copy of the process without that thread
    waits for ever when it cancels it. The parent shows the stacks of ranks anyway.
    """
    import faulthandler

    def nothing(*args: object, **kwargs: object) -> None:
        """For any arguments."""

    faulthandler.dump_traceback_later = nothing
    faulthandler.cancel_dump_traceback_later = nothing


def _refuse_breakpoints() -> None:
    """Fail with a reason, since a debugger would read the end of an empty file."""
    import pdb

    def refuse(*args: object, **kwargs: object) -> NoReturn:  # noqa: ARG001 - any breakpoint's
        __tracebackhide__ = True
        pytest.fail(
            "a breakpoint in a rank: it has no terminal for a debugger. Run the function "
            "by itself under rankspawn.spawn(..., debug=RANK), or the test without its ranks"
        )

    sys.breakpointhook = refuse
    pdb.set_trace = refuse
