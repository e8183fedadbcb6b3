"""Workers that wait for each other, whoever started them.

Files in a folder do it, because no two contenders pass the same things to their workers. The
ones who wait look every few milliseconds; nothing is timed before they have met.

Runs in the worker, and in the program that watches. Imports what every interpreter has loaded, and
nothing else: workers that are held against bare interpreters shall not be larger than they must.
"""

from __future__ import annotations

import os
import time

_LOOK_SECONDS = 0.005
# Everybody has met and is asleep again before the moment that is timed.
_SETTLE_SECONDS = 0.3
_READY = "ready-"
_FIRST = "first"
_MOMENT = "moment"
_GATE = "gate"


def arrive(folder: str) -> bool:
    """Leave this process's id; True for the one who was the first."""
    # Not the next free number: thousands would look for theirs for seconds.
    open(f"{folder}/{_READY}{os.getpid()}", "x").close()
    try:
        open(f"{folder}/{_FIRST}", "x").close()
    except FileExistsError:
        return False
    return True


def arrived(folder: str) -> list[int]:
    """The process ids of those who have arrived."""
    names = os.listdir(folder)
    return [int(name.removeprefix(_READY)) for name in names if name.startswith(_READY)]


def wait_for_all(folder: str, nprocs: int, alive: object = None) -> list[int]:
    """Wait until ``nprocs`` have arrived; ``alive`` is a Popen that must not end before."""
    while len(pids := arrived(folder)) < nprocs:
        poll = getattr(alive, "poll", None)
        if poll is not None and poll() is not None:
            raise RuntimeError("the program ended before its workers were ready")
        time.sleep(_LOOK_SECONDS)
    return pids


def meet(folder: str, nprocs: int) -> float:
    """Return in all workers at the same moment, and that moment (monotonic seconds)."""
    moment = f"{folder}/{_MOMENT}"
    if arrive(folder):
        wait_for_all(folder, nprocs)
        # Written under another name first: the others must not read half of it.
        with open(f"{moment}.draft", "x") as file:
            file.write(repr(time.monotonic() + _SETTLE_SECONDS))
        os.rename(f"{moment}.draft", moment)
    while not os.path.exists(moment):
        time.sleep(_LOOK_SECONDS)
    when = float(_read(moment))
    time.sleep(max(0.0, when - time.monotonic()))
    return when


def make_gate(folder: str) -> int:
    """Make what :func:`arrive_and_wait` waits at; whoever closes the descriptor opens it."""
    name_gate(folder)
    return open_gate(folder)


def name_gate(folder: str) -> None:
    """Make the gate alone: whoever arrives waits until it is opened and closed."""
    os.mkfifo(f"{folder}/{_GATE}")


def open_gate(folder: str) -> int:
    """What keeps it shut; only after all forks, or each copy of this process keeps it shut, too."""
    # For both directions, because a writer alone would have to wait for the first reader.
    return os.open(f"{folder}/{_GATE}", os.O_RDWR)


def arrive_and_wait(folder: str) -> None:
    """Block, without ever waking up, until the gate is opened."""
    with open(f"{folder}/{_GATE}", "rb") as gate:
        arrive(folder)
        gate.read()


def _read(path: str) -> str:
    with open(path) as file:
        return file.read()
