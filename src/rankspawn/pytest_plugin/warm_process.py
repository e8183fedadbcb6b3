"""The parent's end of the warm process, which the ranks of tests are copies of.

It is a fork server, so the ranks are started, supervised and ended like all others of that start
method. Here is decided when there has to be another one, and which tests cannot use it.
"""

from __future__ import annotations

import json
import os
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest

from rankspawn.errors import SpawnTimeoutError
from rankspawn.machine import RealMachine
from rankspawn.plan.environ import removed_env, thread_env
from rankspawn.portable import is_portable
from rankspawn.pytest_plugin.messages import WarmRequest
from rankspawn.pytest_plugin.warm_up import VARIABLE
from rankspawn.workers.forkserver import ForkServer, get_server

PRELOADED = ("rankspawn.pytest_plugin.warm_up",)
# Each time those tests are left out that stood in the way; then all of them are.
_MOST_TRIES = 3
# What else a test's time is for.
_SHARE_OF_TIMEOUT = 0.5
# For what modules and hooks of a conftest.py do at the end of a process.
_PATIENCE_SECONDS = 10.0


class FreshRanksWarning(pytest.PytestWarning):
    """The ranks of some tests are started in a slower way; the text says why."""


class WarmProcess:
    """The warm process of one run of pytest; made with its first test that has ranks.

    Args:
        session: The run.
        options: Values that pytest or a plugin has chosen for all of it.
    """

    def __init__(self, session: pytest.Session, options: dict[str, Any]) -> None:
        self._session = session
        self._options = options
        # Files or folders whose tests get fresh processes, and why.
        self._problems: dict[str, str] = {}
        self._server: ForkServer | None = None
        self._path: list[str] = []
        self._files: dict[str, tuple[int, int] | None] = {}

    def has_collected(self, item: pytest.Function, ranks: int, timeout: float | None) -> bool:
        """Whether the ranks of a test can be copies of it; starts it if there is none.

        Args:
            item: The test.
            ranks: How many it has.
            timeout: Seconds for the test, the start of its ranks included.
        """
        if is_portable():  # whose fork server is none
            return False
        limit = None if timeout is None else time.monotonic() + timeout * _SHARE_OF_TIMEOUT
        for _ in range(_MOST_TRIES):
            if self._problem_of(item.path) is not None:
                return False
            if self._is_clean():
                return True
            self._start_anew(item, ranks, limit)
        if not self._is_clean():
            self._note(item, {str(item.config.rootpath): "no attempt has succeeded"})
        return self._problem_of(item.path) is None

    def stop(self) -> None:
        """End it; the next test that needs one starts another."""
        server, self._server = self._server, None
        if server is not None:
            server.stop(patience=_PATIENCE_SECONDS)

    def _problem_of(self, path: Path) -> str | None:
        """Why tests of this file get fresh processes; None if they do not."""
        places = [str(path), *map(str, path.parents)]
        return next((self._problems[place] for place in places if place in self._problems), None)

    def _is_clean(self) -> bool:
        """It runs, and is what it would be if it were started now."""
        return (
            self._server is not None
            and self._server.usable
            and self._path == sys.path
            and all(_state_of(path) == state for path, state in self._files.items())
        )

    def _start_anew(self, item: pytest.Function, ranks: int, limit: float | None) -> None:
        self.stop()
        factory: Any = item.funcargs["tmp_path_factory"]
        folder: Path = factory.mktemp("warm")
        (folder / "request").write_text(json.dumps(self._request(item, folder)))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # its answer says more
                self._server = get_server(PRELOADED, _environment(folder, ranks), limit)
            self._path = list(sys.path)
            answer = json.loads((folder / "answer").read_text())
        except SpawnTimeoutError:
            self._note(
                item, {_blamed(item, folder): "importing it takes half of the test's timeout"}
            )
        except ImportError as error:  # what a conftest.py or a plugin raised, too
            self._note(item, {_blamed(item, folder): str(error).strip().splitlines()[-1]})
        except (OSError, ValueError):
            self._note(item, {_blamed(item, folder): "importing it has ended the process"})
        else:
            self._files = {path: _state_of(path) for path in answer["files"]}
            self._note(item, answer["problems"])
            if answer["problems"]:
                self.stop()

    def _request(self, item: pytest.Item, folder: Path) -> dict[str, Any]:
        """What it is to collect: files of tests with ranks, but for those that cannot be."""
        config = item.config
        paths = {
            other.path for other in self._session.items if other.get_closest_marker("ranks")
        } | {item.path}
        files = sorted(str(path) for path in paths if self._problem_of(path) is None)
        request = WarmRequest(
            files=files,
            args=arguments_of(config),
            dir=str(config.invocation_params.dir),
            rootdir=str(config.rootpath),
            folder=str(folder),
            options=self._options,
            shows_output=config.getoption("capture", "fd") == "no",
        )
        return {name: getattr(request, name) for name in WarmRequest.__slots__}

    def _note(self, item: pytest.Item, problems: dict[str, str]) -> None:
        """Keep the problems, and say each once where pytest shows warnings."""
        for place, story in problems.items():
            self._problems[place] = story
            name = os.path.relpath(place, item.config.rootpath)
            whose = "all tests with ranks" if name == "." else f"tests in {name}"
            warning = FreshRanksWarning(
                f"the ranks of {whose} get fresh processes, which takes longer than to copy one "
                f"that has collected the tests: {story}. If it has to be so, say "
                "start_method='spawn' in the mark"
            )
            _show(item, place, warning)


def _show(item: pytest.Item, place: str, warning: Warning) -> None:
    """Have pytest list it, whatever the filters say: an error here would not be the test's."""
    message = warnings.WarningMessage(warning, type(warning), place, 1)
    item.config.hook.pytest_warning_recorded.call_historic(
        kwargs={
            "warning_message": message,
            "when": "runtest",
            "nodeid": item.nodeid,
            "location": None,
        }
    )


def arguments_of(config: pytest.Config) -> list[str]:
    """The command line of this pytest, for another one that runs its tests."""
    args = [str(arg) for arg in config.invocation_params.args]
    if config.pluginmanager.hasplugin("_cov"):
        # Its workers talk to a controller that is not there; see the page on testing.
        args.append("--no-cov")
    return args


def _environment(folder: Path, ranks: int) -> dict[str, str]:
    """This process's, without what would tell a module of a rank that it has not."""
    # Libraries that are imported there ask for it then; another test may have more ranks.
    threads = thread_env(None, os.environ, cpus=RealMachine().cpus(), nprocs=ranks)
    changes = {**removed_env(os.environ, place=True), **threads, VARIABLE: str(folder)}
    environ = {**os.environ, **changes}
    return {name: value for name, value in environ.items() if value is not None}


def _blamed(item: pytest.Item, folder: Path) -> str:
    """The file or folder that was being collected when it came to no answer."""
    try:
        return (folder / "at").read_text()
    except FileNotFoundError:  # pytest itself had not come to its start
        return str(item.config.rootpath)


def _state_of(path: str) -> tuple[int, int] | None:
    """What changes when a file does; None if it is not there."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size
