"""The programs of one node: started, shown, waited for, stopped.

A pod is a ``workers`` group like that of ``spawn``, with the same guardian, mark and teardown.
What it adds is roles: a job is done when its trainers are, and whoever only serves them is
stopped then.
"""

from __future__ import annotations

import os
import time

from rankspawn.descriptors import make_room_for_descriptors
from rankspawn.launch.programs import HETER, SERVER, TRAINER, ProgramSpec
from rankspawn.values import dataclass
from rankspawn.workers.execution import Program, start_programs
from rankspawn.workers.follow import Way
from rankspawn.workers.marker import new_mark
from rankspawn.workers.teardown import kill_now

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.descriptors import Closable
    from rankspawn.launch.showing import Shown
    from rankspawn.launch.torchrun import OwnStreams
    from rankspawn.launch.tracing import Traced
    from rankspawn.supervise.outcome import Outcome
    from rankspawn.workers.agent_store import AgentStore
    from rankspawn.workers.follow import LogFollower

_NAMES = {TRAINER: "rank", SERVER: "server", HETER: "heter worker"}


@dataclass(frozen=True, slots=True)
class Ending:
    """How one program ended, or that it did not yet.

    Attributes:
        name: What people call it: ``rank 3``, ``server 0``.
        spec: The program.
        outcome: How it ended; None while it runs, or if it cannot be reaped.
        seconds: How long it ran.
        log: The path of its log.
        log_start: Where in it this run begins.
    """

    name: str
    spec: ProgramSpec
    outcome: Outcome | None
    seconds: float
    log: str
    log_start: int


