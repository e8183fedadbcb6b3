"""Private names of CPython: one module has them all, and can do without each."""

from __future__ import annotations

import ast
import atexit
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from multiprocessing import process, resource_tracker, shared_memory, util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankspawn import MultiprocessContext, cpython
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]

SOURCES = Path(cpython.__file__).parent
# Python's reference documents these in spite of their names.
DOCUMENTED = {"_thread", "os._exit", "sys._current_frames", "sys._getframe"}


def test_private_names_are_used_in_one_module_only() -> None:
    others = [path for path in SOURCES.rglob("*.py") if path.name != "cpython.py"]

    found = [f"{path.relative_to(SOURCES)}: {use}" for path in others for use in _uses(path)]

    assert [use for use in found if use.partition(": ")[2] not in DOCUMENTED] == []


def _uses(path: Path) -> Iterator[str]:
    """Private modules that are imported, and private attributes of Python's modules."""
    tree = ast.parse(path.read_text())
    of_python: set[str] = set()
    for name, origin in _imports(tree):
        if origin.partition(".")[0] in sys.stdlib_module_names - {"__future__"}:
            of_python.add(name)
            if any(_is_private(part) for part in origin.split(".")):
                yield origin
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner.partition(".")[0] in of_python or _belongs_to_python(owner, node.attr):
                yield f"{owner}.{node.attr}"


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """What a module calls something, and what that is."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0], alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def _belongs_to_python(owner: str, name: str) -> bool:
    """A name that we know from cpython.py, of something that is not our own object."""
    text = Path(cpython.__file__).read_text()
    return owner not in ("self", "cls") and (f".{name}" in text or f'"{name}"' in text)


JOB = """
import atexit, os, pathlib, sys, threading, time
import rankspawn
from rankspawn import cpython

def write_late(path):
    time.sleep(0.2)
    pathlib.Path(path).touch()

def job(folder):
    rank = rankspawn.get_rank()
    atexit.register(pathlib.Path(folder, f"exit-{rank}").touch)
    threading.Thread(target=write_late, args=(f"{folder}/thread-{rank}",)).start()
    os.write(1, b"")
    return rank * 10

if __name__ == "__main__":
    exec(sys.argv[3])
    context = rankspawn.spawn(
        job, args=(sys.argv[2],), nprocs=2, backend="gloo", start_method=sys.argv[1]
    )
    print(context.results())
