"""Runs the sessions of noxfile.py, three at a time, from a clean copy of the tree.

Started by ``.ci/run``. All copies and environments live in one temporary folder that is removed at
the end. What a section says is shown whole when it has ended; what failed is shown last.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHONS = ("3.11", "3.12", "3.13", "3.14")
# In this order: what fails most and soonest comes first, then the longest.
SECTIONS = {
    "lint": "ruff, mypy, pyright",
    "tests-3.13": "all tests but the slow ones, with coverage",
    "tests-3.11": "the same without; with the main Python by the README's command",
    "interop-torch": "beside the real framework",
    "tests-3.12": "as with 3.11",
    "tests-3.14": "",
    "slow": "odd surroundings and large groups",
    "portable": "all tests without the system calls of newer Linux",
    "interop-paddle": "",
    "interop-jax": "",
    "interop-ray": "on a real cluster of two nodes",
    "interop-notebooks": "in real notebooks",
    "docs": "site and pictures",
    "package": "wheel and source distribution",
    "quickstart": "the README's first command",
}
# Programs that tests of pages and of jobs on many machines need, and Debian's package of each.
PROGRAMS = {
    "chromium": "chromium",
    "etcd": "etcd-server",
    "ip": "iproute2",
    "munged": "munge",
    "ssh": "openssh-client",
    "sshd": "openssh-server",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "strace": "strace",
}
# On two cores: a suite waits for processes half of its time.
AT_ONCE = 3
# How noxfile.py says that a test failed, and passed when it was run again, alone.
FAILED_ONCE = "!!!!! FAILED ONCE: "
# After SIGTERM, before SIGKILL: time for pytest to end what its tests have started.
GRACE = 20.0


@dataclass(frozen=True)
class Ran:
    """A section that has ended."""

    name: str
    code: int
    seconds: float
    cpu_seconds: float
    output: Path


class Interrupted(BaseException):
    """SIGINT or SIGTERM, so that everything is taken down on the way out."""


def main() -> int:
    """Run what the command line asks for; the exit code is 0 if all of it passed."""
    chosen, posargs = read_arguments()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _interrupt)
    began = time.monotonic()
    with temporary_folder() as work:
        pythons = find_pythons(work / "bin")
        sections = [name for name in chosen if is_possible(name, pythons)]
        if len(chosen) != len(SECTIONS) and sections != chosen:
            sys.exit(f"no Python for {' '.join(name for name in chosen if name not in sections)}")
        if any(name.startswith(("tests", "slow")) for name in sections):
            for program, package in PROGRAMS.items():
                need_program(program, package)
        ran = Runner(work, posargs).run_all(sections)
        for each in ran:
            if each.code:
                show(each)
        table(ran)
        for each in ran:
            show_failed_once(each)
    failed = [each.name for each in ran if each.code]
    say(f"FAILED: {' '.join(failed)}" if failed else "all passed", began)
    return 1 if failed else 0


def read_arguments() -> tuple[list[str], list[str]]:
    """The sections to run, and what follows ``--``, which goes to pytest."""
    words = sys.argv[1:]
    cut = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(prog=".ci/run", description=__doc__)
    parser.add_argument("section", nargs="*", help="as --list names them; all, if none is given")
    parser.add_argument("--list", action="store_true", help="name the sections, and run none")
    given = parser.parse_args(words[:cut])
    if given.list:
        print(*(f"{name:20}{what}".rstrip() for name, what in SECTIONS.items()), sep="\n")
        sys.exit()
    for name in given.section:
        if name not in SECTIONS:
            parser.error(f"there is no section {name}: see --list")
    return given.section or list(SECTIONS), words[cut + 1 :]


def _interrupt(number: int, _frame: object) -> None:
    raise Interrupted(signal.Signals(number).name)


@contextlib.contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is removed at the end."""
    work = Path(tempfile.mkdtemp(prefix="rankspawn-ci-"))
    try:
        yield work
    finally:
        # The second try is for a process that wrote a last file while the first was under way.
        shutil.rmtree(work, ignore_errors=True)
        if work.exists():
            time.sleep(2)
            shutil.rmtree(work)


def find_pythons(folder: Path) -> set[str]:
    """The versions that are here, each put into the folder as ``python3.x`` for nox to find."""
    folder.mkdir()
    found = set()
    main = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for version in PYTHONS:
        path = sys.executable if version == main else find_python(version)
        if path is None:
            print(f"!!!!! Python {version} IS NOT AVAILABLE: nothing is tested with it !!!!!")
            continue
        print(f"{version}: {path}")
        script = folder / f"python{version}"
        script.write_text(f'#!/bin/sh\nexec "{path}" "$@"\n')
        script.chmod(0o755)
        found.add(version)
    return found


