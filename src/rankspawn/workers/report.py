"""The worker's side of its outcome: a file that the parent made, and reads after the end.

A file has no size limit, no reader to wait for, and survives the worker's death; a pipe blocks
the worker once 64 KiB are in it. The first page is a header::

    word 0  stage: how far the worker came
    word 1  kind: how it ended; written last, so what is not whole does not count
    word 2  when that began, in nanoseconds of the system-wide monotonic clock
    word 3  exit code
    word 4  table of a parcel: the result (0: None), or what is known of the exception
    word 5  text: offset
    word 6  text: length
    word 7  1 once the report is as complete as it gets
    word 8  the worker's descriptor for stacks
    word 9  flags: what the parent wants to be different from usual
    word 10 the number of the failure event, by which the kernel tells it from others; or 0
    word 11 the descriptor of this file in the parent
    word 12 the parent

The last four are the parent's, and there before the worker. The worker knows its file by device
and inode, and makes sure of it before each write: a program may close what it did not open, as
daemons do, and get the number for a file of its own.

Runs in the worker, and is imported before anything else: nothing heavy at the top.
"""

from __future__ import annotations

import faulthandler
import os
import sys
import time

from rankspawn.cpython import raw_signal
from rankspawn.workers.parcel import PAGE, WORD, pack_words, unpack_words, write_all, write_parcel

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

# FOLLOWING: it failed because another rank is gone, which is the one to blame.
STARTED, IN_FUNCTION, FOLLOWING = 1, 2, 3
# FAILING: an exception was raised, and its traceback is not written yet.
RETURNED, RAISED, EXITED, FAILING = 1, 2, 3, 4
HEADER_WORDS = 9
PARENT_WORDS = 4
STACKS_FD_WORD = 8
# Flags of the parent: somebody reads what is said with rankspawn.report(); and Ctrl-C is meant
# for another rank, the one that is being debugged.
LOOKED_AT, DEAF_TO_INTERRUPTS = 1, 2
# What rankspawn.report() says, in the same file; see step_records.py.
STEPS_AT = 1024
# Stacks are written far behind everything else; the file is sparse, so the gap costs nothing.
STACKS_AT = 1 << 40
# Real-time signals: programs use none of these, while SIGUSR1 and 2 mean preemption to many. The
# first has the main thread write its stacks between two instructions; the second has them
# written in C at once, whatever the threads do.
STACKS_SIGNAL = getattr(raw_signal, "SIGRTMAX", 0) and raw_signal.SIGRTMAX - 2
STACKS_IN_C_SIGNAL = STACKS_SIGNAL and STACKS_SIGNAL - 1
# Around stacks that the main thread wrote. They are many small writes, between which it may have to
# wait for a CPU; and they may come late, behind those that were written in C.
STACKS_BEGIN, STACKS_END = b"\f", b"\v"
_ONE = (1).to_bytes(8, "little")
# The place for the end of a text that does not fit: enough for the last lines of a traceback.
_TEXT_AT = (HEADER_WORDS + PARENT_WORDS) * WORD
_CUT_OFF = b"(the beginning is cut off by `ulimit -f`)\n..."
# Below the lowest limit that is usual for them.
_HIGH_NUMBERS = range(200, 256)
# What a rank exits with that could not report: nothing else can be told without its file.
REPORT_LOST = 97
# And one whose limit on the size of files does not even leave room for the header.
NO_ROOM = 98


class ReportLostError(OSError):
    """The program closed the file of the report, and it cannot be opened again."""


# The one of this process, if it is a worker.
current: Report | None = None