"""
# What a version of Python may lack, as every process of the job begins with it. Modules that
# Python itself needs are loaded before they are taken away.
GONE = {
    "_signal": "import signal; sys.modules['_signal'] = None",
    "_pickle": "import pickle; sys.modules['_pickle'] = None",
    "_ctypes": "import ctypes; sys.modules['_ctypes'] = None",
    "threading._shutdown": "import threading; del threading._shutdown",
    "atexit._run_exitfuncs": "import atexit; del atexit._run_exitfuncs",
    "atexit._clear": "import atexit; del atexit._clear",
    "finalize._registry": "import weakref; weakref.finalize._registered_with_atexit = None",
    "_args_from_interpreter_flags": (
        "import multiprocessing.util, subprocess; del subprocess._args_from_interpreter_flags"
    ),
    "_resource_tracker": (
        "import multiprocessing.resource_tracker as t; t.kept = t._resource_tracker; "
        "del t._resource_tracker"
    ),
}
ALL = "; ".join(GONE.values())
# And of the parent alone, by which a forked worker decides what it will do.
NO_SHORT_WAY = "cpython._OF_PROCESS += ('_gone',)"
NO_WAY = NO_SHORT_WAY + "; from multiprocessing import process; del process.BaseProcess._bootstrap"


def run_without(folder: Path, statements: str, start_method: str, in_parent: str = "") -> set[str]:
    """Run two ranks; return the files that they wrote when they ended."""
    (folder / "out").mkdir()
    (folder / "job.py").write_text(JOB)
    (folder / "sitecustomize.py").write_text(f"import sys\n{statements}\n")
    root = SOURCES.parent.parent
    environ = {**os.environ, "PYTHONPATH": f"{folder}{os.pathsep}{root / 'src'}"}
    done = subprocess.run(
        [sys.executable, "job.py", start_method, str(folder / "out"), in_parent],
        cwd=folder,
        env=environ,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "[0, 10]\n"), done.stderr
    return {path.name for path in (folder / "out").iterdir()}


WHOLE = {"exit-0", "exit-1", "thread-0", "thread-1"}


@pytest.mark.parametrize("name", GONE)
def test_an_executed_worker_does_without(name: str, tmp_path: Path) -> None:
    assert run_without(tmp_path, GONE[name], "spawn") == WHOLE


def test_all_of_them_at_once(start_method: str, tmp_path: Path) -> None:
    written = run_without(tmp_path, ALL, start_method, NO_WAY)

    # Only Python itself could run exit functions, and a fork must not run its parent's.
    assert written == (WHOLE if start_method == "spawn" else {"thread-0", "thread-1"})


@pytest.mark.parametrize("in_parent", [NO_SHORT_WAY, NO_WAY])
def test_a_fork_goes_the_long_way(in_parent: str, tmp_path: Path) -> None:
    assert run_without(tmp_path, "", "fork", in_parent) == WHOLE


def make_memory() -> str:
    memory = shared_memory.SharedMemory(create=True, size=16)
    view: Any = memory.buf
    view[:5] = b"hello"
    del view
    memory.close()
    return memory.name


def test_memory_that_a_rank_made_outlives_it(run: Run) -> None:
    (name,) = run(make_memory, nprocs=1).results()

    memory: Any = shared_memory.SharedMemory(name)
    try:
        assert bytes(memory.buf[:5]) == b"hello"
    finally:
        memory.close()
        memory.unlink()


def test_a_fork_of_ours_keeps_the_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    intent = SimpleNamespace(preserve_fd=False)
    monkeypatch.setattr(resource_tracker, "_fork_intent", intent, raising=False)

    with cpython.tracker_kept():
        assert intent.preserve_fd
    assert not intent.preserve_fd


def test_processes_are_waited_for_at_exit_without_a_list_of_children(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    registered: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda func, *args: registered.append((func, args)))
    monkeypatch.delattr(process, "_children")
    calls: list[str] = []
    child = SimpleNamespace(
        daemon=True, terminate=lambda: calls.append("terminate"), join=lambda: calls.append("join")
    )

    cpython.adopt(child, SimpleNamespace(sentinel=7))
    ((func, args),) = registered
    func(*args)

    assert calls == ["terminate", "join"]


def test_a_tracker_whose_flags_cannot_be_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(util, "_args_from_interpreter_flags")

    with cpython.safe_path_for_tracker():
        assert not hasattr(util, "_args_from_interpreter_flags")
    assert not hasattr(util, "_args_from_interpreter_flags")


FLAGS = """
import subprocess, sys
from rankspawn import cpython
sys.path.pop(0)
del subprocess._args_from_interpreter_flags
code = "import sys; print(sys.flags, sys.warnoptions[0])"
print(sys.flags, sys.warnoptions[0])
sys.stdout.flush()
subprocess.run([sys.executable, *cpython.interpreter_flags(), "-c", code], check=True)
"""


@pytest.mark.parametrize("flags", ["-OO -B -s", "-X dev -P", "-X utf8 -b -E"])
def test_flags_of_the_interpreter_by_public_names(flags: str) -> None:
    command = [sys.executable, *flags.split(), "-Werror::UserWarning", "-c", FLAGS]

    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=DEADLOCK)

    ours, theirs = done.stdout.splitlines()
    assert theirs == ours


UNREADABLE = """
import sys
import rankspawn

if __name__ == "__main__":
    if False:
        from numpy import ndarray

    def double(values: ndarray, *, times: int = 2) -> ndarray:
        return [value * times for value in values], double.__name__

    context = rankspawn.spawn(
        double, args=([1, 2],), nprocs=2, backend="gloo", start_method=sys.argv[1]
    )
    print(context.results()[1])
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="annotations were evaluated at once")
def test_annotations_that_only_a_type_checker_can_read(start_method: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(UNREADABLE)

    done = subprocess.run(
        [sys.executable, script, start_method],
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )

    assert done.stdout == "([2, 4], 'double')\n", done.stderr
