"""Programs as users start them: scripts, modules, ``-c``, standard input, a REPL."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import python, script

POINT = """
    import os, sys
    import rankspawn

    class Point:
        def __init__(self, x):
            self.x = x

    def make(x):
        return Point(x + int(os.environ["RANK"]))
"""


def test_functions_and_classes_of_a_script(tmp_path: Path, start_method: str) -> None:
    name = script(
        tmp_path,
        POINT
        + f"""
    if __name__ == "__main__":
        context = rankspawn.spawn(
            make, args=(5,), nprocs=2, backend="gloo", start_method={start_method!r}
        )
        results = context.results()
        assert all(type(result) is Point for result in results), results
        print([result.x for result in results])
    """,
    )

    assert python(name, cwd=tmp_path).stdout == "[5, 6]\n"


def test_functions_of_a_module_run_with_dash_m(tmp_path: Path, start_method: str) -> None:
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "__init__.py").touch()
    text = f"""
    if __name__ == "__main__":
        context = rankspawn.spawn(
            make, args=(5,), nprocs=2, backend="gloo", start_method={start_method!r}
        )
        assert all(type(result) is Point for result in context.results())
        print("fine")
    """
    script(tmp_path / "package", POINT + text, "program.py")
    script(tmp_path / "package", POINT + text, "__main__.py")

    assert python("-m", "package.program", cwd=tmp_path).stdout == "fine\n"
    assert python("-m", "package", cwd=tmp_path).stdout == "fine\n"


def test_a_scripts_own_exception_has_its_own_name(tmp_path: Path, start_method: str) -> None:
    name = script(
        tmp_path,
        f"""
    import rankspawn

    class DataError(Exception):
        pass

    def work():
        try:
            raise ExceptionGroup("several", [DataError("short")])
        except ExceptionGroup as group:
            raise DataError("empty") from group

    if __name__ == "__main__":
        try:
            rankspawn.spawn(work, nprocs=1, backend="gloo", start_method={start_method!r})
        except rankspawn.ProcessRaisedException as error:
            print(error)
    """,
    )

    lines = python(name, cwd=tmp_path).stdout.splitlines()
    assert lines[-1] == "DataError: empty"
    assert "    | DataError: short" in lines


def test_a_script_means_the_same_in_a_worker(tmp_path: Path, start_method: str) -> None:
    """Whatever this package's own modules import from ``__future__``."""
    name = script(
        tmp_path,
        f"""
    import dataclasses
    import rankspawn

    @dataclasses.dataclass
    class Settings:
        size: int = 3

    def work():
        return [one.type for one in dataclasses.fields(Settings)]

    if __name__ == "__main__":
        assert rankspawn.spawn(
            work, nprocs=1, backend="gloo", start_method={start_method!r}
        ).results() == [work()] == [[int]]
    """,
    )

    python(name, cwd=tmp_path)


PROGRAM = """
import rankspawn, os
class Point:
    def __init__(self, x): self.x = x

def make(x): return Point(x + int(os.environ["RANK"]))

results = rankspawn.spawn(make, args=(5,), nprocs=2, backend="gloo").results()
print([type(result) is Point for result in results], [result.x for result in results])
"""


@pytest.mark.parametrize("how", ["-c", "stdin", "interactive"])
def test_programs_without_a_file(tmp_path: Path, how: str) -> None:
    arguments = {"-c": ["-c", PROGRAM], "stdin": ["-"], "interactive": ["-i", "-q"]}[how]
    # A REPL needs an empty line after each block, and gets the lines one by one.
    stdin = None if how == "-c" else PROGRAM

    assert "[True, True] [5, 6]" in python(*arguments, cwd=tmp_path, stdin=stdin).stdout


NAMED = """
import functools, rankspawn, typing

Number = typing.NewType("Number", int)

@functools.cache
def fibonacci(n):
    return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

class Model:
    @functools.lru_cache(maxsize=3)
    def layer(self, n):
        return n + 1

    @functools.cached_property
    def size(self):
        return 7

def work(n: Number):
    model = Model()
    return model, fibonacci(n), model.layer(n), model.size

def nested():
    @functools.lru_cache(maxsize=3, typed=True)
    def double(n): return 2 * n
    return double

def run(func, n):
    return rankspawn.spawn(
        func, (n,), nprocs=1, backend="gloo", start_method={start_method!r}
    ).results()[0]

model, *numbers = run(work, 20)
print(type(model) is Model, numbers, run(fibonacci, 10), run(nested(), 4))
"""


