"""Scripts with and without ``if __name__ == "__main__":``, and what stands under it."""

from __future__ import annotations

from pathlib import Path

from tests.scripts import python, script


def test_what_the_guard_redefines_goes_by_value(tmp_path: Path, start_method: str) -> None:
    name = script(
        tmp_path,
        f"""
    import rankspawn

    def work():
        return "old"

    if __name__ == "__main__":
        def work():
            return "new"
        print(rankspawn.spawn(
            work, nprocs=1, backend="gloo", start_method={start_method!r}
        ).results())
    """,
    )

    assert python(name, cwd=tmp_path).stdout == "['new']\n"


def test_what_is_defined_under_the_guard_goes_by_value(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    import rankspawn

    if __name__ == "__main__":
        factor = 3

        class Local:
            value = 7

        def work(x):
            return Local(), x * factor

        (pair,) = rankspawn.spawn(work, args=(2,), nprocs=1, backend="gloo").results()
        print(type(pair[0]) is Local, pair[1])
    """,
    )

    assert python(name, cwd=tmp_path).stdout == "True 6\n"


def test_a_missing_guard_is_told_in_one_sentence(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    import rankspawn

    def work():
        return 1

    rankspawn.spawn(work, nprocs=2, backend="gloo")
    """,
    )

    done = python(name, cwd=tmp_path, fails=True)

    lines = done.stderr.strip().splitlines()
    assert 'put the call under if __name__ == "__main__":' in lines[-1]
    assert "script.py calls spawn() while a worker imports it" in lines[-1]
    assert done.stderr.count("put the call under") <= 2  # the cause, and the error itself
    assert len(lines) < 25


def test_a_missing_guard_in_another_module(tmp_path: Path) -> None:
    (tmp_path / "unguarded.py").write_text(
        "import rankspawn\ndef work(): return 1\nrankspawn.spawn(work, nprocs=2, backend='gloo')\n"
    )
    name = script(tmp_path, "import unguarded")

    done = python(name, cwd=tmp_path, fails=True)

    lines = done.stderr.strip().splitlines()
    assert "unguarded.py calls spawn() while a worker imports it: put the call" in lines[-1]


def test_a_guard_is_not_needed_where_nothing_of_the_script_is_used(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    import rankspawn
    from os import getpid

    print(len(set(rankspawn.spawn(getpid, nprocs=2, backend="gloo").results())))
    """,
    )

    assert python(name, cwd=tmp_path).stdout == "2\n"
