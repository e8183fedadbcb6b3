"""The worker's side, from its first line to its exit code.

Runs in the worker. Start-up is import cost, paid once per rank: what a worker does not need is
not imported, multiprocessing and cloudpickle among it.
"""

from __future__ import annotations

import io
import os
import sys

from rankspawn import cpython
from rankspawn.cpython import raw_signal
from rankspawn.workers.parcel import open_parcel
from rankspawn.workers.report import (
    DEAF_TO_INTERRUPTS,
    IN_FUNCTION,
    NO_ROOM,
    REPORT_LOST,
    STARTED,
    Report,
    ReportLostError,
    clear_frames,
    hear_no_requests,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any, NoReturn

_UNKNOWN = "is not known: the process ended, or had to be ended, before it wrote that"
# True while this worker imports what its task needs; spawn() then refuses to start.
is_loading: bool = False
# The default start method of this rank's own children, if it is that of the rank itself: a copy of
# a process in which a framework has threads may hang. None if the program has chosen another.
given_method: str | None = None


class Boot:
    """The boot record: who a worker is, and where it finds what it needs.

    Written once by the parent and read once by the worker: an executed one has it on its command
    line, and to a fork server it is sent with the descriptors, which get other numbers on the way.
    """

    rank: int  # its number in the job
    parent: int  # the process that wants it; not the fork server
    # Tables in the payload; 0 for none.
    setting: int  # what :func:`prepare` takes
    task: int  # the function and its arguments
    own: int  # this rank's own arguments
    environ: int  # what to change in the environment; none if it was executed with it
    # Descriptors.
    outcome_file: int  # the file to report in
    failure_event: int  # wakes the parent
    payload: int  # the file with the tables
    tracker: int  # multiprocessing's resource tracker
    mark: Sequence[int]  # the job's mark; none if the environment it was executed with has it
    streams: Sequence[int]  # its log, or a terminal's three, if they have to be put in place
    brought: Sequence[int]  # what objects in the payload bring along

    _NUMBERS = ("rank", "parent", "setting", "task", "own", "environ")
    _FILES = ("outcome_file", "failure_event", "payload", "tracker")
    # Not a dataclass or a NamedTuple: these take a worker 5 ms to import.
    __slots__ = (*_NUMBERS, *_FILES, "mark", "streams", "brought")

    def __init__(
        self,
        *,
        rank: int,
        parent: int,
        setting: int,
        task: int,
        own: int,
        outcome_file: int,
        failure_event: int,
        payload: int,
        tracker: int,
        environ: int = 0,
        mark: Sequence[int] = (),
        streams: Sequence[int] = (),
        brought: Sequence[int] = (),
    ) -> None:
        self.rank, self.parent = rank, parent
        self.setting, self.task, self.own, self.environ = setting, task, own, environ
        self.outcome_file, self.failure_event = outcome_file, failure_event
        self.payload, self.tracker = payload, tracker
        self.mark, self.streams, self.brought = mark, streams, brought

    def numbers(self) -> list[int]:
        """All that stays as it is on the way to the worker."""
        numbers = [getattr(self, name) for name in self._NUMBERS]
        return [*numbers, len(self.mark), len(self.streams)]

    def descriptors(self) -> list[int]:
        """What the worker has to be given: it may get other numbers on the way."""
        files = [getattr(self, name) for name in self._FILES]
        return [*files, *self.mark, *self.streams, *self.brought]

    @classmethod
    def read(cls, numbers: Sequence[int], descriptors: Sequence[int]) -> Boot:
        """The record that was written as these, with the descriptors as they arrived."""
        *numbers, marks, streams = numbers
        fields: dict[str, Any] = dict(zip(cls._NUMBERS, numbers, strict=True))
        fields |= zip(cls._FILES, descriptors, strict=False)
        others = descriptors[len(cls._FILES) :]
        return cls(
            **fields,
            mark=others[:marks],
            streams=others[marks : marks + streams],
            brought=others[marks + streams :],
        )

    def to_argv(self) -> list[str]:
        """The record as two arguments of a command line."""
        return [",".join(map(str, part)) for part in (self.numbers(), self.descriptors())]

    @classmethod
    def from_argv(cls, arguments: Sequence[str]) -> Boot:
        """What :meth:`to_argv` wrote."""
        numbers, descriptors = ([int(number) for number in part.split(",")] for part in arguments)
        return cls.read(numbers, descriptors)


def main() -> None:
    """Entry point of an executed worker: everything it needs to know is in ``sys.argv``."""
    boot = Boot.from_argv(sys.argv[2:])
    leave_if_orphaned(boot.parent)
    report = Report(boot.outcome_file, boot.failure_event)
    run_and_leave(lambda: work(report, lambda: load_task(boot)), is_fork=False)


def leave_if_orphaned(parent: int) -> None:
    """End at once if the parent died while this process was being started.

    Its guardian may have looked for us before we carried the mark. If the parent dies after
    this check, the mark is there already.
    """
    if os.getppid() != parent:
        os._exit(1)


def work(
    report: Report,
    get_task: Callable[[], Callable[[], Any]],
    blocked: Iterable[int] = (raw_signal.SIGINT,),
) -> int:
    """Load the task, run it, report what became of it; return the exit code.

    Args:
        report: Where to.
        get_task: Loads it.
        blocked: The signals that the parent blocked for the start alone.
    """
    worker = os.getpid()
    loaded = False
    try:
        report.answer_stack_requests()
        report.stage(STARTED)
        if report.flags & DEAF_TO_INTERRUPTS:
            raw_signal.signal(raw_signal.SIGINT, raw_signal.SIG_IGN)
        # Ctrl-\ asks the parent where the ranks are, and reaches all in its terminal. Not ignored:
        # what is executed from here would inherit that.
        if raw_signal.getsignal(raw_signal.SIGQUIT) == raw_signal.SIG_DFL:
            raw_signal.signal(raw_signal.SIGQUIT, _pass)
        # Until here, where what a handler raises is reported, and prints no traceback.
        raw_signal.pthread_sigmask(raw_signal.SIG_UNBLOCK, blocked)
        task = get_task()
        refuse_breakpoints()
        if (asked := os.environ.get("RANKSPAWN_DEBUGPY")) is not None:
            from rankspawn.workers.remote_debugger import listen

            listen(asked)
        loaded = True
        report.stage(IN_FUNCTION)
        value = task()
    except BaseException as error:  # KeyboardInterrupt too: it must not look like success
        if os.getpid() != worker:
            return _end_as_python_does(error)
        # Not isinstance: it asks the object for its class, which may be anybody's code.
        is_exit = loaded and issubclass(type(error), SystemExit)
        tell: Callable[[Report, Any], int] = _report_exit if is_exit else _report_error
        return _tell(tell, report, error)
    return 0 if os.getpid() != worker else _tell(_report_result, report, value)


def _pass(*_: object) -> None:
    """A signal that means somebody else."""


def refuse_breakpoints() -> None:
    """Have ``breakpoint()`` say what to do, unless something else was chosen for it."""
    if sys.breakpointhook is sys.__breakpointhook__ and not os.environ.get("PYTHONBREAKPOINT"):
        sys.breakpointhook = _stop_here


def _stop_here(*args: Any, **options: Any) -> None:
    from rankspawn.workers.breakpoints import stop_at

    stop_at(sys._getframe(1), *args, **options)


def load_task(boot: Boot) -> Callable[[], Any]:
    """Make this process look like the parent, then unpickle what it has to do."""
    global is_loading  # noqa: PLW0603 - the process is in this state, not an object
    is_loading = True
    if "RANKSPAWN_CPUS" in os.environ:
        from rankspawn.workers.inherited import take_cpus

        take_cpus()
    prepare(boot.rank, boot.tracker, load(boot.payload, boot.setting))
    func, args, kwargs = load(boot.payload, boot.task)
    if boot.own:
        own, named = load(boot.payload, boot.own)
        args, kwargs = (*args, *own), {**kwargs, **named}
    os.close(boot.payload)
    is_loading = False
    return lambda: func(*args, **kwargs)


def run_and_leave(body: Callable[[], int], *, is_fork: bool = True) -> NoReturn:
    """Run the body, then what a program registered for its exit, and end with the body's code.

    A forked worker must not return into the code of the process it is a copy of. A fresh one
    leaves in the same way: what would follow, the destructors of C++ libraries, is where
    frameworks abort or hang after the work is done, and it takes longer than a bare start.
    """
    code, at_once = 1, True
    try:
        code = body()
        at_once = _run_exit_handlers() or is_fork
        if not is_fork:  # a fork's buffers may be copies
            _flush_open_files()
        flush_output()
        flush_c_output()
    finally:
        if at_once:
            hear_no_requests()
            os._exit(code)
    sys.exit(code)


def _run_exit_handlers() -> bool:
    """False if only the interpreter can run them, at its own end."""
    try:
        cpython.wait_for_threads()
    except KeyboardInterrupt:  # the wait was cut short, and all that follows is due
        pass
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    return cpython.run_exit_functions()


def prepare(rank: int, tracker: int, setting: dict[str, Any]) -> None:
    """Take over the parent's import path, arguments and, if needed, main module."""
    global given_method  # noqa: PLW0603 - likewise
    given_method = setting["given_method"]
    sys.path[:] = setting["path"]
    sys.argv[:] = setting["argv"]
    if setting["folder"] and setting["folder"] != current_folder():
        os.chdir(setting["folder"])  # a fork server may have been started elsewhere
    cpython.install_identity(rank, tracker, setting["multiprocessing"])
    if setting["logging"] is not None:
        from rankspawn.workers.log_setup import apply

        apply(setting["logging"], rank)
    if setting["main"] is not None:
        from rankspawn.workers.main_module import import_main

        import_main(*setting["main"])


def current_folder() -> str:
    """Where this process is; nothing if that was deleted."""
    try:
        return os.getcwd()
    except FileNotFoundError:
        return ""


def load(payload: int, table: int) -> Any:
    """Unpickle one part of the payload."""
    pickled, buffers = open_parcel(payload, table)
    return cpython.load_pickle().loads(pickled, buffers=buffers)


def _tell(tell: Callable[[Report, Any], int], report: Report, what: Any) -> int:
    try:
        return tell(report, what)
    except ReportLostError:  # nothing is printed: what standard error writes to may be gone, too
        return REPORT_LOST
    except OSError:  # of our own writes only: others are part of what is told
        return NO_ROOM


def _report_result(report: Report, value: Any) -> int:
    try:
        report.returned(value)
    except BaseException as error:
        return _report_error(report, error)
    flush_output()
    return 0


def _report_exit(report: Report, stop: SystemExit) -> int:
    flush_output()
    code, text = _read_exit(stop)
    if code:
        report.exited(code, text)
    else:
        report.returned(None)
    return code


def _read_exit(stop: SystemExit) -> tuple[int, str]:
    """The code and the text, as Python itself reads the argument of ``sys.exit``."""
    if stop.code is None or isinstance(stop.code, int):
        # The system keeps 8 bits; none of them may make a failure look like success.
        return (stop.code & 0xFF or 1) if stop.code else 0, ""
    from rankspawn.workers.exceptions import text_of

    return 1, text_of(stop.code)


def _end_as_python_does(error: BaseException) -> int:
    """For a process that the function forked and let go on: it is not the rank."""
    if not issubclass(type(error), SystemExit):
        from rankspawn.workers.exceptions import without_our_frames

        sys.excepthook(type(error), error, without_our_frames(error))
        return 1
    code, text = _read_exit(error)  # type: ignore[arg-type]  # by its class, as looked at above
    if text:
        print(text, file=sys.stderr)  # noqa: T201 - as Python does
    return code


def _report_error(report: Report, error: BaseException) -> int:
    report.failing(error)
    if issubclass(type(error), MemoryError):  # its frames hold what the report needs
        clear_frames(error)
    else:  # what follows runs code of its class, which may hang or end this process
        from rankspawn.workers.exceptions import describe_without_text, note_reason

        note_reason(error)
        report.note(describe_without_text(error, _UNKNOWN))
    flush_output(only_files=True)
    try:
        report.raised(error, _describe(error))
    except BaseException:
        if not report.committed:
            # Out of memory all the same, as a rule.
            clear_frames(error)
            report.raised(error, _describe(error))
    # Not before: it waits as long as nobody reads what was printed.
    flush_output()
    report.complete(error)
    return 1


def _describe(error: BaseException) -> str:
    """The traceback as text, from the user's first frame on."""
    from rankspawn.workers.exceptions import describe

    return describe(error)


def flush_output(*, only_files: bool = False) -> None:
    """Write out what Python still holds; ``only_files`` leaves out what may keep us waiting.

    Now rather than at exit, where Python turns a closed pipe into exit code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            if not only_files or os.path.isfile(stream.fileno()):
                stream.flush()
        except Exception:
            continue


def flush_c_output() -> None:
    """The same for what C code holds: ``printf`` into a file or pipe is written in blocks."""
    cpython.call_c("fflush", None)


def _flush_open_files() -> None:
    """The same for files that the program left open."""
    import gc

    for thing in gc.get_objects():
        # Not isinstance: it asks objects for their class, which may be anybody's code.
        if issubclass(type(thing), (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            try:
                thing.flush()
            except Exception:
                continue