class Pod:
    """The running programs of this node.

    Args:
        specs: What to start.
        log_dir: The folder of their logs.
        keep_logs: Logs go on where they ended; otherwise they are emptied first.
        is_first: What is in them is of another run, and a line says where this one begins.
        grace: Seconds between SIGTERM and SIGKILL.
        follower: Shows the logs of those that belong on the terminal.
        resources: What the programs need while they run; closed with the pod.
        outer_mark: A mark for all of them to carry beside the pod's own.
        store: Hosts torch's store; started before them, closed with the pod.
        shown: Shows their output in place of the follower, where more than that is asked for.
        traced: Records what happens, where that is asked for.

    Raises:
        OSError: One of them could not be started; none is left.
    """

    def __init__(
        self,
        specs: Sequence[ProgramSpec],
        *,
        log_dir: str,
        keep_logs: bool,
        is_first: bool = False,
        grace: float,
        follower: LogFollower,
        resources: Sequence[Closable] = (),
        outer_mark: str | None = None,
        store: AgentStore | None = None,
        shown: Shown | None = None,
        traced: Traced | None = None,
    ) -> None:
        self.specs: list[ProgramSpec] = list(specs)
        self._grace = grace
        self._follower = follower
        self._shown = shown
        self._traced = traced
        self._logs = [os.path.join(log_dir, spec.log_name) for spec in specs]
        self._log_starts = [_size(path) if keep_logs else 0 for path in self._logs]
        for index, start in enumerate(self._log_starts):
            if start and is_first:
                self._log_starts[index] = _separate(self._logs[index], specs[index].command)
        self._error_logs = [
            None if spec.streams is None else os.path.join(log_dir, spec.streams.error_log_name)
            for spec in specs
        ]
        # Those who serve the trainers can be stopped without what the trainers left running.
        self._helpers_mark = new_mark()
        self._outer_mark = outer_mark
        self._serves_others = store is not None and store.is_shared
        self._trainers = {index for index, spec in enumerate(specs) if spec.role == TRAINER}
        # For each program a port, a sentinel, and one log or two while it is being started.
        make_room_for_descriptors(4 * len(self.specs))
        self._started = time.monotonic_ns()
        self._group = start_programs(
            [self._program(index) for index in range(len(self.specs))],
            grace=grace,
            keep_logs=keep_logs,
            is_looked_at=shown is not None or traced is not None,
            resources=resources,
            store=store,
        )
        try:
            self._show(log_dir)
        except BaseException:
            self.stop()
            self.close()
            raise

    def _show(self, log_dir: str) -> None:
        """Have the follower show what belongs on the terminal, and record what was asked for."""
        if self._traced is not None:
            self._traced.begin(self._group, self.specs, self._logs, self._log_starts)
        if self._shown is not None:
            self._shown.begin(self._group, self.specs, self._logs, self._log_starts)
            return
        starts: dict[str, int] = {}
        ways: dict[str, Way] = {}
        for index, spec in enumerate(self.specs):
            own, errors = spec.streams, self._error_logs[index]
            if own is None or errors is None:
                if spec.on_terminal:
                    starts[self._logs[index]] = self._log_starts[index]
                continue
            # The numbers of the streams are those of the launcher's own.
            for stream, path in ((1, self._logs[index]), (2, errors)):
                if own.shown & stream:
                    starts[path] = 0  # each try has logs of its own
                    ways[path] = _way(own, stream, log_dir, shares=len(self.specs) > 1)
        self._follower.follow(starts, ways)

    def _program(self, index: int) -> Program:
        spec = self.specs[index]
        return Program(
            spec.rank,
            name_of(spec),
            spec.command,
            spec.env,
            self._logs[index],
            reads_input=spec.reads_input,
            on_terminal=bool(spec.debugged),
            hears_interrupts=spec.debugged is not False,
            second_mark=self._more_marks(index),
            error_log=self._error_logs[index],
            cpus=spec.cpus,
        )

    def _more_marks(self, index: int) -> str | None:
        helper = None if index in self._trainers else self._helpers_mark
        marks = [mark for mark in (self._outer_mark, helper) if mark is not None]
        return "/".join(marks) or None

    def fileno(self) -> int:
        """Readable when :meth:`collect` has something to do."""
        return self._group.fileno()

    def collect(self) -> None:
        """Take note of what ended; to be called by whoever was waiting for that."""
        self._group.collect(was_waiting=True)

    @property
    def is_done(self) -> bool:
        """Whether all trainers ended; on a node without any, all programs."""
        running = set(self._group.sentinels.values())
        return not running & self._trainers if self._trainers else not running

    @property
    def has_trainers(self) -> bool:
        """Whether some of its programs are trainers; else it only serves those of other nodes."""
        return bool(self._trainers)

    @property
    def is_empty(self) -> bool:
        """Whether no program runs any more, nor a store that other nodes may still need."""
        return not self._group.sentinels and not self._serves_others

    @property
    def failures(self) -> list[Ending]:
        """Those that failed by themselves, first one first."""
        return [self._ending(index) for index, _ in self._group.failures]

    @property
    def lost(self) -> Outcome | None:
        """What became of the process that hosts torch's store, if it ended before they did."""
        return self._group.lost

    @property
    def endings(self) -> list[Ending]:
        """How each one ended, in the order in which they were given."""
        return [self._ending(index) for index in range(len(self.specs))]

    @property
    def running(self) -> dict[int, int]:
        """Rank to process of the trainers that run; on a node without any, of all programs."""
        running = set(self._group.sentinels.values())
        workers = self._group.workers
        return {self.specs[i].rank: workers[i].popen.pid for i in self._shown_ones if i in running}

    @property
    def outputs(self) -> dict[int, list[str]]:
        """Rank to the files that it prints to, of the same ones, running or not."""
        logs, errors = self._logs, self._error_logs
        return {
            self.specs[i].rank: [path for path in (logs[i], errors[i]) if path is not None]
            for i in self._shown_ones
        }

    def note_stacks(self, stacks: Mapping[int, str]) -> None:
        """Where these were at the end of the job, by rank, for its trace."""
        if self._traced is not None:
            ranks = {self.specs[index].rank: index for index in self._shown_ones}
            self._traced.note_stacks({ranks[rank]: text for rank, text in stacks.items()})

    def steps_of(self, rank: int) -> bytes:
        """What one of these said last with ``rankspawn.report``, as a record."""
        index = next(i for i in self._shown_ones if self.specs[i].rank == rank)
        return self._group.steps_of(index)

    @property
    def _shown_ones(self) -> list[int]:
        return sorted(self._trainers) or list(range(len(self.specs)))

    def pass_on(self, number: int) -> None:
        """Send a signal to all that run."""
        for index in self._group.sentinels.values():
            self._group.workers[index].popen.send_signal(number)

    def stop(self, *, interrupted: bool = False, grace: float | None = None) -> None:
        """End what still runs, and what it started.

        An exception cuts the grace period short; :meth:`kill` then makes sure.

        Args:
            interrupted: The launcher got SIGINT.
            grace: Seconds between SIGTERM and SIGKILL, if others than the pod's.
        """
        # While one is debugged, the others do not hear a Ctrl-C in the terminal.
        reaches = interrupted and all(spec.debugged is None for spec in self.specs)
        self._group.stop(self._grace if grace is None else grace, interrupted=reaches)

    def stop_helpers(self) -> None:
        """After the trainers succeeded: end who served them, and leave alone what they left."""
        self._group.stop(self._grace, only_marked=self._helpers_mark)

    def kill(self) -> None:
        """End at once what :meth:`stop` or :meth:`stop_helpers` was to end.

        Also after one of them was interrupted anywhere, even between two kills.
        """
        is_success = self.is_done and not self._group.failures
        kill_now(self._group, self._helpers_mark if is_success else self._group.mark)

    def close(self) -> None:
        """Let go of ports, guardian and descriptors; a second call does nothing."""
        # Before anybody else writes to the same files.
        self._follower.follow({})
        self._group.close()

    def _ending(self, index: int) -> Ending:
        outcome = self._group.outcomes.get(index)
        ended = time.monotonic_ns() if outcome is None else outcome.when_ns
        return Ending(
            name_of(self.specs[index]),
            self.specs[index],
            outcome,
            max(0, ended - self._started) / 1e9,
            # A traceback is on the standard error.
            self._error_logs[index] or self._logs[index],
            0 if self._error_logs[index] else self._log_starts[index],
        )


def name_of(spec: ProgramSpec) -> str:
    """The name that people have for a program: ``rank 3``."""
    return f"{_NAMES.get(spec.role, spec.role)} {spec.rank}"


def _way(own: OwnStreams, stream: int, log_dir: str, *, shares: bool) -> Way:
    prefix = own.prefix.encode() if own.prefixed & stream else b""
    parts, name = own.filters[stream - 1] if own.filters else ((), "")
    filters = tuple(part.encode() for part in parts)
    return Way(stream, prefix, filters, os.path.join(log_dir, name), shares=shares)


def _separate(path: str, command: Sequence[str]) -> int:
    """Say in a log that goes on that another run begins, and what it is; where that then is."""
    when = time.strftime("%Y-%m-%d %H:%M:%S %z")
    words = " ".join(
        word if word.isprintable() and " " not in word else repr(word) for word in command
    )
    try:
        with open(path, "r+b") as log:
            log.seek(-1, os.SEEK_END)
            end = b"" if log.read(1) == b"\n" else b"\n"
        with open(path, "ab") as log:
            log.write(end + f"==== {when}: {words} ====\n".encode("utf-8", "backslashreplace"))
    except OSError:  # the worker's start tells
        pass
    return _size(path)


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
