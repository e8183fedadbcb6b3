"""Starting programs as the workers of a group: executed, with a log each, and no report.

The same guardian, mark, teardown and evidence as for functions; what became of a program is its
exit code.
"""

from __future__ import annotations

import os
import signal
import subprocess
from contextlib import contextmanager

from rankspawn.values import dataclass, field
from rankspawn.workers.assembling import assemble
from rankspawn.workers.board import STEPS_VARIABLE, Board
from rankspawn.workers.logs import open_log
from rankspawn.workers.marker import VARIABLE, variable_value
from rankspawn.workers.meeting import MEETING_VARIABLE
from rankspawn.workers.outcome_file import TakenReport
from rankspawn.workers.popen import adopt_child, explain_start_failure, whole_environment
from rankspawn.workers.worker import Worker

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from rankspawn.descriptors import Closable, Owned
    from rankspawn.workers.agent_store import AgentStore
    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.popen import WorkerPopen


@dataclass(frozen=True, slots=True)
class Program:
    """One program to execute.

    Attributes:
        rank: Its rank.
        name: What messages call it.
        command: What is executed; the first word is looked up as a shell does.
        changes: Changes against this process's environment; None removes a variable.
        log: The path of the file that gets its output.
        reads_input: It has this process's standard input; others have none.
        on_terminal: It prints to where this process does, and not to its log.
        hears_interrupts: False if Ctrl-C in the terminal is meant for another program.
        second_mark: A mark to carry beside the group's, to be stopped apart from others.
        error_log: The path of the file that gets its standard error; None for the same.
        cpus: The CPUs that it may run on; None for those of this process.
    """

    rank: int
    name: str
    command: tuple[str, ...]
    changes: Mapping[str, str | None] = field(repr=False)
    log: str
    reads_input: bool = False
    on_terminal: bool = False
    hears_interrupts: bool = True
    second_mark: str | None = None
    error_log: str | None = None
    cpus: frozenset[int] | None = None


@dataclass(frozen=True, slots=True)
class ProgramWorker(Worker):
    """A program, which may say how far it is.

    Attributes:
        board: Where.
        place: Its page there.
    """

    board: Board
    place: int

    def steps(self) -> bytes:
        """What it said last with ``rankspawn.report``, as a record."""
        return self.board.read(self.place)

    def take_report(self) -> TakenReport:
        """What it said last; the board is closed after that."""
        return TakenReport("", None, self.steps())


def start_programs(
    programs: Sequence[Program],
    *,
    grace: float,
    keep_logs: bool,
    is_looked_at: bool = False,
    resources: Sequence[Closable] = (),
    store: AgentStore | None = None,
) -> WorkerGroup:
    """Start the programs, watched over in case this process dies.

    Args:
        programs: What to execute.
        grace: Seconds that they get to end, if this process dies.
        keep_logs: Logs go on where they ended.
        is_looked_at: Somebody looks all the time at how far they are.
        resources: What they need while they run; closed with the group.
        store: Hosts torch's store; started before them, closed with the group.

    Raises:
        OSError: One of them could not be started; those before it were killed.
    """
    board = Board()

    def start(mark: str, place: str, _: Owned, started: list[Worker]) -> None:
        for program in programs:
            marks = variable_value(mark)
            if program.second_mark is not None:
                marks += f"/{program.second_mark}"
            steps = board.address(len(started), is_looked_at=is_looked_at)
            common = {VARIABLE: marks, MEETING_VARIABLE: place, STEPS_VARIABLE: steps}
            environ = whole_environment({**program.changes, **common}, has_log=True)
            try:
                popen = _execute(program, environ, keep_log=keep_logs)
            except OSError as error:
                story = explain_start_failure(error, environ, len(started), len(programs))
                error.add_note(story)
                raise
            index = len(started)
            started.append(
                ProgramWorker(program.rank, program.name, popen, program.log, board, index)
            )

    return assemble(start, grace=grace, resources=[*resources, board], store=store)


def _execute(program: Program, environ: Mapping[str, str], *, keep_log: bool) -> WorkerPopen:
    log = open_log(program.log, keep=keep_log)
    errors = log
    try:
        if program.error_log is not None:
            errors = open_log(program.error_log, keep=keep_log)
        with _bound_to(program.cpus), _deaf(not program.hears_interrupts):
            child = subprocess.Popen(
                program.command,
                env=environ,
                stdin=None if program.reads_input else subprocess.DEVNULL,
                stdout=None if program.on_terminal else log.fileno(),
                stderr=None if program.on_terminal else errors.fileno(),
                # Ours are close-on-exec. That they stay open until then matters: the guardian
                # takes a closed lifeline for our death, and by then the mark is there to be found.
                close_fds=False,
            )
    finally:
        log.close()
        errors.close()
    # It is reaped through WorkerPopen; this keeps subprocess from waiting for it as well.
    child.returncode = 0
    return adopt_child(child.pid)


@contextmanager
def _deaf(to_interrupts: bool) -> Iterator[None]:
    """Have what is executed ignore Ctrl-C: it inherits what this process ignores."""
    if not to_interrupts:
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _bound_to(cpus: frozenset[int] | None) -> Iterator[None]:
    """Have this thread, and so what it starts, run on these CPUs only.

    Rather than in the child before it executes: that would need a fork where subprocess has less.
    """
    if cpus is None:
        yield
        return
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def check_program(command: Sequence[str]) -> None:
    """Make sure that a command can be executed, as far as that can be seen before.

    Raises:
        FileNotFoundError: There is no such program.
        PermissionError: It may not be executed.
    """
    name = command[0]
    if os.sep in name:
        candidates = [name]
    else:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
        candidates = [os.path.join(folder or ".", name) for folder in folders]
    files = [path for path in candidates if os.path.isfile(path)]
    if not files:
        where = "there is no such file" if os.sep in name else "it is not on PATH"
        if os.sep not in name and os.path.isfile(name):
            where += f"; the file in the current folder is ./{name}"
        raise FileNotFoundError(f"{name} cannot be executed: {where}")
    if not any(os.access(path, os.X_OK) for path in files):
        raise PermissionError(f"{files[0]} cannot be executed: it is not marked so (chmod +x)")
