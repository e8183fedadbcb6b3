"""The warm process: a pytest that has collected the tests with ranks, and runs none of them.

Runs in the fork server of the tests, and after a fork in a rank, which runs one test of it. So what
every rank would do in the same way (start pytest and its plugins, load each conftest.py, import the
test's module) is done once.

Not everything can be done before a fork. What a module does that a copy of the process could not
use is found out here, and told to the parent: the tests concerned get fresh processes instead.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import weakref
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any

import pytest

from rankspawn.cpython import forget_exit_functions
from rankspawn.pytest_plugin.in_worker import Silencer, Teller, take_options
from rankspawn.pytest_plugin.messages import Assignment, WarmRequest
from rankspawn.workers.child import flush_c_output, flush_output
from rankspawn.workers.rank_reads import rank_reads
from rankspawn.workers.server import obstacles

warm_session: WarmSession | None = None


class WarmSession:
    """A session of pytest after its collection.

    Args:
        request: What to collect.
    """

    def __init__(self, request: WarmRequest) -> None:
        from _pytest.config import _prepareconfig  # as in pytest-xdist: nothing public is like it

        self._inspector = Inspector(Path(request.folder, "at"))
        arguments = [*request.args, "--capture=no"]
        starter = _Starter(request)
        with self._inspector.reads:
            config = _prepareconfig(arguments, [starter, Silencer(), self._inspector])
            session = pytest.Session.from_config(config)
            config._do_configure()
            config.hook.pytest_sessionstart(session=session)
            self._inspector.look(request.rootdir)
            config.args = list(request.files)
            config.hook.pytest_collection(session=session)
            self._inspector.look(request.rootdir)
        self._config = config
        self._session = session
        self._items = {(str(item.path), _name_of(item)): item for item in session.items}

    @property
    def problems(self) -> dict[str, str]:
        """Why tests cannot be run in copies of this process, by the file or folder of the tests."""
        return self._inspector.problems

    def finish(self) -> None:
        """Run the hooks for the end of it; the tests themselves have run elsewhere."""
        status = pytest.ExitCode.OK
        self._config.hook.pytest_sessionfinish(session=self._session, exitstatus=status)
        self._config._ensure_unconfigure()

    def run(self, teller: Teller, assignment: Assignment) -> int | None:
        """Runs in the rank: run the test.

        Returns:
            The status that ``pytest.main`` would return; None if the test is not known here.
        """
        # They are the warm process's, which runs them at its own end.
        forget_exit_functions(weakref.finalize)
        path, _, name = assignment.target.partition("::")
        item = self._items.get((path, name))
        if item is None:
            return None
        config, session = self._config, self._session
        config.pluginmanager.register(teller)  # which configures it for this rank
        _take_own_things(config)
        session.items[:] = [item]
        session.testscollected = 1
        return _run_items(config, session)


def _take_own_things(config: pytest.Config) -> None:
    """Give pytest's own plugins what they have for one rank: a folder, and a place for a crash."""
    # What tmp_path is made with, and tmpdir_factory as well.
    factory: Any = getattr(config, "_tmp_path_factory", None)
    if factory is not None:
        factory._given_basetemp, factory._basetemp = config.option.basetemp, None
    plugin = config.pluginmanager.getplugin("faulthandler")
    if plugin is not None:
        plugin.pytest_configure(config)  # standard error is another file here


def _run_items(config: pytest.Config, session: pytest.Session) -> int:
    """Run what was collected; errors go to the hooks that pytest has for them."""
    try:
        config.hook.pytest_runtestloop(session=session)
    except pytest.Session.Failed:
        return pytest.ExitCode.TESTS_FAILED
    except (KeyboardInterrupt, pytest.exit.Exception):
        info = pytest.ExceptionInfo.from_current()
        config.hook.pytest_keyboard_interrupt(excinfo=info)
        return pytest.ExitCode.INTERRUPTED
    except BaseException:
        info = pytest.ExceptionInfo.from_current()
        config.notify_exception(info, config.option)
        return pytest.ExitCode.INTERNAL_ERROR
    return pytest.ExitCode.TESTS_FAILED if session.testsfailed else pytest.ExitCode.OK


def _name_of(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[2]


class _Starter:
    """A plugin that makes this the run of the parent's tests."""

    def __init__(self, request: WarmRequest) -> None:
        self._request = request

    @pytest.hookimpl(tryfirst=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        """Set the options, before other plugins look at them."""
        take_options(config, self._request.options)
        config.option.basetemp = Path(self._request.folder, "basetemp")


class Inspector:
    """A plugin that finds out what a copy of this process could not use.

    Attributes:
        problems: By file or folder of the tests concerned, what is the matter, in words.
        reads: Notes who asks for a rank.

    Args:
        diary: A file that says what is being collected, should this process not come to an answer.
    """

    def __init__(self, diary: Path) -> None:
        self._diary = diary
        self.problems: dict[str, str] = {}
        self._known = obstacles()
        self.reads: rank_reads = rank_reads()

    def look(self, place: str) -> None:
        """Note what has come since the last look, as a problem of this place."""
        found = obstacles()
        stories = sorted(found - self._known)
        self._known |= found
        stories += self.reads.stories
        self.reads.stories.clear()
        if stories:
            self.problems.setdefault(place, f"importing it {stories[0]}")

    @pytest.hookimpl(hookwrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, None]:
        """Blame what a module did on the module, and what a folder's conftest.py did on it."""
        place = str(collector.path)
        self._diary.write_text(place)
        outcome = yield
        report = outcome.get_result()
        if report.failed:
            text: str = report.longreprtext.strip() or "no reason given"
            reason = text.splitlines()[-1].removeprefix("E").strip()
            self.problems[place] = f"it cannot be collected there ({reason})"
        self.look(place)


def warm_up(folder: str) -> None:
    """Collect what the request in this folder says, and leave an answer beside it."""
    global warm_session  # noqa: PLW0603 - the process is in this state
    request = WarmRequest(**json.loads(Path(folder, "request").read_text()))
    if not request.shows_output:
        _be_quiet()
    os.chdir(request.dir)
    session = WarmSession(request)
    answer = {"problems": session.problems, "files": sorted(_files_below(request.rootdir))}
    Path(folder, "answer").write_text(json.dumps(answer))
    warm_session = session
    atexit.register(session.finish)
    # Or each copy would print it once more.
    flush_output()
    flush_c_output()
    # A collection of garbage in a rank would touch, and so copy, the pages of all of this.
    gc.collect()
    gc.freeze()


def _be_quiet() -> None:
    """What modules print when they are imported belongs to no test."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (1, 2):
        os.dup2(null, number)
    os.close(null)


def _files_below(folder: str) -> Iterable[str]:
    """The sources of what is loaded, without what is installed."""
    for module in list(sys.modules.values()):
        path = getattr(module, "__file__", None)
        if not isinstance(path, str) or f"{os.sep}site-packages{os.sep}" in path:
            continue
        if path.startswith(f"{folder}{os.sep}"):
            yield path
