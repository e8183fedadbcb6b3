"""What every test must leave as it found it."""

from __future__ import annotations

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
from rankspawn.workers import forkserver

START_METHODS = ("spawn", "fork", "forkserver")


# Files of other programs on the machine are not ours to judge: temporary files of this run get
# a folder, and its semaphores a prefix, of their own.
_FOLDER = tempfile.TemporaryDirectory(prefix="rankspawn-tests-")
_SEMAPHORES = f"rst{os.getpid()}"


def pytest_configure() -> None:
    os.environ["TMPDIR"] = tempfile.tempdir = _FOLDER.name
    process.current_process()._config["semprefix"] = f"/{_SEMAPHORES}"  # type: ignore[attr-defined]


@pytest.fixture(scope="session", autouse=True)
def _resource_tracker() -> None:
    """Started once for the whole run, as multiprocessing does; so it is nobody's leak."""
    resource_tracker.ensure_running()


@pytest.fixture(params=START_METHODS)
def start_method(request: pytest.FixtureRequest) -> str:
    """Each of multiprocessing's three ways to start a process."""
    return str(request.param)


@pytest.fixture
def run(start_method: str) -> Callable[..., MultiprocessContext]:
    """``spawn()`` on the CPU, with each start method."""
    return functools.partial(rankspawn.spawn, backend="gloo", start_method=start_method)


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fails a test that leaves a process, a descriptor, a file or a variable behind."""
    environ, fds, files = dict(os.environ), _descriptors(), _files()
    children = {child.pid for child in psutil.Process().children(recursive=True)}
    yield
    forkserver.stop_servers()
    gc.collect()  # queues and locks of the test itself go with their last reference
    left = [one for one in psutil.Process().children(recursive=True) if one.pid not in children]
    stories = [f"process {one.pid}: {_story(one)}" for one in left]
    for one in left:
        one.kill()
    new_fds = {fd: what for fd, what in _descriptors().items() if fds.get(fd) != what}
    stories += [f"descriptor {fd}: {what}" for fd, what in new_fds.items()]
    stories += [f"file {path}" for path in sorted(_files() - files)]
    stories += [
        f"variable {name}"
        for name in environ.keys() | os.environ.keys()
        if environ.get(name) != os.environ.get(name) and name != "PYTEST_CURRENT_TEST"
    ]
    if stories:
        pytest.fail(f"{request.node.name} left behind: " + "; ".join(stories), pytrace=False)


def _story(process: psutil.Process) -> str:
    try:
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