def test_what_pickle_sends_by_name_goes_by_value_from_a_program_without_a_file(
    tmp_path: Path, start_method: str
) -> None:
    """Functions with a cache, new types, properties with one (which have a lock in 3.11)."""
    done = python("-c", NAMED.format(start_method=start_method), cwd=tmp_path)

    assert done.stdout == "True [6765, 21, 7] 55 8\n"


def test_files_of_the_current_folder_do_not_get_in_the_way(
    tmp_path: Path, start_method: str
) -> None:
    for name in ("mmap", "copyreg", "traceback", "select", "signal", "faulthandler"):
        script(tmp_path, "raise ImportError('the wrong one')", f"{name}.py")
    (tmp_path / "elsewhere").mkdir()
    name = script(
        tmp_path / "elsewhere",
        f"""
    import rankspawn

    def work():
        raise LookupError("the right one")

    if __name__ == "__main__":
        rankspawn.spawn(work, nprocs=1, backend="gloo", start_method={start_method!r})
    """,
    )

    done = python(f"elsewhere/{name}", cwd=tmp_path, fails=True)

    assert done.stderr.splitlines()[-1] == "LookupError: the right one"
    assert "the wrong one" not in done.stderr  # by nobody, multiprocessing's helpers included


def test_a_main_module_that_fails_in_the_worker_is_told(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    import rankspawn

    def work():
        return 1

    if __name__ == "__main__":
        rankspawn.spawn(work, nprocs=1, backend="gloo")
    else:
        raise SystemExit(0)
    """,
    )

    assert "SystemExit: 0" in python(name, cwd=tmp_path, fails=True).stderr.splitlines()[-1]


def test_argv_and_path_are_the_parents(tmp_path: Path, start_method: str) -> None:
    (tmp_path / "lib").mkdir()
    script(tmp_path / "lib", "NAME = 'found'", "only_there.py")
    name = script(
        tmp_path,
        f"""
    import os, sys
    import rankspawn

    def work():
        import only_there
        return sys.argv[1:], only_there.NAME, __name__

    if __name__ == "__main__":
        sys.path.insert(0, os.path.abspath("lib"))
        print(rankspawn.spawn(
            work, nprocs=1, backend="gloo", start_method={start_method!r}
        ).results()[0])
    """,
    )
    main = "__main__" if start_method == "fork" else "__mp_main__"

    done = python(name, "--lr", "0.1", cwd=tmp_path)

    assert done.stdout == f"(['--lr', '0.1'], 'found', '{main}')\n"


def test_output_of_the_parent_is_not_repeated_by_workers(tmp_path: Path, start_method: str) -> None:
    name = script(
        tmp_path,
        f"""
    import rankspawn

    def work():
        print("worker")

    if __name__ == "__main__":
        print("parent", end="\\n")
        rankspawn.spawn(work, nprocs=2, backend="gloo", start_method={start_method!r})
    """,
    )

    assert sorted(python(name, cwd=tmp_path).stdout.split()) == ["parent", "worker", "worker"]


def test_exit_handlers_run_in_the_process_that_registered_them(
    tmp_path: Path, start_method: str
) -> None:
    name = script(
        tmp_path,
        f"""
    import atexit, os
    import rankspawn

    def work():
        atexit.register(print, "worker's")

    if __name__ == "__main__":
        atexit.register(print, "parent's")
        rankspawn.spawn(work, nprocs=2, backend="gloo", start_method={start_method!r})
    """,
    )

    lines = python(name, cwd=tmp_path).stdout.splitlines()
    assert lines == ["worker's", "worker's", "parent's"]


@pytest.mark.untraced
def test_import_is_light(tmp_path: Path) -> None:
    code = "import sys; old = {*sys.modules}; import rankspawn; print(sorted({*sys.modules} - old))"

    loaded = python("-c", code, cwd=tmp_path).stdout

    assert loaded == "['__future__', 'rankspawn']\n"
