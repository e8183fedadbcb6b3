"""Every check of this project, each a session of nox: ``nox -l`` lists them.

``.ci/run`` runs them all, three at a time and in a clean copy of the tree; CONTRIBUTING.md says
what each of them costs. The main Python is the one that nox runs with.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import shutil
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from pathlib import Path

import nox
from nox.command import CommandFailed

ROOT = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
MAIN = f"{sys.version_info[0]}.{sys.version_info[1]}"
# Coverage is measured with this one, if it is there: from 3.12 on Python tells of lines itself
# (sys.monitoring), which is far lighter than a tracer and leaves signals and frames alone.
COVERED = "3.13"
PEERS = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
FRAMEWORKS = ("torch", "paddle", "jax", "ray")
NOT_IN_A_CLONE = shutil.ignore_patterns(
    ".git", ".venv*", ".nox", "__pycache__", ".*_cache", "*.egg-info", ".coverage*", "dist", "build"
)

# So many tests of a section are looked at again when they failed; and how the output says it,
# for sections.py to find.
MOST_AGAIN = 3
FAILED_ONCE = "!!!!! FAILED ONCE: "

nox.needs_version = ">=2024.4.15"
nox.options.default_venv_backend = "venv"


@nox.session(python=MAIN)
def lint(session: nox.Session) -> None:
    """Style and types: ruff, mypy, pyright."""
    session.install("-q", "-e", ".[dev]")
    session.run("ruff", "check", ".")
    session.run("ruff", "format", "--check", ".")
    session.run("mypy")
    session.run("mypy", ".ci/sections.py")
    # What a second checker knows of the public names, and that each of them has a type. It brings
    # Node.js as a package; without this variable it would ask the network for a newer version.
    quiet = {"PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"}
    session.run("pyright", "-p", "tests/typing", env=quiet)
    session.run("pyright", "--verifytypes", "rankspawn", "--ignoreexternal", env=quiet)


@nox.session(python=False)
def quickstart(session: nox.Session) -> None:
    """The README's first command, as it stands there, in a copy of the tree."""
    run_readme_command(session, "examples/quickstart.py")


def tests_of_readme(session: nox.Session) -> None:
    """All tests, by the README's command as it stands there, in a copy of the tree."""
    folder = Path(session.create_tmp(), session.name)
    with second_look(session, folder / "tree/.pytest_cache", ".venv/bin/python", folder / "tree"):
        run_readme_command(session, "-m pytest -n 2")


def tests(session: nox.Session) -> None:
    """All tests, in a random order."""
    session.install("-q", "-e", ".[test]")
    run_tests(session, *(session.posargs or ["-m", "not slow and not interop"]))


def tests_with_coverage(session: nox.Session) -> None:
    """All tests, in a random order, and how much of the lines they run, workers included."""
    session.install("-q", "-e", ".[test]")
    if session.posargs:
        run_tests(session, *session.posargs)
        return
    coverage = ("python", "-m", "coverage")
    chosen = "not slow and not interop and not untraced"
    counted = {"COVERAGE_CORE": "sysmon"}
    run_tests(session, "-m", chosen, python=(*coverage, "run"), env=counted)
    session.run(*coverage, "combine", "-q")
    run_tests(session, "-m", "untraced and not slow and not interop")
    session.run(*coverage, "report")  # last: fails below the floor in pyproject.toml


for version in PYTHONS:
    if version == MAIN:
        nox.session(tests_of_readme, name=f"tests-{version}", python=False)
    elif version == COVERED:
        nox.session(tests_with_coverage, name=f"tests-{version}", python=version)
    else:
        nox.session(tests, name=f"tests-{version}", python=version)


@nox.session(python=MAIN)
def slow(session: nox.Session) -> None:
    """Odd surroundings and large groups: what the README's command leaves out."""
    session.install("-q", "-e", ".[test]")
    run_tests(session, "-m", "slow", *session.posargs)


@nox.session(python=MAIN)
def portable(session: nox.Session) -> None:
    """All tests but the slow ones, without the system calls of newer Linux."""
    session.install("-q", "-e", ".[test]")
    forced = {"RANKSPAWN_PORTABLE": "1"}
    run_tests(session, *session.posargs, env=forced)


def interop(session: nox.Session) -> None:
    """Tests beside a real framework."""
    module = session.name.removeprefix("interop-")
    # Who starts ranks with it, to be run over our functions; and what else connects ranks.
    groups = (module, f"{module}-users", f"{module}-engines")
    peers = [package for group in groups for package in PEERS.get(group, ())]
    session.install("-q", *peers, "pandas", "pyarrow", "-e", ".[test]")
    session.run("python", "-c", f"import {module}; print('{module}', {module}.__version__)")
    run_tests(session, "-m", "interop", *session.posargs)


for module in FRAMEWORKS:
    nox.session(interop, name=f"interop-{module}", python=MAIN)