class Report:
    """Writes one rank's outcome."""

    def __init__(self, fd: int, failure_event: int) -> None:
        global current  # noqa: PLW0603 - the process is in this state, not an object
        current = self
        self._fd = fd
        self._identity = _identify(fd)
        words = unpack_words(os.pread(fd, PARENT_WORDS * WORD, HEADER_WORDS * WORD))
        # What the parent wants to be different from usual.
        self.flags: int = words[0]
        self._event_number = words[1]
        # Tells a FIFO from others; all eventfds have the same, and a number besides.
        self._event_identity = _identify(failure_event)
        self._parent = (words[2], words[3])
        self._stacks_fd = -1
        self._failure_event = failure_event
        self._end = PAGE
        self._failed_ns = 0
        # How this rank ended is on record, whatever else may be missing.
        self.committed: bool = False
        # Writes what rankspawn.report() has put off, as a worker reports only now and then.
        self.write_steps: Callable[[], None] | None = None
        # Tells those that this rank has talked to that it has returned.
        self.say_returned: Callable[[], None] | None = None

    def stage(self, stage: int) -> None:
        """Say how far the worker came."""
        self._put(0, [stage])

    def put_steps(self, record: bytes) -> None:
        """Keep what was said with ``rankspawn.report``."""
        self._write(record, STEPS_AT)

    def answer_stack_requests(self) -> None:
        """From now on signals have all Python stacks written to this file."""
        if not STACKS_SIGNAL:
            return
        try:
            file = self._open_for_stacks()
        except FileNotFoundError:  # there is no /proc, without which nobody asks either
            return

        # A rank that crashes in C code says where, behind the stacks that it was asked
        # for. Whatever the program enables later counts in its place.
        faulthandler.enable(file, all_threads=True)
        write_stacks_on_request(file)

    def _open_for_stacks(self) -> int:
        """A descriptor with a position of its own."""
        low = os.open(f"/proc/self/fd/{self._fd}", os.O_WRONLY | os.O_CLOEXEC)
        os.lseek(low, STACKS_AT, os.SEEK_SET)
        # A number that a program gets for no file of its own, also after it closed all others:
        # a crash is written without a look at what has the number then.
        fd = with_high_number(low)
        # faulthandler cannot make sure of the file, so the parent does before it asks.
        self._stacks_fd = fd
        self._put(STACKS_FD_WORD, [fd])
        return fd

    def returned(self, value: Any) -> None:
        """Keep the result.

        Raises:
            TypeError: It cannot be pickled; the message names the path to the culprit.
        """
        # A large result takes seconds to write, and nobody is to wait for this rank so long.
        if self.say_returned is not None:
            self.say_returned()
        # Most functions return nothing; then a worker does not even load what pickles.
        table = 0 if value is None else self._pickle_result(value)
        self._commit(RETURNED, table, code=0, text="")

    def exited(self, code: int, text: str) -> None:
        """Keep the code and text of a ``sys.exit`` that was no success."""
        self._commit(EXITED, 0, code, text)
        self._wake_parent()

    def failing(self, error: BaseException) -> None:
        """Tell the parent that an exception was raised, before anything is done about it.

        So the others are stopped while this one writes its report, which takes longer in a
        fresh interpreter than stopping them, and for ever with some exceptions.
        """
        errors = sys.modules.get("rankspawn.errors")
        # What is raised in a hook of Paddle's comes out of its backward as the cause of this.
        first = error.__cause__ if type(error) is SystemError else error
        if errors is not None and issubclass(type(first), errors.RankLostError):
            self.stage(FOLLOWING)
        self._failed_ns = time.monotonic_ns()
        self._put(2, [self._failed_ns, 1])
        self._put(1, [FAILING])
        self._wake_parent()

    def note(self, text: str) -> None:
        """Keep what is known of the exception so far; what is said of it later counts."""
        try:
            self._put(5, self._put_text(text))
        except ReportLostError:
            raise
        except OSError:  # no room
            return

    def raised(self, error: BaseException, text: str) -> None:
        """Keep the traceback's text.

        The parent leaves a rank that reported some time for the rest before it stops it.
        """
        from rankspawn.workers.exceptions import summarize

        try:
            table = self._pickle_plainly(summarize(error))
        except (ReportLostError, MemoryError):
            raise
        except Exception:  # it does not fit, and the text can be cut
            table = 0
        self._commit(RAISED, table, code=1, text=text)
        self._wake_parent()

    def complete(self, error: BaseException) -> None:
        """Keep whatever can be kept of the exception itself.

        Last, because pickling runs code of its class, which may kill this process or hang.
        """
        from rankspawn.workers.exceptions import pack

        try:
            self._put(4, [self._pickle_plainly(pack(error))])
        except BaseException:  # anything may be wrong with it; what was written stays
            return
        finally:
            self._put(7, [1])
            self._wake_parent()

    def _pickle_result(self, value: Any) -> int:
        from rankspawn.workers.pickling import dump, rules_of_worker

        rules = rules_of_worker()
        if "torch" in sys.modules or "paddle" in sys.modules:
            from rankspawn.workers.tensors import add_reducers

            add_reducers(rules, shared_stay_shared=False)
        try:
            table, self._end = write_parcel(
                self._write, self._end, lambda stream: dump(value, stream, rules)
            )
        except ReportLostError:
            raise
        except Exception as error:
            from rankspawn.file_limit import is_too_large, too_large
            from rankspawn.workers.culprit import find_culprit, say_what_to_return

            if is_too_large(error):
                raise too_large("result cannot be sent back to the parent") from None
            path, culprit, reason = find_culprit(value, "result", rules) or ("result", value, error)
            raise TypeError(
                f"{path} cannot be sent back to the parent: "
                f"{type(culprit).__name__} object: {reason}{say_what_to_return(value)}"
            ) from None
        return table

    def _pickle_plainly(self, value: Any) -> int:
        """For values made of built-in types only."""
        from rankspawn.workers.pickling import Rules, dump

        table, self._end = write_parcel(
            self._write, self._end, lambda stream: dump(value, stream, Rules())
        )
        return table

    def _commit(self, kind: int, table: int, code: int, text: str) -> None:
        if self.write_steps is not None:
            self.write_steps()
        when = self._failed_ns or time.monotonic_ns()
        self._put(2, [when, code, table, *self._put_text(text)])
        self._put(1, [kind])
        self.committed = True

    def _put_text(self, text: str) -> list[int]:
        """Write it, or its end if there is a limit; return its offset and length."""
        data = text.encode("utf-8", "backslashreplace")
        offset = self._end
        try:
            self._end = offset + write_all(self._write, offset, memoryview(data))
        except OSError as error:
            import errno  # only then

            if error.errno != errno.EFBIG:
                raise
            # Where there is room in every file.
            offset, room = _TEXT_AT, STEPS_AT - _TEXT_AT - len(_CUT_OFF)
            data = data if len(data) <= room else _CUT_OFF + data[-room:]
            write_all(self._write, offset, memoryview(data))
        return [offset, len(data)]

    def _put(self, word: int, values: list[int]) -> None:
        self._write(pack_words(values), word * WORD)

    def _write(self, data: bytes | memoryview, offset: int) -> int:
        """``pwrite`` that hits no other file."""
        if _identify(self._fd) != self._identity:
            self._fd = self._open_again()
        return os.pwrite(self._fd, data, offset)

    def _open_again(self) -> int:
        number, parent = self._parent
        for path in (f"/proc/self/fd/{self._stacks_fd}", f"/proc/{parent}/fd/{number}"):
            # Looked at before it is opened: that would wait, or more, with some files.
            if _identify(path) == self._identity:
                fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                if _identify(fd) == self._identity:
                    return fd
                os.close(fd)
        raise ReportLostError("the program closed the file of its report")

    def _wake_parent(self) -> None:
        """Tell the parent now: this worker may still take long to end (threads, atexit)."""
        try:
            # It cannot be opened again, as files can; without it the parent notices at our end.
            if _identify(self._failure_event) != self._event_identity:
                return
            if self._event_number in (0, read_event_number(self._failure_event)):
                os.write(self._failure_event, _ONE)
        except OSError:
            pass


