"""What multiprocessing knows of itself in a worker, applied when the worker imports it.

Importing multiprocessing costs a worker 10 ms, a third of its start, and most never use it. So
its name, key, parent and so on are handed over by a hook that runs after the import, if any.

Runs in the worker.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any


def install(rank: int, tracker: int, identity: dict[str, Any]) -> None:
    """Give multiprocessing this identity, now or when it is imported."""
    tasks: dict[str, Callable[[ModuleType], None]] = {
        "multiprocessing": lambda package: _identify(package, rank, identity),
        "multiprocessing.resource_tracker": lambda module: _share_tracker(module, tracker),
    }
    for name in list(tasks):
        if name in sys.modules:
            tasks.pop(name)(sys.modules[name])
    if tasks:
        sys.meta_path.insert(0, _AfterImport(tasks))


class _AfterImport:
    """Finds the modules as the others would, and runs a task after each import."""

    def __init__(self, tasks: dict[str, Callable[[ModuleType], None]]) -> None:
        self._tasks = tasks

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        task = self._tasks.pop(name, None)
        if task is None:
            return None
        for finder in sys.meta_path:
            spec = None if finder is self else finder.find_spec(name, path, target)
            if spec is not None:
                _run_after(spec.loader, task)
                return spec
        return None


def _run_after(loader: Any, task: Callable[[ModuleType], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: ModuleType) -> None:
        execute(module)
        task(module)

    loader.exec_module = exec_module


def _identify(package: ModuleType, rank: int, identity: dict[str, Any]) -> None:
    process: Any = package.process  # much of it is private
    current: Any = process.current_process()
    current._name = identity["name"].format(rank=rank)
    current._identity = (rank + 1,)
    current._config.update(
        authkey=process.AuthenticationString(identity["authkey"]), daemon=identity["daemon"]
    )
    current._parent_pid = identity["parent_pid"]
    process._parent_process = process._ParentProcess(
        identity["parent_name"], identity["parent_pid"], open_parent(identity["parent_pid"])
    )
    if identity["start_method"] is not None:
        package.set_start_method(identity["start_method"], force=True)


def open_parent(pid: int) -> int:
    """A descriptor that is readable once the parent is gone."""
    try:
        return os.pidfd_open(pid)
    except OSError:  # it is
        return os.eventfd(1, os.EFD_CLOEXEC)


def _share_tracker(module: ModuleType, fd: int) -> None:
    """One resource tracker for the whole job, so that a rank's end removes nothing of others."""
    module._resource_tracker._fd = fd
