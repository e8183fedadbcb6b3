"""Where the ranks of a job are: asked as their parent asks, or by py-spy.

A rank of ``spawn`` answers a signal by writing to the file in which it reports, which this user can
open at its parent. A program that ``rankrun`` started has such a file of its own if it has imported
this package; it need not, and need not be Python's.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, suppress

from rankspawn.workers.marker import open_process, send, wait_for_ends
from rankspawn.workers.program_stacks import find_stacks
from rankspawn.workers.stacks import ask, say_who_waits

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankspawn.inspect.finding import RankSeen, RunningJob

_NO_PY_SPY = (
    "(not known: a program of rankrun that has not imported rankspawn is looked into by py-spy, "
    "which is not installed here: pip install py-spy)\n"
)
_ENDED = "(it has ended)\n"
_PY_SPY_SECONDS = 30.0
_LOOK_SECONDS = 0.1
_FRAME = re.compile(r"^\s+(.+?) \((.+):(\d+)\)$")


class Stranger:
    """A process of this user, whoever has started it, held so that it stays the same."""

    def __init__(self, pid: int) -> None:
        self.pid: int = pid
        self._handle = open_process(pid)

    def poll(self) -> int | None:
        """None while it runs."""
        return 0 if wait_for_ends([self._handle], 0.0) else None

    def wait(self, deadline: float) -> bool:
        """Wait for its end; False if it runs when the (monotonic) time has come."""
        return wait_for_ends([self._handle], deadline)

    def send_signal(self, number: int) -> None:
        """Send a signal; nothing happens if it ended."""
        send(self._handle, number)

    def close(self) -> None:
        """Let go of it."""
        os.close(self._handle)


def stacks_of(job: RunningJob, ranks: Sequence[RankSeen]) -> dict[int, str]:
    """Rank to where it is: the Python stacks of all its threads, or why they are not known."""
    stacks = {rank.rank: _ENDED for rank in ranks if not rank.is_alive}
    running = [rank for rank in ranks if rank.is_alive]
    stacks |= _ask({rank.rank: (rank.pid, rank.file) for rank in running if rank.file})
    stacks |= ask_programs({rank.rank: rank.pid for rank in running if rank.file is None})
    pids = {rank.rank: rank.pid for rank in job.ranks}
    said = say_who_waits(pids, [rank.rank for rank in running], job.parent)
    return {rank: said.get(rank, "") + stacks[rank] for rank in sorted(stacks)}


def stacks_of_programs(
    pids: Mapping[int, int], *, seconds: float, is_called_off: Callable[[], bool]
) -> dict[int, str]:
    """The same of programs that this process has started; see :func:`ask_programs`."""
    said = say_who_waits(pids, pids)
    stacks = ask_programs(pids, seconds=seconds, is_called_off=is_called_off)
    return {rank: said.get(rank, "") + stacks[rank] for rank in sorted(stacks)}


def answers_of(pids: Mapping[int, int], *, seconds: float) -> dict[int, str]:
    """Rank to its stacks, for the programs that answer by themselves, and within this time."""
    answering = {rank: (pid, path) for rank, pid in pids.items() if (path := find_stacks(pid))}
    stacks = _ask(answering, seconds)
    return {rank: text for rank, text in stacks.items() if "  File " in text}


def _ask(ranks: Mapping[int, tuple[int, str]], seconds: float | None = None) -> dict[int, str]:
    """Those that answer; rank to process, and the path at which its file can be opened."""
    asked: dict[int, tuple[Stranger, int]] = {}
    held: list[Stranger] = []
    files: list[int] = []
    try:
        for rank, (pid, path) in ranks.items():
            with suppress(OSError):  # it has ended
                held.append(Stranger(pid))
                files.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
                asked[rank] = (held[-1], files[-1])
        return dict.fromkeys(ranks, _ENDED) | ask(asked, seconds=seconds)
    finally:
        for stranger in held:
            stranger.close()
        for fd in files:
            os.close(fd)


def ask_programs(
    pids: Mapping[int, int],
    *,
    seconds: float = _PY_SPY_SECONDS,
    is_called_off: Callable[[], bool] = lambda: False,
) -> dict[int, str]:
    """Rank to where that program is, as it or py-spy has it, or why it is not known.

    Args:
        pids: Rank to its process, which nobody reaps meanwhile.
        seconds: How long all of it may take.
        is_called_off: Whether nobody wants to wait for it any more.
    """
    deadline = time.monotonic() + seconds
    answering = {rank: (pid, path) for rank, pid in pids.items() if (path := find_stacks(pid))}
    others = {rank: pid for rank, pid in pids.items() if rank not in answering}
    return _ask(answering) | _look_into(others, deadline, is_called_off)


def _look_into(
    pids: Mapping[int, int], deadline: float, is_called_off: Callable[[], bool]
) -> dict[int, str]:
    """Those that do not answer, as py-spy has them."""
    program = _find_py_spy()
    if program is None:
        return dict.fromkeys(pids, _NO_PY_SPY)
    stacks: dict[int, str] = {}
    asked: dict[int, subprocess.Popen[str]] = {}
    with ExitStack() as held:
        for rank, pid in pids.items():
            try:
                process = subprocess.Popen(
                    [program, "dump", "--pid", str(pid)],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                    errors="replace",
                )
            except OSError as error:
                stacks[rank] = f"(not known: py-spy: {error})\n"
                continue
            held.enter_context(process)
            held.callback(process.kill)
            asked[rank] = process
        for rank, process in asked.items():
            stacks[rank] = _answer_of(process, deadline, is_called_off)
    return stacks


def _find_py_spy() -> str | None:
    """Its path: as a shell finds it, or beside this Python, whose environment may not be active."""
    beside = os.path.dirname(sys.executable)
    return shutil.which("py-spy") or shutil.which("py-spy", path=beside)


def _answer_of(
    process: subprocess.Popen[str], deadline: float, is_called_off: Callable[[], bool]
) -> str:
    while True:
        try:
            text, errors = process.communicate(timeout=_LOOK_SECONDS)
            break
        except subprocess.TimeoutExpired:
            if is_called_off() or time.monotonic() >= deadline:
                return "(not known: py-spy did not answer in time)\n"
    if process.returncode:
        return f"(not known: py-spy says: {' '.join(errors.split())})\n"
    return as_faulthandler(text)


def as_faulthandler(text: str) -> str:
    """py-spy's dump in the form that stacks have here: main thread last, an empty line between."""
    threads: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith("Thread "):
            threads.append([line + " (most recent call first):"])
        elif threads and (frame := _FRAME.match(line)):
            function, file, number = frame.groups()
            threads[-1].append(f'  File "{file}", line {number} in {function}')
    if not threads:
        return text
    return "\n\n".join("\n".join(thread) for thread in reversed(threads)) + "\n"
