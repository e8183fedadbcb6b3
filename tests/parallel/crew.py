"""Ranks without a supervisor, which would stop the others as soon as one dies.

Forks of the test, as ``spawn`` would have started them: with a place to meet, and its variables.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rankspawn.parallel import environment
from rankspawn.workers.meeting import MEETING_VARIABLE, MeetingPlace, write_entries
from tests.jobs import DEADLOCK


@dataclass
class End:
    """How a rank ended."""

    value: Any = None
    error: BaseException | None = None
    signal: int = 0


def run_crew(
    size: int, function: Callable[..., Any], *args: Any, bound: float = DEADLOCK
) -> list[End]:
    """Run the function in so many ranks, and say how each ended; the bound is for all of it."""
    place = MeetingPlace()
    pipes, pids = [], []
    try:
        for rank in range(size):
            reader, writer = os.pipe()
            pids.append(_fork())
            if not pids[-1]:
                _be_a_rank(rank, size, place.address, writer, function, args)
            os.close(writer)
            pipes.append(reader)
        write_entries(place.fileno(), pids)
        deadline = time.monotonic() + bound
        return [_read_end(pid, pipe, deadline) for pid, pipe in zip(pids, pipes, strict=True)]
    finally:
        for pid in pids:
            _end(pid)
        for pipe in pipes:
            os.close(pipe)
        place.close()


def values(ends: list[End]) -> list[Any]:
    """What the ranks returned; none may have failed."""
    for end in ends:
        if end.error is not None:
            raise end.error
        assert end.signal == 0
    return [end.value for end in ends]


def _fork() -> int:
    with warnings.catch_warnings():
        # pytest's watchdog is a thread; it does nothing in a fork.
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _be_a_rank(
    rank: int,
    size: int,
    address: str,
    writer: int,
    function: Callable[..., Any],
    args: tuple[Any, ...],
) -> None:
    # A fork of the test must not go on as the test, whatever happens.
    code = 1
    try:
        told = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
        os.environ.update({name: str(value) for name, value in told.items()})
        os.environ[MEETING_VARIABLE] = address
        end = End()
        try:
            end.value = function(*args)
        except BaseException as error:
            error.add_note(traceback.format_exc())
            end.error = error
        if environment._current is not None:
            environment._current[1].close()  # as at exit
        with os.fdopen(writer, "wb") as file:
            file.write(pickle.dumps(end))
        code = 0
    finally:
        os._exit(code)


def _read_end(pid: int, pipe: int, deadline: float) -> End:
    data = b""
    while True:
        left = deadline - time.monotonic()
        ready, _, _ = select.select([pipe], [], [], max(0.0, left))
        assert ready, f"the rank of process {pid} never ended"
        piece = os.read(pipe, 1 << 16)
        if not piece:
            break
        data += piece
    if data:
        end: End = pickle.loads(data)
        return end
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    return End(signal=ended.si_status if ended.si_code != os.CLD_EXITED else 0)


def _end(pid: int) -> None:
    """Reap it, by force if need be; nobody else does, so the id is still its own."""
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
