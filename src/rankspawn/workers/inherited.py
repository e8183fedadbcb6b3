"""What a worker gets from its parent beside the payload. Runs in the worker.

An executed worker has its environment, streams and mark from the system. One that was forked
makes them its own here.
"""

from __future__ import annotations

import io
import os
import sys

from rankspawn.cpython import raw_signal

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any, TextIO

    # Variables as the system has them; None removes one.
    EncodedChanges = Sequence[tuple[bytes, bytes | None]]

# Descriptors that came with it from the parent, in the order of the payload's places.
received: list[int] = []
MARK_SIZE = 4096
_carried: list[object] = []
_SIGNALS = raw_signal.valid_signals()


class signals_blocked:
    """A block around forks: the workers begin with all signals blocked.

    ``child.work`` lets ``signals`` in. Before it, Python drops what a handler raises in the hooks
    of a fork, so that a SIGTERM would be lost; and after these it would be raised in the code that
    the worker is a copy of, which ends the other workers. It has one thread, so blocking is enough.
    """

    __slots__ = ("_before", "signals")

    def __enter__(self) -> signals_blocked:
        self._before = raw_signal.pthread_sigmask(raw_signal.SIG_BLOCK, _SIGNALS)
        self.signals: set[int] = {*(_SIGNALS - self._before), raw_signal.SIGINT}
        return self

    def __exit__(self, *_: object) -> None:
        raw_signal.pthread_sigmask(raw_signal.SIG_SETMASK, self._before)


def carry_mark(fd: int) -> None:
    """For a forked worker: map the file of that name for as long as it lives; see ``marker``."""
    import mmap

    _carried.append(mmap.mmap(fd, MARK_SIZE, prot=mmap.PROT_READ))
    os.close(fd)  # the mapping keeps a copy


def encode_changes(
    changes: Mapping[str, str | None], encode: Callable[[str], bytes] = os.fsencode
) -> EncodedChanges:
    """The changes as a forked worker makes them.

    Args:
        changes: None removes a variable.
        encode: For many workers one that remembers: most of their variables are the same.
    """
    return [
        (encode(name), None if value is None else encode(value)) for name, value in changes.items()
    ]


def change_environment(changes: EncodedChanges) -> None:
    """For a forked worker: set these variables; None removes one."""
    variables: Any = os.environb
    if type(os.environ) is not type(variables):  # the program put something else there
        variables, changes = os.environ, _decode(changes)
    for name, value in changes:
        if value is None:
            variables.pop(name, None)
        else:
            variables[name] = value


def _decode(changes: EncodedChanges) -> Any:
    return [(os.fsdecode(name), value and os.fsdecode(value)) for name, value in changes]


def redirect_output(log: int | None = None) -> None:
    """For a forked worker: send what it prints to its log, whoever prints it."""
    if log is not None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Whatever stood here wrote elsewhere, or holds text that the parent will print.
        sys.stdout = _open_stream(1, sys.__stdout__, "strict")
        sys.stderr = _open_stream(2, sys.__stderr__, "backslashreplace")


def _open_stream(number: int, first: TextIO | None, errors: str) -> TextIO:
    """What writes to a standard stream as the interpreter's own did.

    Args:
        number: The descriptor.
        first: What the interpreter opened at its start: what it made of ``PYTHONIOENCODING``,
            ``-X utf8`` and the locale is not to be had otherwise.
        errors: How to encode what cannot be, if there was no such stream.
    """
    encoding, unbuffered = None, False
    try:
        if isinstance(first, io.TextIOWrapper):
            encoding, errors = first.encoding, first.errors or errors
            unbuffered = first.write_through  # PYTHONUNBUFFERED, python -u
    except ValueError:  # it was detached
        pass
    if unbuffered:
        raw = open(number, "wb", buffering=0, closefd=False)  # noqa: SIM115 - until the exit
        return io.TextIOWrapper(raw, encoding, errors, write_through=True)
    return open(number, "w", buffering=1, encoding=encoding, errors=errors, closefd=False)


def take_terminal(*streams: int) -> None:
    """For a forked worker that is debugged: read from and write to the parent's terminal.

    Args:
        streams: Its input, output and errors, if they have other numbers here.
    """
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    # multiprocessing has put the null device here; and output may go through other objects.
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - until the exit
    sys.stdout = _open_stream(1, sys.__stdout__, "strict")
    sys.stderr = _open_stream(2, sys.__stderr__, "backslashreplace")


class SameFd:
    """A descriptor that has the same number in the worker (start method spawn).

    ``detach()`` is what multiprocessing calls to take one over.
    """

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def detach(self) -> int:
        """The number; whoever asks owns it from now on."""
        return self.fd


class ReceivedFd:
    """A descriptor that was sent, and got another number on the way (forkserver)."""

    def __init__(self, place: int) -> None:
        self.place = place

    def detach(self) -> int:
        """The number; whoever asks owns it from now on."""
        return received[self.place]


def take_cpus() -> None:
    """Run on the CPUs that the plan has for this rank, if any; threads come later, and inherit."""
    if cpus := os.environ.get("RANKSPAWN_CPUS"):  # plan.numa, which a worker does not load
        os.sched_setaffinity(0, map(int, cpus.split(",")))
