"""What every test must leave as it found it."""

from __future__ import annotations

import contextlib
import functools
import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from multiprocessing import process, resource_tracker

import psutil
import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.option_types import StartMethod
from rankspawn.portable import is_forced
from rankspawn.workers import forkserver
from tests.portable_limits import why_not

START_METHODS = ("spawn", "fork", "forkserver")


# Files of other programs on the machine are not ours to judge: temporary files of this run get
# a folder, and its semaphores a prefix, of their own.
_FOLDER = tempfile.TemporaryDirectory(prefix="rankspawn-tests-")
_SEMAPHORES = f"rst{os.getpid()}"


def pytest_configure() -> None:
    # What workers write must arrive though their streams are buffered, as they are for most users.
    os.environ.pop("PYTHONUNBUFFERED", None)
    os.environ["TMPDIR"] = tempfile.tempdir = _FOLDER.name
    process.current_process()._config["semprefix"] = f"/{_SEMAPHORES}"  # type: ignore[attr-defined]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if is_forced():
        for item in items:
            if why := why_not(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=f"portable: {why}"))


@pytest.fixture(scope="session", autouse=True)
def _resource_tracker() -> None:
    """Started once for the whole run, as multiprocessing does; so it is nobody's leak."""
    resource_tracker.ensure_running()


@pytest.fixture(params=START_METHODS)
def start_method(request: pytest.FixtureRequest) -> StartMethod:
    """Each of multiprocessing's three ways to start a process."""
    method: StartMethod = request.param
    return method


@pytest.fixture
def run(start_method: StartMethod) -> Callable[..., MultiprocessContext]:
    """``spawn()`` on the CPU, with each start method."""
    return functools.partial(rankspawn.spawn, backend="gloo", start_method=start_method)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, a descriptor, a file or a variable behind."""
    before = _Surroundings()
    yield
    forkserver.stop_servers()
    stories = before.changes()
    if stories:
        gc.collect()  # queues and locks of the test itself go with their last reference
        stories = before.changes()
    for pid in _descendants(os.getpid()) - before.descendants:
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).kill()
    if stories:
        pytest.fail(f"{request.node.name} left behind: " + "; ".join(stories), pytrace=False)


class _Surroundings:
    """What there is at a moment: processes, descriptors, files and variables."""

    def __init__(self) -> None:
        self.descendants = _descendants(os.getpid())
        self._environ, self._fds, self._files = dict(os.environ), _descriptors(), _files()

    def changes(self) -> list[str]:
        """What is there now and was not there then."""
        new = _descendants(os.getpid()) - self.descendants
        fds = {fd: what for fd, what in _descriptors().items() if self._fds.get(fd) != what}
        names = self._environ.keys() | os.environ.keys()
        return [
            *(f"process {pid}: {_story(pid)}" for pid in sorted(new)),
            *(f"descriptor {fd}: {what}" for fd, what in fds.items()),
            *(f"file {path}" for path in sorted(_files() - self._files)),
            *(
                f"variable {name}"
                for name in names
                if self._environ.get(name) != os.environ.get(name) and name != "PYTEST_CURRENT_TEST"
            ),
        ]


def _descendants(pid: int) -> set[int]:
    """Not by psutil, which looks at every process of the machine: half of the suite's time."""
    found = set()
    try:
        for thread in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{thread}/children") as file:
                for child in map(int, file.read().split()):
                    found |= {child, *_descendants(child)}
    except OSError:  # it ended meanwhile
        pass
    return found


def _story(pid: int) -> str:
    try:
        process = psutil.Process(pid)
        return f"{process.status()} {' '.join(process.cmdline())[-200:]}"
    except psutil.Error:
        return "gone"


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:  # the descriptor of the listing itself
            continue
    # multiprocessing keeps the memory of barriers and shared values for the next ones.
    return {fd: what for fd, what in found.items() if "/dev/shm/pym-" not in what}


def _files() -> set[str]:
    shared = [f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if _SEMAPHORES in name]
    temporary = [name for name in os.listdir(_FOLDER.name) if not name.startswith("pytest-of-")]
    return {*shared, *temporary}
