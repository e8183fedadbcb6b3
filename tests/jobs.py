"""What the workers of the tests run: all at the top level, so that it goes by reference."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from typing import Any, NoReturn

import rankspawn
from rankspawn.option_types import StartMethod

# Far above what any passing test needs; reaching it means a deadlock.
DEADLOCK = 60.0


class Point:
    """A class that both sides can import."""

    def __init__(self, x: int, y: int) -> None:
        self.x, self.y = x, y

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Point) and (self.x, self.y) == (other.x, other.y)

    def __hash__(self) -> int:
        return hash((self.x, self.y))

    def norm(self) -> int:
        return self.x * self.x + self.y * self.y


class TwoArguments(Exception):
    """An exception that pickle alone cannot bring back."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{reason} ({code})")
        self.code, self.reason = code, reason


class HoldsLock(Exception):
    """An exception with something that cannot be pickled at all."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.lock = threading.Lock()
        self.text = text


def rank() -> int:
    return int(os.environ["RANK"])


def return_rank() -> int:
    return rankspawn.get_rank()


def echo(*args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return args, kwargs


PLACE = "the module"


def place() -> str:
    return PLACE


def variable(name: str) -> str | None:
    return os.environ.get(name)


def environment() -> dict[str, str]:
    return dict(os.environ)


def make_bytes(size: int) -> bytes:
    return b"x" * size


def loaded_modules() -> list[str]:
    return sorted(sys.modules)


def do_nothing(*_: object) -> None:
    pass


def open_files() -> list[str]:
    names = []
    for fd in os.listdir("/proc/self/fd"):
        try:
            names.append(f"{fd} {os.readlink(f'/proc/self/fd/{fd}')}")
        except FileNotFoundError:  # the one that listed them
            continue
    return names


def sleep_for_ever() -> None:
    while True:
        # Not pause(): Python hears of a signal that comes just before it only after it.
        time.sleep(0.2)


def report_and_wait() -> None:
    """Say something in every way, and wait to be stopped."""
    print("here is", rank(), flush=True)
    rankspawn.report(rank(), 10, loss=0.5)
    sleep_for_ever()


def never_wake_up() -> None:
    """For those who count wake-ups; only the default action of a signal ends it for sure."""
    while True:
        signal.pause()


def rank_fails(which: int, how: str) -> int:
    """One rank fails in the given way; the others wait to be stopped."""
    if rank() == which:
        fail(how)
    sleep_for_ever()
    return rank()


def rank_crashes(which: int, name: str) -> int:
    """As C code does: with whatever handles the signal by then."""
    if rank() == which:
        os.kill(os.getpid(), signal.Signals[name])
    sleep_for_ever()
    return rank()


def fail(how: str) -> NoReturn:
    if how == "raise":
        raise ValueError("on purpose")
    if how == "two arguments":
        raise TwoArguments(7, "bad luck")
    if how == "lock":
        raise HoldsLock("cannot travel")
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "exit 7":
        sys.exit(7)
    if how == "exit text":
        sys.exit("no data")
    if how == "os._exit 7":
        os._exit(7)
    if how == "os._exit 0":
        os._exit(0)
    number = signal.Signals[how]
    signal.signal(number, signal.SIG_DFL) if number is not signal.SIGKILL else None
    os.kill(os.getpid(), number)
    raise AssertionError("still alive")


def all_fail() -> NoReturn:
    raise ValueError(f"rank {rank()}")


def fail_in_order(first: Connection, second: Connection) -> None:
    """Rank 1 raises and stays alive for a while; rank 0 dies after it, but ends first."""
    if rank() == 1:
        threading.Thread(target=time.sleep, args=(DEADLOCK,), daemon=False).start()
        first.send("failing")
        raise ValueError("the cause")
    assert second.poll(DEADLOCK)
    second.recv()
    sleep_for_ever()


def first_succeeds_then_fail(done: Connection) -> str:
    if rank() == 0:
        return "done"
    assert done.poll(DEADLOCK)
    raise ValueError("later")


def put_rank(queue: Any) -> None:
    queue.put(rank())


def send_rank(end: Connection) -> None:
    end.send(rank())
    end.close()


def meet(barrier: Any, event: Any, lock: Any) -> bool:
    with lock:
        pass
    barrier.wait(DEADLOCK)
    if rank() == 0:
        event.set()
    return bool(event.wait(DEADLOCK))


def write_shared(shared: SharedMemory) -> None:
    assert shared.buf is not None
    shared.buf[rank()] = rank() + 1
    shared.close()


def nested(start_method: StartMethod) -> list[int]:
    context = rankspawn.spawn(return_rank, nprocs=2, backend="gloo", start_method=start_method)
    return [value + 10 * rank() for value in context.results()]


def unpicklable_result() -> dict[str, Any]:
    holder = Point(1, 2)
    holder.lock = threading.Lock()  # type: ignore[attr-defined]
    return {"fine": 1, "model": holder}


class BreaksWhenRead:
    """Pickles well; unpickling fails."""

    def __reduce__(self) -> Any:
        return _explode, ()


def _explode() -> NoReturn:
    raise ZeroDivisionError("while unpickling")


def breaks_on_rank_1() -> Any:
    return BreaksWhenRead() if rank() == 1 else rank()


def ready_then_wait(ready: Connection) -> None:
    ready.send(rank())
    sleep_for_ever()


def fork_one_that(how: str, gate: Connection) -> str:
    """Its own child ends like this; the rank itself waits for the gate."""
    pid = os.fork()
    if pid == 0:
        if how == "return":
            return "of the child"
        fail(how)
    _, status = os.waitpid(pid, 0)
    gate.send(os.waitstatus_to_exitcode(status))
    assert gate.poll(DEADLOCK)
    gate.recv()
    return "of the rank"


def fork_one_that_returns_and_vanish() -> str:
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        os._exit(0)
    return "of the child"
