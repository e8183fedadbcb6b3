"""The worker's side, from its first line to its exit code.

Runs in the worker. Start-up is import cost, paid once per rank: what a worker does not need is
not imported, multiprocessing and cloudpickle among it.
"""

from __future__ import annotations

import _io  # what io and open() use, already there
import atexit
import faulthandler
import os
import sys
from _signal import SIG_IGN, SIG_UNBLOCK, SIGINT, pthread_sigmask, signal  # not enum: 2 ms

from rankspawn.workers.parcel import open_parcel
from rankspawn.workers.report import DEAF_TO_INTERRUPTS, IN_FUNCTION, STACKS_SIGNAL, STARTED, Report

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType, TracebackType
    from typing import Any, NoReturn

    from rankspawn.workers.orders import EncodedChanges

# True while this worker imports what its task needs; spawn() then refuses to start.
is_loading = False


class MissingGuardError(RuntimeError):
    """A module starts workers whenever it is imported."""

    def __init__(self, path: str) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return (
            f"{self.path} calls spawn() while a worker imports it: put the call under "
            'if __name__ == "__main__":'
        )


def main() -> None:
    """Entry point of an executed worker: everything it needs to know is in ``sys.argv``."""
    parent, outcome, event, *order = map(int, sys.argv[2:])
    leave_if_orphaned(parent)
    run_and_leave(lambda: work(Report(outcome, event), lambda: load_task(*order)), is_fork=False)


def leave_if_orphaned(parent: int) -> None:
    """End at once if the parent died while this process was being started.

    Its guardian may have looked for us before we carried the mark. If the parent dies after
    this check, the mark is there already.
    """
    if os.getppid() != parent:
        os._exit(1)


def work(report: Report, get_task: Callable[[], Callable[[], Any]]) -> int:
    """Load the task, run it, report what became of it; return the exit code."""
    worker = os.getpid()
    loaded = False
    try:
        answer_stack_requests(report)
        report.stage(STARTED)
        if report.flags() & DEAF_TO_INTERRUPTS:
            signal(SIGINT, SIG_IGN)
        # Blocked by the parent until here, where an interrupt no longer prints a traceback.
        pthread_sigmask(SIG_UNBLOCK, (SIGINT,))
        task = get_task()
        loaded = True
        report.stage(IN_FUNCTION)
        value = task()
    except BaseException as error:  # KeyboardInterrupt too: it must not look like success
        if os.getpid() != worker:
            return _end_as_python_does(error)
        if loaded and isinstance(error, SystemExit):
            return _report_exit(report, error)
        return _report_error(report, error)
    if os.getpid() != worker:
        return 0
    try:
        report.returned(value)
    except BaseException as error:
        return _report_error(report, error)
    flush_output()
    return 0


def answer_stack_requests(report: Report) -> None:
    """From now on a signal has all Python stacks written to the report's file, in C."""
    if STACKS_SIGNAL:
        faulthandler.register(STACKS_SIGNAL, report.open_for_stacks(), all_threads=True)


def load_task(
    rank: int, payload: int, setting: int, task: int, own: int, tracker: int
) -> Callable[[], Any]:
    """Make this process look like the parent, then unpickle what it has to do.

    Args:
        rank: Who we are.
        payload: Descriptor of the payload file.
        setting: Table of what :func:`prepare` takes.
        task: Table of the function and its arguments.
        own: Table of this rank's own arguments; 0 if it has none.
        tracker: Descriptor of multiprocessing's resource tracker.
    """
    global is_loading  # noqa: PLW0603 - the process is in this state, not an object
    is_loading = True
    prepare(rank, tracker, load(payload, setting))
    func, args, kwargs = load(payload, task)
    if own:
        args += load(payload, own)
    os.close(payload)
    is_loading = False
    return lambda: func(*args, **kwargs)


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
    return [(os.fsdecode(one), value and os.fsdecode(value)) for one, value in changes]