def find_python(version: str) -> str | None:
    """The path of a Python that has this version and can make environments."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = map(str, pyenv.glob(f"versions/{version}.*/bin/python"))
    code = "import ensurepip, sys; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for candidate in (f"python{version}", *installed):
        with contextlib.suppress(OSError):
            # A shim on PATH may stand for a version that is not there, so it is tried.
            done = subprocess.run(
                [candidate, "-c", code], capture_output=True, text=True, check=False
            )
            told, _, path = done.stdout.strip().partition(" ")
            if told == version:
                return path
    return None


def is_possible(section: str, pythons: set[str]) -> bool:
    """Whether there is a Python for it."""
    kind, _, version = section.partition("-")
    return kind != "tests" or version in pythons


def need_program(program: str, package: str) -> None:
    """Install it if it is not there."""
    if shutil.which(program) is None:
        apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq"]
        if os.geteuid() != 0:
            apt = ["sudo", "-n", *apt]
        for words in (["update"], ["install", "-y", "--no-install-recommends", package]):
            with contextlib.suppress(OSError):
                subprocess.run([*apt, *words], check=False)
    where = shutil.which(program)
    lost = f"!!!!! {package} CANNOT BE INSTALLED: tests that need {program} are skipped !!!!!"
    print(f"{program}: {where}" if where else lost)


class Runner:
    """Runs sections, each a process group of its own that is ended with this program."""

    def __init__(self, work: Path, posargs: Sequence[str]) -> None:
        self._work = work
        self._nox = [f"{work}/nox/bin/nox", "-f", f"{work}/tree/noxfile.py"]
        self._posargs = ["--", *posargs] if posargs else []
        self._running: set[int] = set()
        self._lock = threading.Lock()
        self._stopping = False

    def run_all(self, sections: Sequence[str]) -> list[Ran]:
        """Run them in this order, three at a time; each is shown when it has ended."""
        began = time.monotonic()
        ran: list[Ran] = []
        # Threads wait for processes, so that a signal, which the main thread gets, finds it here.
        with ThreadPoolExecutor(AT_ONCE) as pool:
            pending: list[Future[Ran]] = []
            try:
                pool.submit(self._prepare).result()
                pending += [pool.submit(self._run, name, began) for name in sections]
                for future in as_completed(pending):
                    ran.append(future.result())
                    if ran[-1].code:
                        say(f"{ran[-1].name} FAILED, see the end", began)
                    else:
                        show(ran[-1])
            except BaseException:
                for future in pending:
                    future.cancel()
                self._stop()
                raise
        return sorted(ran, key=lambda each: sections.index(each.name))

    def _prepare(self) -> None:
        """Copy the tree as a clone would have it, and install nox."""
        left_out = (".git", ".venv*", ".nox", "__pycache__", ".*_cache", "*.egg-info", ".coverage*")
        ignored = shutil.ignore_patterns(*left_out, "dist", "build", "log")
        shutil.copytree(ROOT, self._work / "tree", ignore=ignored)
        (self._work / "tmp").mkdir()
        folder, known = self._work / "nox", self._work / "sessions.json"
        for command, output in (
            ([sys.executable, "-m", "venv", str(folder)], None),
            ([f"{folder}/bin/pip", "install", "-q", "nox>=2024.4.15"], None),
            ([*self._nox, "--list", "--json"], known),
        ):
            if self._call(command, self._work / "tmp", output)[0]:
                raise SystemExit(f"failed: {shlex.join(command)}")
        named = {session["session"] for session in json.loads(known.read_text())}
        if named != set(SECTIONS):
            raise SystemExit(f"not both in noxfile.py and sections.py: {named ^ set(SECTIONS)}")

    def _run(self, name: str, began: float) -> Ran:
        folder = self._work / name
        (folder / "tmp").mkdir(parents=True)
        output = self._work / f"{name}.txt"
        say(f"{name} begins", began)
        started = time.monotonic()
        command = [*self._nox, "--envdir", str(folder / "envs"), "-s", name, *self._posargs]
        code, cpu_seconds = self._call(command, folder / "tmp", output)
        seconds = time.monotonic() - started
        shutil.rmtree(folder, ignore_errors=True)  # a framework takes gigabytes
        return Ran(name, code, seconds, cpu_seconds, output)

    def _call(
        self, command: Sequence[str], temporary: Path, output: Path | None
    ) -> tuple[int, float]:
        """The exit code of a command, and the CPU time of all processes that it waited for."""
        # What is set for Python here, such as PYTHONUNBUFFERED, is not so everywhere.
        kept = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        environ = kept | {
            "PATH": f"{self._work}/bin:{kept['PATH']}",
            "TMPDIR": str(temporary),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        }
        with contextlib.ExitStack() as stack:
            file = None if output is None else stack.enter_context(open(output, "wb"))
            with self._lock:
                if self._stopping:
                    raise Interrupted
                process = subprocess.Popen(
                    command,
                    env=environ,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file and subprocess.STDOUT,
                    start_new_session=True,
                )
                self._running.add(process.pid)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        with self._lock:
            self._running.discard(process.pid)
        return process.returncode, usage.ru_utime + usage.ru_stime

    def _stop(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        with self._lock:
            self._stopping = True
        for number in (signal.SIGTERM, signal.SIGKILL):
            with self._lock:
                for pid in self._running:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(pid, number)
            deadline = time.monotonic() + GRACE
            while self._running and time.monotonic() < deadline:
                time.sleep(0.1)


def say(what: str, began: float) -> None:
    """Print a line with the time since then."""
    seconds = int(time.monotonic() - began)
    print(f"\n===== {what}  [{seconds // 60} min {seconds % 60:02d} s]", flush=True)


def show(ran: Ran) -> None:
    """Print all that a section said."""
    print(f"\n===== {ran.name}: {'FAILED' if ran.code else 'passed'} in {ran.seconds:.0f} s")
    sys.stdout.flush()
    with open(ran.output, "rb") as file:
        shutil.copyfileobj(file, sys.stdout.buffer)
    sys.stdout.flush()


def show_failed_once(ran: Ran) -> None:
    """Print which of its tests failed at first."""
    for line in ran.output.read_text(errors="replace").splitlines():
        if line.startswith(FAILED_ONCE):
            print(f"{line} ({ran.name})")


def table(ran: Sequence[Ran]) -> None:
    """Print what each section took."""
    print("\n| section | seconds | seconds of CPU | |\n|---|---:|---:|---|")
    for each in ran:
        verdict = "FAILED" if each.code else "passed"
        print(f"| {each.name} | {each.seconds:.0f} | {each.cpu_seconds:.0f} | {verdict} |")


if __name__ == "__main__":
    try:
        sys.exit(main())
    except Interrupted as error:
        sys.exit(f"interrupted by {error}; nothing is left")