def write_stacks_on_request(file: int) -> None:
    """From now on signals have all Python stacks written there.

    Raises:
        ValueError: This is not the main thread, or not the main interpreter.
    """
    identity = _identify(file)

    def write_stacks(*_: object) -> None:
        if _identify(file) != identity:  # the program has closed it, or has another there
            return
        try:
            os.write(file, STACKS_BEGIN)
            faulthandler.dump_traceback(file)
            os.write(file, STACKS_END)
        except OSError:
            pass

    raw_signal.signal(STACKS_SIGNAL, write_stacks)
    # System calls of libraries go on as if there had been no signal.
    raw_signal.siginterrupt(STACKS_SIGNAL, False)
    faulthandler.register(STACKS_IN_C_SIGNAL, file, all_threads=True)


def hear_no_requests() -> None:
    """For the very end: ``os._exit`` may be patched, as coverage does to save what it has counted.

    It holds a lock then that it wants again for the lines of a handler, for ever.
    """
    if STACKS_SIGNAL:
        raw_signal.pthread_sigmask(raw_signal.SIG_BLOCK, (STACKS_SIGNAL,))


def clear_frames(error: BaseException) -> None:
    """Let go of what the frames of an exception hold: without memory nothing can be imported."""
    # As Python itself has it: the class may have an attribute of that name.
    frames: Any = BaseException.__dict__["__traceback__"].__get__(error)
    while frames is not None:
        try:  # noqa: SIM105 - contextlib is one more import in every worker
            frames.tb_frame.clear()
        except RuntimeError:  # it is being executed: ours
            pass
        frames = frames.tb_next


def with_high_number(fd: int) -> int:
    """The same file under a number that is far above those in use, where there is one."""
    for number in _HIGH_NUMBERS:
        if _identify(number) is None:
            try:
                os.dup2(fd, number, inheritable=False)
            except OSError:  # above the limit
                return fd
            os.close(fd)
            return number
    return fd


def _identify(file: int | str) -> tuple[int, int] | None:
    """What tells a file from all others, whatever its number is; None if there is none."""
    try:
        status = os.stat(file)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def read_event_number(fd: int) -> int:
    """What tells an event from others, plus one; 0 if the kernel does not say.

    Its inode does not: that is the same for all of them.
    """
    try:
        with open(f"/proc/self/fdinfo/{fd}", "rb") as info:
            for line in info:
                if line.startswith(b"eventfd-id:"):
                    return int(line[11:]) + 1
    except OSError:
        pass
    return 0