@nox.session(name="interop-notebooks", python=MAIN)
def notebooks(session: nox.Session) -> None:
    """Tests in real notebooks, with an editor's debugger and with py-spy."""
    session.install("-q", "-e", ".[test,test-notebook]")
    run_tests(session, "-m", "interop", "tests/view", "tests/inspect", "tests/test_docs.py")


@nox.session(python=MAIN)
def docs(session: nox.Session) -> None:
    """The site, with every warning an error, and the pictures of the gallery."""
    session.install("-q", "-e", ".[docs]")
    site = Path(session.create_tmp())
    flags = ("-q", "-W", "--keep-going", "-E", "-b", "html")
    session.run("python", "docs/make_pictures.py", "--stale")
    session.run("python", "-m", "sphinx", *flags, "docs", str(site))
    made = [site / "index.html", *site.glob("_images/*.svg"), *site.glob("_images/trace.png")]
    assert made[0].exists()
    assert made[2:], "no pictures"
    print(*made, sep="\n")


CHECK_WHEEL = """
import importlib.util
from pathlib import Path

import rankspawn
import rankspawn.compat.torch

assert Path(rankspawn.__file__).with_name("py.typed").exists(), "the wheel has no py.typed"
assert importlib.util.find_spec("pytest") is None, "this environment is not clean"
print("rankspawn", rankspawn.__version__, "imports from its wheel:", *rankspawn.__all__)
"""


@nox.session(python=MAIN)
def package(session: nox.Session) -> None:
    """The wheel, made from the source distribution, used where nothing else is installed."""
    made = Path(session.create_tmp()) / "dist"
    build = made.with_name("build")
    session.run("python", "-m", "venv", str(build), silent=True)
    session.run(str(build / "bin/pip"), "install", "-q", "build", external=True)
    session.run(
        str(build / "bin/python"), "-m", "build", "-q", "--outdir", str(made), ".", external=True
    )
    print(*sorted(path.name for path in made.iterdir()))
    session.install("-q", *map(str, made.glob("*.whl")))
    session.chdir(made)  # away from the sources
    session.run("python", "-c", CHECK_WHEEL)
    session.run("python", str(ROOT / "examples/quickstart.py"))
    # 1 means that it has found something about this machine.
    session.run("rankspawn", "doctor", success_codes=[0, 1])


def run_tests(
    session: nox.Session,
    *chosen: str,
    python: tuple[str, ...] = ("python",),
    env: dict[str, str] | None = None,
) -> None:
    """Run tests in a random order, and what failed once more, alone.

    Args:
        session: Where.
        chosen: For pytest.
        python: What runs it.
        env: Variables.
    """
    seed = f"--randomly-seed={random.randrange(2**31)}"
    # Sections run in the same folder, each with a cache of its own.
    with tempfile.TemporaryDirectory() as cache:
        words = ("-m", "pytest", "-q", seed, "-o", f"cache_dir={cache}", *chosen)
        with second_look(session, Path(cache), "python", ROOT, env):
            session.run(*python, *words, env=env)


@contextlib.contextmanager
def second_look(
    session: nox.Session, cache: Path, python: str, folder: Path, env: dict[str, str] | None = None
) -> Iterator[None]:
    """Run the tests that failed in the block once more, alone, and say so; unless it were many.

    A test that passes then is a fault nevertheless, of itself or of the product, and
    CONTRIBUTING.md says what is done about it. But it says nothing about the change at hand.

    Args:
        session: Where.
        cache: Of pytest, which notes there what failed.
        python: What runs it.
        folder: The tests' tree.
        env: Variables.
    """
    try:
        yield
    except CommandFailed as error:
        noted = cache / "v/cache/lastfailed"
        failed = list(json.loads(noted.read_text())) if noted.exists() else []
        # 1 means that tests failed, and nothing worse.
        if not str(error).endswith("code 1") or not 1 <= len(failed) <= MOST_AGAIN:
            raise
        print(*(f"{FAILED_ONCE}{name}" for name in failed), sep="\n", flush=True)
        with session.chdir(folder):
            session.run(python, "-m", "pytest", "-q", "-m", "", *failed, env=env, external=True)


def run_readme_command(session: nox.Session, end: str) -> None:
    """Run the README's only command that ends so, with the main Python as ``python3``."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", (ROOT / "README.md").read_text(), re.S | re.M)
    found = [line for block in blocks for line in block.splitlines() if line.endswith(end)]
    if len(found) != 1:
        session.error(f"README: no single command that ends in {end}")
    folder = Path(session.create_tmp(), session.name)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(ROOT, folder / "tree", ignore=NOT_IN_A_CLONE)
    # The README says python3, which may be an older one on this machine.
    (folder / "bin").mkdir()
    script = folder / "bin/python3"
    # Not a link: the real one, so that nothing of nox's own environment is in the new one.
    script.write_text(f'#!/bin/sh\nexec "{Path(sys.executable).resolve()}" "$@"\n')
    script.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    with session.chdir(folder / "tree"):
        session.run("bash", "-c", " ".join([found[0], *session.posargs]), env={"PATH": path})
