"""Private names of CPython that this package uses, all of them, with the reason for each.

Nothing here is promised to exist in the next version. So every name is looked up when it is
used; where it is missing, something public takes its place, or the docstring says what is lost.

Every worker imports this: what it does not have loaded anyway is imported where it is used.
"""

from __future__ import annotations

import atexit
import os
import sys

try:
    import _signal
except ImportError:
    import signal as _signal

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

# What signal wraps to return enums: its import takes a worker 2 ms, and each call of a wrapper
# has a forked one copy twenty pages more.
raw_signal = _signal
# Names of multiprocessing that ChildMaker sets or calls.
_OF_PROCESS = ("_process_counter", "_children", "_current_process", "_parent_process")
_OF_UTIL = ("_finalizer_registry", "_run_after_forkers", "_exit_function")

# False in a forked worker whose parent's exit functions cannot be told from its own.
_exit_functions_are_ours = True
_put_aside: list[object] = []


# --- Modules in C, without the Python around them.


def load_pickle() -> Any:
    """``_pickle``, or pickle without an accelerator: pickle takes a worker 1.5 ms to load."""
    try:
        import _pickle as pickle
    except ImportError:
        import pickle  # type: ignore[no-redef]
    return pickle


def call_c(name: str, *arguments: object) -> int | None:
    """What a function of the C library returns; None if that is out of reach."""
    try:
        import _ctypes  # which takes 0.5 ms to load, and ctypes 6

        address = _ctypes.dlsym(_ctypes.dlopen(None, 0), name)  # type: ignore[arg-type]
        return int(_ctypes.call_function(address, arguments))
    except (ImportError, AttributeError):  # ctypes may do without it some day
        return _call_c_by_ctypes(name, arguments)
    except OSError:  # no such function
        return None


def _call_c_by_ctypes(name: str, arguments: tuple[Any, ...]) -> int | None:
    try:
        import ctypes

        return int(getattr(ctypes.CDLL(None), name)(*arguments))
    except (ImportError, AttributeError, OSError):
        return None


def may_have_library(name: str) -> bool:
    """False if the system has no such library; found out in 0.5 ms, where ctypes takes 6."""
    try:
        import _ctypes

        _ctypes.dlopen(name, 0)
    except OSError:
        return False
    except (ImportError, AttributeError):  # then ctypes will tell
        return True
    return True


def call_unlisted(call: Callable[[], None]) -> None:
    """Run it in a thread that ``threading`` lists, before 3.13 for ever, though it has ended."""
    import threading

    try:
        call()
    finally:
        getattr(threading, "_active", {}).pop(threading.get_ident(), None)


# --- The end of a process that leaves by os._exit, and does before what Python would do.


def wait_for_threads() -> None:
    """Wait for threads that are not daemons, as Python does before its exit functions.

    ``threading._shutdown`` also ends the pools of concurrent.futures; the fallback only waits.
    """
    threading: Any = sys.modules.get("threading")
    if threading is None:
        return
    shutdown = getattr(threading, "_shutdown", None)
    if shutdown is not None:
        shutdown()
        return
    for thread in threading.enumerate():
        if not thread.daemon and thread is not threading.current_thread():
            thread.join()


def run_exit_functions() -> bool:
    """Run what the program registered with atexit; False if only Python itself can.

    There is nothing public like ``atexit._run_exitfuncs``: whoever gets False has to leave by the
    interpreter's own way, if it may.
    """
    run = getattr(atexit, "_run_exitfuncs", None)
    if run is None or not _exit_functions_are_ours:
        return False
    run()
    return True


