"""Waiting until a word in shared memory changes, without a lock that a dead process could hold.

A futex: the waiter sleeps in the kernel as long as the word is what it was, and whoever changes it
wakes all sleepers. It never sleeps longer than a moment, after which the caller looks whether the
one it waits for still lives. Handlers of signals run in between.

Where there is no futex, or no way to order what two processors see, see ``sleeps`` and ``fence``.
"""

from __future__ import annotations

import ctypes
import errno
import os
import time
from collections.abc import Callable

# Machine: the numbers of the calls futex and membarrier, and whether stores become visible in their
# order without further ado. Tested on x86_64 only.
_MACHINES = {
    "x86_64": (202, 324, True),
    "aarch64": (98, 283, False),
    "riscv64": (98, 283, False),
    "ppc64le": (221, 365, False),
    "s390x": (238, 356, True),
}
_FUTEX_WAIT, _FUTEX_WAKE = 0, 1
_ALL = 0x7FFFFFFF
# The one command whose caller is ordered itself, whatever other processes have registered.
_GLOBAL_EXPEDITED = 2
# Longest sleep of the fallback; a futex would have been woken.
_NAP = 0.0005

# How often to look before others may run, with a CPU for each rank and without: a look takes some
# 0.03 µs, a turn of others 0.5 µs and more.
_LOOKS_ALONE, _LOOKS_AMONG_OTHERS = 20, 1
# Turns; together they take about as long as a sleep. The least is more than a rank needs from one
# meeting to the next: with less, ranks that once fell asleep would never again be found awake.
_MOST_TURNS, _LEAST_TURNS = 24, 6
# Staying awake took longer than a sleep would have: not again for so many waits, and for twice as
# many each time that it is no better then.
_TOO_LONG, _REST, _LONGEST_REST = 0.0004, 50, 800


class Patience:
    """How long to stay awake before sleeping: as long as that was rewarded lately.

    With a CPU for each rank a look again and again takes less than a sleep. But the system may have
    two ranks on one CPU, above all if they sleep often, and with fewer CPUs it has to: then letting
    others run takes less, if those are the ranks. Beside foreign work each such turn may take
    milliseconds, and then it is not tried for a while.
    """

    def __init__(self, size: int) -> None:
        has_own_cpu = size <= len(os.sched_getaffinity(0))
        self._looks = _LOOKS_ALONE if has_own_cpu else _LOOKS_AMONG_OTHERS
        self._turns = _MOST_TURNS
        self._rests = 0
        self._rest = _REST

    def is_rewarded(self, words: memoryview, index: int, value: int) -> bool:
        """Stay awake for a while; True if the word got the value that is waited for."""
        if self._rests:
            self._rests -= 1
            return False
        now = time.perf_counter
        until = now() + _TOO_LONG
        came = _look(words, index, value, self._looks)
        for _ in range(self._turns):
            if came or now() > until:
                break
            os.sched_yield()
            came = _look(words, index, value, self._looks)
        if now() > until:
            self._rests, self._rest = self._rest, min(_LONGEST_REST, 2 * self._rest)
        elif came:
            self._turns, self._rest = _MOST_TURNS, _REST
        else:
            self._turns = max(_LEAST_TURNS, self._turns // 2)
        return came


def _look(words: memoryview, index: int, value: int, times: int) -> bool:
    for _ in range(times):  # noqa: SIM110 - `any` of a generator takes twice as long
        if words[index] == value:
            return True
    return False


_Syscall = Callable[..., int]


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class Sleeper:
    """How this machine waits.

    Attributes:
        wait: Sleep while the word at an address has a value, at most so many seconds; it may
            also return for no reason.
        wake: Wake all who sleep at an address.
        fence: Order what was written before against what is written after; None where stores
            are ordered anyway.
    """

    def __init__(self, machine: str | None = None, *, sleeps: bool = False) -> None:
        known = _MACHINES.get(machine or os.uname().machine)
        if known is None:
            raise RuntimeError(
                f"shared memory between ranks has no known order on {os.uname().machine}: "
                "use the collectives of a framework here"
            )
        futex, membarrier, is_ordered = known
        self.wait: Callable[[int, int, float], None] = _nap
        self.wake: Callable[[int], None] = _wake_nobody
        self.fence: Callable[[], None] | None = None
        if not sleeps and _has_futex(futex):
            self.wait, self.wake = _futex_wait(futex), _futex_wake(futex)
        if not is_ordered:
            self.fence = _membarrier(membarrier)


def _syscall(library: ctypes.CDLL) -> _Syscall:
    """The call for a futex: number, address, what, value, at most how long."""
    call = library.syscall
    call.restype = ctypes.c_long
    # Told once: making such objects in each call takes longer than the call.
    long, pointer = ctypes.c_long, ctypes.c_void_p
    call.argtypes = (long, pointer, long, ctypes.c_ulong, pointer)
    return call


def _has_futex(number: int) -> bool:
    """A sandbox may refuse it."""
    word = ctypes.c_uint32()
    done = _syscall(ctypes.CDLL(None))(number, ctypes.addressof(word), _FUTEX_WAKE, 1, None)
    return bool(done == 0)


def _futex_wait(number: int) -> Callable[[int, int, float], None]:
    call = _syscall(ctypes.CDLL(None))  # lets other threads run meanwhile

    def wait(address: int, value: int, seconds: float) -> None:
        whole = int(seconds)
        limit = _Timespec(whole, int((seconds - whole) * 1e9))
        call(number, address, _FUTEX_WAIT, value, ctypes.addressof(limit))

    return wait


def _futex_wake(number: int) -> Callable[[int], None]:
    call = _syscall(ctypes.PyDLL(None))  # is over before another thread could have run

    def wake(address: int) -> None:
        call(number, address, _FUTEX_WAKE, _ALL, None)

    return wake


def _membarrier(number: int) -> Callable[[], None]:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    first, command, nothing = (ctypes.c_long(each) for each in (number, _GLOBAL_EXPEDITED, 0))
    if call(first, command, nothing, nothing) < 0:
        code = ctypes.get_errno()
        raise RuntimeError(
            f"this kernel does not order what two processors see ({errno.errorcode.get(code)}): "
            "use the collectives of a framework here"
        )

    def fence() -> None:
        call(first, command, nothing, nothing)

    return fence


def _nap(_address: int, _value: int, seconds: float) -> None:
    time.sleep(min(seconds, _NAP))


def _wake_nobody(_address: int) -> None:
    pass
