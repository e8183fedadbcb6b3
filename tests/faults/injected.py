"""Faults, and the places where they are injected: all of it runs in workers.

Top-level and light, so that it goes by reference and a worker need not import pytest.
"""

from __future__ import annotations

import atexit
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any, NoReturn

from tests import jobs
from tests.jobs import DEADLOCK

# The rank that the fault hits; the other one waits to be stopped.
FAULTY = 1

Fault = Callable[[], object]


def raise_value_error() -> NoReturn:
    raise ValueError("on purpose")


def raise_keyboard_interrupt() -> NoReturn:
    raise KeyboardInterrupt


def exit_0() -> NoReturn:
    sys.exit(0)


def exit_5() -> NoReturn:
    sys.exit(5)


def vanish_0() -> NoReturn:
    os._exit(0)


def vanish_5() -> NoReturn:
    os._exit(5)


def get_killed() -> NoReturn:
    jobs.fail("SIGKILL")


def crash() -> NoReturn:
    jobs.fail("SIGSEGV")


def ask_for_too_much_memory() -> object:
    _limit_memory()
    return bytearray(1 << 40)


def use_up_all_memory() -> object:
    """What was allocated stays reachable through the traceback: there is none to report with."""
    _limit_memory()
    chunks, size = [], 1 << 24
    while True:
        try:
            while True:
                chunks.append(bytearray(size))
        except MemoryError:
            if size < 4096:
                raise
            size //= 2


def _limit_memory() -> None:
    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    most = used + (64 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class FaultyWhenRead:
    """Pickles well; in the faulty rank, unpickling it is the fault."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __reduce__(self) -> Any:
        return _strike_if_faulty, (self._fault,)


def _strike_if_faulty(fault: Fault) -> str:
    if jobs.rank() == FAULTY:
        fault()
    return "read"


class FaultyWhenWritten:
    """Pickling it is the fault."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault

    def __reduce__(self) -> Any:
        self._fault()
        return str, ("written",)


def take_argument(argument: object, others_return: bool) -> str:
    """For faults that come before the function is called."""
    del argument
    return _end_well(others_return)


def strike_in_function(fault: Fault, others_return: bool) -> str:
    if jobs.rank() == FAULTY:
        fault()
    return _end_well(others_return)


def strike_while_pickling(fault: Fault, others_return: bool) -> object:
    return FaultyWhenWritten(fault) if jobs.rank() == FAULTY else _end_well(others_return)


def strike_in_atexit(fault: Fault, others_return: bool) -> str:
    if jobs.rank() == FAULTY:
        atexit.register(fault)
    return _end_well(others_return)


def strike_in_thread(fault: Fault, others_return: bool) -> str:
    """A non-daemon thread, which Python waits for once the report is written."""
    if jobs.rank() == FAULTY:
        main = threading.main_thread()
        threading.Thread(target=_strike_after, args=(main, fault)).start()
    return _end_well(others_return)


def strike_in_daemon_thread(fault: Fault, others_return: bool) -> str:
    """A daemon thread that acts when the exit handlers run, which wait for it."""
    if jobs.rank() == FAULTY:
        begin = threading.Event()
        thread = threading.Thread(target=lambda: begin.wait() and fault(), daemon=True)
        thread.start()
        atexit.register(thread.join, DEADLOCK)
        atexit.register(begin.set)  # the last one registered is the first one called
    return _end_well(others_return)


def _strike_after(main: threading.Thread, fault: Fault) -> None:
    # The report is written by the time that Python shuts threading down, which marks the main
    # thread as ended; a forked worker's main thread, too.
    main.join()
    fault()


def _end_well(others_return: bool) -> str:
    if jobs.rank() != FAULTY and not others_return:
        jobs.sleep_for_ever()
    return "returned"


def stop_and_fail(ours: Connection, theirs: Connection) -> None:
    """The faulty rank stops itself; the other one fails once it stands still."""
    if jobs.rank() == FAULTY:
        theirs.send(os.getpid())
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
    assert ours.poll(DEADLOCK)
    _wait_until_stopped(ours.recv())
    raise ValueError("on purpose")


def _wait_until_stopped(pid: int) -> None:
    """Only its parent could wait for that without looking."""
    deadline = time.monotonic() + DEADLOCK
    while time.monotonic() < deadline:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            if file.read().rpartition(")")[2].split()[0] == "T":
                return
        os.sched_yield()
    raise AssertionError("it never stopped")