def forget_exit_functions(finalize: Any) -> None:
    """For a forked worker: what the parent registered for its own exit is not run here.

    Without ``atexit._clear`` no exit function of the worker is run either. The names of
    ``weakref.finalize`` let finalizers of the worker register themselves again. Threads of the
    parent's pools are not here, but for the one that forked, which would wait for itself.
    """
    global _exit_functions_are_ours  # noqa: PLW0603 - the process is in this state
    clear = getattr(atexit, "_clear", None)
    if clear is None:
        _exit_functions_are_ours = False
    else:
        clear()
        util: Any = sys.modules.get("multiprocessing.util")
        if hasattr(util, "_exit_function"):
            atexit.register(util._exit_function)  # flushes queues
    if hasattr(finalize, "_registered_with_atexit"):
        forget_finalizers(finalize)
        finalize._registered_with_atexit = False
    pools: Any = sys.modules.get("concurrent.futures.thread")
    if hasattr(pools, "_threads_queues"):
        pools._threads_queues.clear()


def forget_finalizers(finalize: Any) -> None:
    """In a copy: what objects have left for the end of the process that it is a copy of.

    Put aside, not emptied: torch has hundreds, and letting go of each copies its pages.
    """
    if hasattr(finalize, "_registry"):
        finalize._registry, _put_aside[:] = {}, [finalize._registry]


# --- What multiprocessing knows of itself in a worker that was not started by it.


def install_identity(rank: int, tracker: int, identity: dict[str, Any]) -> None:
    """Give multiprocessing this identity, now or when it is imported.

    Its import costs a worker 10 ms, a third of its start, and most never use it. So its name,
    key, parent and so on are handed over by a hook that runs after the import, if any.
    """
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
    """Name, key, parent and start method; only the first two can be set by public names."""
    process: Any = package.process
    current: Any = process.current_process()
    current.name = identity["name"].format(rank=rank)
    current.authkey = identity["authkey"]
    current._identity = (rank + 1,)  # names of semaphores and of its own children
    if hasattr(current, "_config"):
        current._config["daemon"] = identity["daemon"]  # the property refuses, for it runs
    current._parent_pid = identity["parent_pid"]
    if hasattr(process, "_ParentProcess"):
        process._parent_process = parent_class()(
            identity["parent_name"], identity["parent_pid"], None
        )
    package.set_start_method(identity["start_method"], force=True)


def _share_tracker(module: ModuleType, fd: int) -> None:
    """One resource tracker for the whole job, so that a rank's end removes nothing of others."""
    tracker = getattr(module, "_resource_tracker", None)
    if hasattr(tracker, "_fd"):
        tracker._fd = fd  # type: ignore[union-attr]


# --- Forked workers, told by fewer steps than multiprocessing's own: each page that they touch
# --- is copied, which takes 3 microseconds.


def can_become_child() -> bool:
    """All that :class:`ChildMaker` needs is there; else multiprocessing does it its own way."""
    from multiprocessing import process, util

    needed = ((process, (*_OF_PROCESS, "_ParentProcess")), (util, _OF_UTIL))
    return all(hasattr(module, name) for module, names in needed for name in names)


def bootstrap_of(process: object) -> Callable[[], int] | None:
    """How multiprocessing runs a child that was forked; None if there is no such way."""
    return getattr(process, "_bootstrap", None)


def parent_class() -> Any:
    """What multiprocessing's ``parent_process()`` gets, with a sentinel that is opened if asked."""
    global _parent_class  # noqa: PLW0603 - made once: that takes longer than a fork
    if _parent_class is not None:
        return _parent_class
    from multiprocessing import process

    parent_process: Any = process._ParentProcess  # type: ignore[attr-defined]

    class Parent(parent_process):  # type: ignore[misc]  # of no known type
        _opened: int | None = None

        @property
        def _sentinel(self) -> int:
            if self._opened is None:
                from rankspawn.portable import open_parent  # few workers ask

                self._opened = open_parent(self._pid)
            return self._opened

        @_sentinel.setter
        def _sentinel(self, _: object) -> None:
            """By its base class."""

    _parent_class = Parent
    return Parent


_parent_class: Any = None