def redirect_output(log: int | None = None) -> None:
    """For a forked worker: send what it prints to its log, whoever prints it."""
    if log is not None:
        os.dup2(log, 1)
        os.dup2(log, 2)
        # Whatever stood here wrote elsewhere, or holds text that the parent will print.
        sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115 - until the exit
        sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


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
    sys.stdout = open(1, "w", buffering=1, closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115


def run_and_leave(body: Callable[[], int], *, is_fork: bool = True) -> NoReturn:
    """Run the body, then what a program registered for its exit, and end with the body's code.

    A forked worker must not return into the code of the process it is a copy of. A fresh one
    leaves in the same way: what would follow, the destructors of C++ libraries, is where
    frameworks abort or hang after the work is done, and it takes longer than a bare start.
    """
    code = 1
    try:
        code = body()
        _run_exit_handlers()
        if not is_fork:  # a fork's buffers may be copies
            _flush_open_files()
        flush_output()
        flush_c_output()
    finally:
        os._exit(code)


def _run_exit_handlers() -> None:
    threading = sys.modules.get("threading")
    try:
        if threading is not None:
            threading._shutdown()  # waits for non-daemon threads
    except KeyboardInterrupt:  # the wait was cut short, and all that follows is due
        pass
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
    atexit._run_exitfuncs()


def prepare(rank: int, tracker: int, setting: dict[str, Any]) -> None:
    """Take over the parent's import path, arguments and, if needed, main module."""
    sys.path[:] = setting["path"]
    sys.argv[:] = setting["argv"]
    if setting["folder"] and setting["folder"] != _current_folder():
        os.chdir(setting["folder"])  # a fork server may have been started elsewhere
    from rankspawn.workers.mp_identity import install

    install(rank, tracker, setting["multiprocessing"])
    if setting["main"] is not None:
        import_main(*setting["main"])


def _current_folder() -> str | None:
    try:
        return os.getcwd()
    except FileNotFoundError:
        return None


def import_main(name: str | None, path: str) -> None:
    """Run the main module again, under the name that multiprocessing gives it."""
    module = _run_module(name) if name else _run_file(path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _run_file(path: str) -> ModuleType:
    import io

    with io.open_code(path) as source:
        # Without this module's future imports, which would turn the script's annotations into text.
        code = compile(source.read(), path, "exec", dont_inherit=True)
    return _run(code, __file__=path, __spec__=None)


def _run_module(name: str) -> ModuleType:
    from importlib.util import find_spec

    spec: Any = find_spec(name)
    return _run(
        spec.loader.get_code(name),
        __file__=spec.origin,
        __spec__=spec,
        __loader__=spec.loader,
        __package__=spec.parent,
    )


def _run(code: Any, **attributes: Any) -> ModuleType:
    module = type(sys)("__mp_main__")
    module.__dict__.update(attributes)
    # In place before it runs: pickle, dataclasses and typing look classes up by module name.
    sys.modules["__mp_main__"] = module
    exec(code, module.__dict__)
    return module


def load(payload: int, table: int) -> Any:
    """Unpickle one part of the payload."""
    try:
        from _pickle import loads
    except ImportError:  # an interpreter without the C accelerator
        from pickle import loads
    pickled, buffers = open_parcel(payload, table)
    return loads(pickled, buffers=buffers)


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
    if stop.code is None or (isinstance(stop.code, int) and stop.code == 0):
        return 0, ""
    if isinstance(stop.code, int):
        # The system keeps 8 bits; none of them may make a failure look like success.
        return stop.code & 0xFF or 1, ""
    from rankspawn.workers.exceptions import text_of

    return 1, text_of(stop.code)


def _end_as_python_does(error: BaseException) -> int:
    """For a process that the function forked and let go on: it is not the rank."""
    if not isinstance(error, SystemExit):
        error.__traceback__ = _without_ours(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    code, text = _read_exit(error)
    if text:
        print(text, file=sys.stderr)  # noqa: T201 - as Python does
    return code


def _report_error(report: Report, error: BaseException) -> int:
    report.failing()
    if isinstance(error, MemoryError):  # its frames hold what the report needs
        _clear_frames(error)
    flush_output()
    try:
        report.raised(error, _describe(error))
    except BaseException:
        if not report.committed:
            # Out of memory all the same, as a rule.
            _clear_frames(error)
            report.raised(error, _describe(error))
    return 1


def _clear_frames(error: BaseException) -> None:
    frames = error.__traceback__
    while frames is not None:
        try:  # noqa: SIM105 - contextlib is one more import in every worker
            frames.tb_frame.clear()
        except RuntimeError:  # it is being executed: ours
            pass
        frames = frames.tb_next


def _describe(error: BaseException) -> str:
    """The traceback as text, from the user's first frame on."""
    if isinstance(error, MissingGuardError):
        return f"RuntimeError: {error}\n"
    try:
        import re  # traceback has it anyway
        import traceback

        lines = traceback.format_exception(type(error), error, _without_ours(error.__traceback__))
        # A script's own exceptions under the names that its author knows, also within a group.
        return re.sub(r"^([ |]*)__mp_main__\.", r"\1", "".join(lines), flags=re.MULTILINE)
    except BaseException as second:  # out of memory or stack while formatting
        return f"{type(error).__name__} (its traceback could not be formatted: {second!r})\n"


def _without_ours(frames: TracebackType | None) -> TracebackType | None:
    """Drop the frames of this package at the top; the last one stays if there are no others."""
    ours = os.path.dirname(os.path.dirname(__file__)) + os.sep
    while frames is not None and frames.tb_frame.f_code.co_filename.startswith(ours):
        if frames.tb_next is None:
            break
        frames = frames.tb_next
    return frames


def flush_output() -> None:
    """Write out what Python still holds.

    Now rather than at exit, where Python turns a closed pipe into exit code 120.
    """
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except Exception:
            continue


def flush_c_output() -> None:
    """The same for what C code holds: ``printf`` into a file or pipe is written in blocks."""
    try:
        import _ctypes  # without the Python part of ctypes: 0.5 ms instead of 6

        flush = _ctypes.dlsym(_ctypes.dlopen(None, 0), "fflush")  # type: ignore[arg-type]
        _ctypes.call_function(flush, (None,))
    except (ImportError, OSError, AttributeError):  # an interpreter without ctypes
        return


def _flush_open_files() -> None:
    """The same for files that the program left open."""
    import gc

    for one in gc.get_objects():
        # Not isinstance: it asks objects for their class, which may be anybody's code.
        if issubclass(type(one), (_io.TextIOWrapper, _io.BufferedWriter, _io.BufferedRandom)):
            try:
                one.flush()
            except Exception:
                continue
