"""What becomes of modules that a fork server was asked to import."""

from __future__ import annotations

import sys
import warnings
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rankspawn.workers import main_imports, preloading
from rankspawn.workers.learning import Notebook, forget, lessons
from rankspawn.workers.preloading import UnfitModuleError, judge, with_main
from tests.scripts import python, script

SCRIPT = """
import os, warnings
import rankspawn
import quiet_module, busy_module, rank_module

def who():
    modules = (quiet_module, busy_module, rank_module)
    # Servers that are not taken end by themselves; but the end of a rank is not a server's.
    assert all(name.endswith("by itself") for name in os.listdir("ended")), os.listdir("ended")
    return [module.PID == os.getppid() for module in modules], rank_module.RANK

if __name__ == "__main__":
    warnings.simplefilter("always")
    options = dict(nprocs=2, backend="gloo", start_method="forkserver", preload="main")
    for _ in range(2):
        print(rankspawn.spawn(who, **options).results())
"""


def test_the_server_imports_what_a_script_imports(tmp_path: Path) -> None:
    (tmp_path / "quiet_module.py").write_text(
        "import os, weakref\nPID = os.getpid()\n"
        "class Kept: pass\n"
        "def end():\n"
        "    whose = 'by itself' if os.getpid() == PID else 'by a copy'\n"
        "    os.mkdir(f'ended/{os.getpid()} {whose}')\n"
        "weakref.finalize(Kept, end)\n"
    )
    (tmp_path / "ended").mkdir()
    (tmp_path / "busy_module.py").write_text(
        "import os, threading\nPID = os.getpid()\n"
        "threading.Thread(target=threading.Event().wait, name='pump', daemon=True).start()\n"
    )
    (tmp_path / "rank_module.py").write_text(
        "import os\nPID, RANK = os.getpid(), int(os.environ.get('RANK', -1))\n"
    )
    done = python(script(tmp_path, SCRIPT), cwd=tmp_path)

    line = "[([True, False, False], 0), ([True, False, False], 1)]"
    assert done.stdout.splitlines() == [line, line], done.stderr
    for story in (
        "preload='main' leaves out busy_module, which started the thread 'pump'",
        "preload='main' leaves out rank_module, which read RANK, which each rank has for itself",
    ):
        assert done.stderr.count(story) == 1, done.stderr


LAZY_SCRIPT = """
import os, warnings
import rankspawn

def who():
    import quiet_package.inner, busy_module, rank_module
    try:
        import only_now
    except ImportError:
        import as_it_comes
    modules = (quiet_package, quiet_package.inner, as_it_comes, busy_module, rank_module)
    return [module.PID == os.getppid() for module in modules]

if __name__ == "__main__":
    warnings.simplefilter("always")
    options = dict(nprocs=2, backend="gloo", start_method="forkserver", preload="auto")
    for _ in range(3):
        print(rankspawn.spawn(who, **options).results()[1])
"""


def test_the_server_learns_what_ranks_have_imported(tmp_path: Path) -> None:
    own = "import os\nPID = os.getpid()\n"
    (tmp_path / "quiet_package").mkdir()
    (tmp_path / "quiet_package/__init__.py").write_text(own)
    (tmp_path / "quiet_package/inner.py").write_text(own)
    (tmp_path / "only_now.py").write_text("import as_it_comes, nowhere_to_be_found\n")
    (tmp_path / "as_it_comes.py").write_text(own)
    (tmp_path / "busy_module.py").write_text(
        f"{own}import threading\n"
        "threading.Thread(target=threading.Event().wait, name='pump', daemon=True).start()\n"
    )
    (tmp_path / "rank_module.py").write_text(f"{own}RANK = os.environ.get('RANK')\n")
    done = python(script(tmp_path, LAZY_SCRIPT), cwd=tmp_path)

    learned = "[True, True, True, False, False]"
    assert done.stdout.splitlines() == [str([False] * 5), learned, learned], done.stderr
    for story in (
        "preload='auto' leaves out busy_module, which started the thread 'pump'",
        "preload='auto' leaves out rank_module, which read RANK, which each rank has for itself",
    ):
        assert done.stderr.count(story) == 1, done.stderr


def test_a_later_lesson_has_to_be_worth_a_new_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def end_of_a_rank(imported: list[str]) -> list[str]:
        notebook, another = (Notebook(lessons().fileno()) for _ in range(2))
        notebook.know()
        another.know()
        for name in imported:
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None)
            monkeypatch.setitem(sys.modules, name, module)
        notebook.add()
        another.add()  # it ends later, and somebody has written already
        return Notebook(lessons().fileno()).names(["left.out"])

    many = [f"late{number}" for number in range(32)]
    assert end_of_a_rank(["jax.numpy", "b", "left.out", "rankspawn.b"]) == ["b"]
    assert end_of_a_rank(["too", "few"]) == ["b"]
    assert end_of_a_rank(many) == ["b", *many]
    forget()
    assert Notebook(lessons().fileno()).names([]) == []
    forget()


class FakeServers:
    """Gives servers in which some modules are unfit."""

    def __init__(self, unfit: dict[str, str]) -> None:
        self.unfit = unfit
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, modules: tuple[str, ...], dispensable: frozenset[str]) -> Any:
        self.asked.append(modules)
        unfit = {name: self.unfit[name] for name in modules if name in self.unfit}
        if unfit:
            raise UnfitModuleError(unfit)
        return dispensable


@pytest.fixture(autouse=True)
def _nothing_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preloading, "_left_out", set())


def test_what_of_the_main_module_cannot_be_preloaded_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(main_imports, "modules_of_main", lambda: ("a", "jax.numpy", "b", "named"))
    servers = FakeServers({"b": "opened /dev/nvidia0"})
    with pytest.warns(RuntimeWarning) as caught:
        dispensable: Any = with_main(("named", "main"), servers)

    assert servers.asked == [("named", "a", "b"), ("named", "a")]
    assert dispensable == {"a"}
    assert [str(one.message).partition(":")[0] for one in caught] == [
        "preload='main' leaves out jax.numpy, which does not work in a fork",
        "preload='main' leaves out b, which opened /dev/nvidia0",
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it is said once
        with_main(("named", "main"), servers)


def test_only_what_nobody_has_named_may_fail() -> None:
    hello = {
        "error": ("a", "Traceback\nImportError: no a"),
        "stories": {"b": ["opened x"]},
        "learned": [],
    }
    with pytest.raises(ImportError, match="preload='a' failed in the fork server"):
        judge(hello, frozenset("b"))
    with pytest.raises(UnfitModuleError) as caught:
        judge(hello, frozenset("ab"))
    assert caught.value.stories == {
        "a": "cannot be imported there (ImportError: no a)",
        "b": "opened x",
    }