class ChildMaker:
    """Tells multiprocessing, in a fork, that this is one of its children, to end like one.

    Made before the forks, as imports touch pages, too. Only if :func:`can_become_child`.
    """

    def __init__(self) -> None:
        import itertools
        import threading
        from multiprocessing import process, util

        self._process: Any = process
        self._util: Any = util
        self._parent: Any = parent_class()(process.current_process().name, os.getpid(), None)
        self._counter = itertools.count(1)
        self._threading = threading

    def become_child(self, process: Any) -> None:
        """Runs in the fork."""
        module, util = self._process, self._util
        module._process_counter = self._counter
        module._children = set()
        module._current_process = process
        module._parent_process = self._parent
        thread: Any = self._threading.main_thread()
        if hasattr(thread, "_set_native_id"):  # threading sets it itself from Python 3.13 on
            thread._set_native_id()
        util._finalizer_registry.clear()
        util._run_after_forkers()


class tracker_kept:
    """A child that is forked in here shares the resource tracker of this process.

    From Python 3.14.5 on a child that was not forked by multiprocessing closes its copy of the
    tracker's pipe, and would start one of its own, which removes at the child's end what others
    still use. multiprocessing says by ``_fork_intent`` that a fork is its own.
    """

    __slots__ = ("_intent",)

    def __enter__(self) -> None:
        tracker = sys.modules.get("multiprocessing.resource_tracker")
        self._intent: Any = getattr(tracker, "_fork_intent", None)
        if self._intent is not None:
            self._intent.preserve_fd = True

    def __exit__(self, *_: object) -> None:
        if self._intent is not None:
            self._intent.preserve_fd = False


# --- The parent.


def adopt(process: Any, popen: Any) -> None:
    """Have a multiprocessing process stand for one that was started without its ``start()``.

    ``_popen`` and ``_sentinel`` are what its methods use. A sentinel that is made by asking for it
    is not asked for: -1 stands for it, and ``RankProcess.sentinel`` asks. At exit multiprocessing
    waits for its ``_children``, without that atexit does; nobody does for a detached job's.
    """
    from multiprocessing import process as module

    process._popen = popen
    process._sentinel = -1 if getattr(popen, "makes_sentinel", False) else popen.sentinel
    children = getattr(module, "_children", None)
    if not getattr(popen, "outlives_driver", False):
        atexit.register(_wait_at_exit, process) if children is None else children.add(process)


def _wait_at_exit(process: Any) -> None:
    if process.daemon:
        process.terminate()
    process.join()


def interpreter_flags() -> list[str]:
    """The options that this interpreter was started with, for another one.

    Without subprocess's own list those are missing that change no behaviour of workers.
    """
    import subprocess

    known = getattr(subprocess, "_args_from_interpreter_flags", None)
    if known is not None:
        return list(known())
    names = (
        "dont_write_bytecode ignore_environment isolated optimize safe_path no_site bytes_warning"
    )
    switches = zip("BEIOPSbs", [*names.split(), "no_user_site"], strict=True)
    counts = [(letter, int(getattr(sys.flags, name))) for letter, name in switches]
    flags = [f"-{letter * count}" for letter, count in counts if count]
    flags += [f"-W{option}" for option in sys.warnoptions]
    for name, isset in (("dev", sys.flags.dev_mode), ("utf8", sys.flags.utf8_mode)):
        flags += ["-X", name] if isset else []
    return flags


class safe_path_for_tracker:
    """The resource tracker, if it is started in here, leaves the current folder off its path.

    A file there that is called like a module of Python would make it fail with a traceback. One
    thread at a time; without the private name it starts as multiprocessing has it.
    """

    _NAME = "_args_from_interpreter_flags"

    def __enter__(self) -> None:
        from multiprocessing import util

        self._flags: Any = getattr(util, self._NAME, None)
        if self._flags is not None:
            setattr(util, self._NAME, lambda: [*self._flags(), "-P"])

    def __exit__(self, *_: object) -> None:
        from multiprocessing import util

        if self._flags is not None:
            setattr(util, self._NAME, self._flags)
