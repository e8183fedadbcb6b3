"""Finding what runs: groups of ``spawn`` and jobs of ``rankrun``, of this user on this machine.

A group is there as long as its parent is, and has the file at which its ranks can meet: that says
who they are. All else is read of the ranks. Nothing is written anywhere for it, and whoever may not
look into a process (another user) finds nothing of it.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field

from rankspawn.inspect.labels import GroupLabel, RankLabel, read_group, read_rank
from rankspawn.workers.board import BOARD_FILE, read_page
from rankspawn.workers.logs import CAPTURE_FILE
from rankspawn.workers.marker import list_processes, ticks_since_boot, when_started
from rankspawn.workers.meeting import ENTRY, FIRST_ENTRY_AT, count_listed
from rankspawn.workers.outcome_file import read_header, read_steps

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SPAWN, RANKRUN = "spawn", "rankrun"
_TICKS = os.sysconf("SC_CLK_TCK")
# Where a mark says when it was made; the rest is random, and makes a name for people.
_TIME, _NAME = slice(12), slice(12, 20)
_MOST_RANKS = 1 << 20
# The states of a rank that may not have opened its log yet.
BEFORE_FUNCTION = ("starting", "loading")


@dataclass(frozen=True, slots=True)
class RankSeen:
    """A rank of a running job.

    Attributes:
        rank: Its number; of a program that tells none, its place.
        pid: Its process.
        is_alive: That runs.
        device: Such as ``gpu 4``; empty if it is not known.
        state: One word for what it does.
        file: Where its report can be opened; None for a program, and for one that has ended.
        steps: What it said last with ``rankspawn.report``, as a record.
        log: The file that it prints to; None if that is none, or not open yet.
    """

    rank: int
    pid: int
    is_alive: bool
    device: str = ""
    state: str = "running"
    file: str | None = None
    steps: bytes = b""
    log: str | None = None

    @property
    def will_print(self) -> bool:
        """It may still open a log: it has only begun."""
        return self.is_alive and self.log is None and self.state in BEFORE_FUNCTION


@dataclass(frozen=True, slots=True)
class RunningJob:
    """A group of ``spawn``, or the programs of ``rankrun`` on this machine.

    Attributes:
        id: A name for people.
        kind: ``spawn`` or ``rankrun``.
        what: The function or the script.
        parent: The process that started it.
        started: When, in seconds since 1970.
        grace: Seconds that its ranks get to end.
        mark: The first part of its mark.
        ranks: By number.
    """

    id: str
    kind: str
    what: str
    parent: int
    started: float
    grace: float
    mark: str = field(repr=False)
    ranks: tuple[RankSeen, ...]

    def chosen(self, rank: int | None) -> Sequence[RankSeen]:
        """All ranks, or only the given one.

        Raises:
            NoJobError: There is none.
        """
        if not self.ranks:
            raise NoJobError(f"job {self.id} is just being started: try again")
        ranks = [each for each in self.ranks if rank in (None, each.rank)]
        if not ranks:
            there = ", ".join(str(each.rank) for each in self.ranks)
            raise NoJobError(f"job {self.id} has no rank {rank} on this machine: there are {there}")
        return ranks


def find_jobs() -> list[RunningJob]:
    """All that run, the oldest first; none where there is no /proc."""
    jobs = []
    for pid in list_processes():
        if owner_of(pid) != os.geteuid():
            continue
        links = _links(pid)
        for path, link in links.items():
            label = read_group(link)
            # A rank that talks to others has the file as well; and who has another number than
            # it knows of itself is in a container, whose numbers mean nothing here.
            if label is not None and label.parent == pid:
                with suppress(OSError, ValueError):  # it ended meanwhile
                    job = _describe(label, path, links)
                    if job is not None:
                        jobs.append(job)
    return sorted(jobs, key=lambda job: (job.started, job.id))


def owner_of(pid: int) -> int | None:
    """Whose process it is; None if there is none."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return None


def _links(pid: int) -> dict[str, str]:
    """The files that a process has open: path to what they are called."""
    links = {}
    with suppress(OSError):  # it ended, or hides
        for number in os.listdir(f"/proc/{pid}/fd"):
            path = f"/proc/{pid}/fd/{number}"
            with suppress(OSError):  # closed meanwhile
                links[path] = os.readlink(path)
    return links


def _describe(label: GroupLabel, path: str, links: Mapping[str, str]) -> RunningJob | None:
    """What is known of a group; None if none of its ranks runs any more."""
    processes = _listed(path)
    reports = {
        each.index: (each, where)
        for where, each in ((where, read_rank(link)) for where, link in links.items())
        if each is not None and each.mark == label.mark
    }
    is_spawn = bool(label.what)
    parents_log = _log_of(label.parent)
    board = next((where for where, link in links.items() if BOARD_FILE in link), None)
    # Of a rank that has ended there is nothing left; the others tell what its number was.
    first = next((each.rank - index for index, (each, _) in reports.items()), 0)
    ranks = []
    for index, (pid, listed) in enumerate(processes):
        is_alive = _runs(pid, listed)
        if not is_spawn:
            steps = _steps_on(board, index)
            ranks.append(_program(index, pid, steps, is_alive=is_alive))
            continue
        rank, where = reports.get(index, (RankLabel(label.mark, index, first + index, ""), None))
        ranks.append(_worker(rank, where, pid, label.parent, parents_log, is_alive=is_alive))
    if processes and not any(rank.is_alive for rank in ranks):
        return None
    started = time.time() - (ticks_since_boot() - int(label.mark[_TIME], 16)) / _TICKS
    command = _read_words(label.parent, "cmdline")
    if is_spawn:
        script = script_of(command)
        # Of what was given with -c there is nothing to be said.
        what = f"{label.what} ({script})" if script not in ("", "-c") else label.what
    else:
        what = _program_of(ranks, command)
    kind = SPAWN if is_spawn else RANKRUN
    ranks.sort(key=lambda rank: rank.rank)
    name = label.mark[_NAME]
    grace, mark = label.grace, label.mark
    return RunningJob(name, kind, what, label.parent, started, grace, mark, tuple(ranks))


def _listed(path: str) -> list[tuple[int, int]]:
    """The processes of a group, with a time at which each ran; none while it is being started."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        count = min(count_listed(fd), _MOST_RANKS)
        entries = os.pread(fd, count * ENTRY, FIRST_ENTRY_AT)
    finally:
        os.close(fd)
    words = [int.from_bytes(entries[at : at + 8], "little") for at in range(0, len(entries), 8)]
    return list(zip(words[::2], words[1::2], strict=True))


def _runs(pid: int, listed: int) -> bool:
    """Whether the process is that which was listed, and has not ended."""
    return when_started(pid) <= listed and runs(pid)


def _worker(
    label: RankLabel,
    path: str | None,
    pid: int,
    parent: int,
    parents_log: str | None,
    *,
    is_alive: bool,
) -> RankSeen:
    """A rank that runs a function, with what it reports."""
    state, steps = "ended", b""
    if path is not None:
        with suppress(OSError):  # its end was noted meanwhile
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                state, steps = read_header(fd).state, read_steps(fd)
            finally:
                os.close(fd)
    if not is_alive and state not in ("done", "failed"):
        state = "ended"
    log = (_log_of(pid) or _captured_by(pid, parent)) if is_alive else None
    if log == parents_log and state in BEFORE_FUNCTION:
        log = None  # as the parent's, until the rank has opened its own
    return RankSeen(label.rank, pid, is_alive, label.device, state, path, steps, log)


def _steps_on(board: str | None, index: int) -> bytes:
    """What a program has said on its launcher's board."""
    if board is not None:
        with suppress(OSError):  # it ended meanwhile
            fd = os.open(board, os.O_RDONLY | os.O_CLOEXEC)
            try:
                return read_page(fd, index)
            finally:
                os.close(fd)
    return b""


def _program(index: int, pid: int, steps: bytes, *, is_alive: bool) -> RankSeen:
    """A rank that is a program; its environment says what it was told to be."""
    if not is_alive:
        return RankSeen(index, pid, is_alive, state="ended", steps=steps)
    told = dict(word.partition("=")[::2] for word in _read_words(pid, "environ"))
    number = told.get("RANK") or told.get("PADDLE_TRAINER_ID") or ""
    words = (told.get("RANKSPAWN_DEVICE_TYPE"), told.get("RANKSPAWN_DEVICE"))
    device = " ".join(word for word in words if word)
    rank = int(number) if number.isascii() and number.isdecimal() else index
    return RankSeen(rank, pid, is_alive, device, steps=steps, log=_log_of(pid))


def _log_of(pid: int) -> str | None:
    """The file that a process prints to, if that has a name."""
    try:
        path = os.readlink(f"/proc/{pid}/fd/1")
        # One without a name may look like one that has one.
        same = os.path.samestat(os.stat(path), os.stat(f"/proc/{pid}/fd/1"))
    except OSError:
        return None
    return path if same and os.path.isfile(path) else None


def _captured_by(pid: int, parent: int) -> str | None:
    """The way to what a process prints to a file in memory that its parent shows (``tee``)."""
    path = f"/proc/{pid}/fd/1"
    try:
        is_captured = CAPTURE_FILE in os.path.basename(os.readlink(path))
        # Where the parent is a rank itself, it may be the parent's own.
        is_own = not os.path.samestat(os.stat(path), os.stat(f"/proc/{parent}/fd/1"))
    except OSError:
        return None
    return path if is_captured and is_own else None


def runs(pid: int) -> bool:
    """Whether a process is there, and has not ended."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b") ")[2][:1] not in (b"Z", b"X", b"")
    except OSError:
        return False


def _read_words(pid: int, name: str) -> list[str]:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            words = file.read().rstrip(b"\0").split(b"\0")
    except OSError:
        return []
    return [word.decode("utf-8", "replace") for word in words]


def _program_of(ranks: Sequence[RankSeen], launcher: Sequence[str]) -> str:
    """What ``rankrun`` runs, as its first program was started."""
    for rank in ranks:
        if rank.is_alive and (command := _read_words(rank.pid, "cmdline")):
            return script_of(command, with_arguments=True) or os.path.basename(command[0])
    return script_of(launcher)


def script_of(command: Sequence[str], *, with_arguments: bool = False) -> str:
    """What a command line of Python runs: ``train.py``, ``-m package``; empty if nothing is known.

    Args:
        command: Its words.
        with_arguments: With what the script is given.
    """
    words = list(command)
    if not words:
        return ""
    if not re.match(r"(python|pypy)[0-9.]*$", os.path.basename(words[0])):
        name = os.path.basename(words[0])
        return " ".join([name, *words[1:]]) if with_arguments else name
    at = 1
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        if words[at] == "-c":
            return "-c"
        if words[at] == "-m":
            break
        at += 2 if words[at] in ("-W", "-X") else 1
    rest = words[at:]
    if not rest or rest == ["-"]:
        return ""
    size = 2 if rest[0] == "-m" else 1
    name = " ".join(rest[:2]) if size == 2 else os.path.basename(rest[0])
    return " ".join([name, *rest[size:]]) if with_arguments else name


class NoJobError(Exception):
    """What was asked for is no job, or more than one; the text says it."""


def choose(jobs: Sequence[RunningJob], name: str | None) -> RunningJob:
    """The job that is meant: by the first letters of its name, or by the number of a process.

    Raises:
        NoJobError: There is none, or there are several.
    """
    if not jobs:
        raise NoJobError(_say_none(name))
    found = list(jobs) if name is None else [job for job in jobs if _is_meant(job, name)]
    if len(found) == 1:
        return found[0]
    listed = "".join(f"\n  {job.id}  {job.what}, process {job.parent}" for job in found or jobs)
    if name is None:
        raise NoJobError(f"{len(jobs)} jobs run: say which one{listed}")
    if found:
        raise NoJobError(f"{name} means {len(found)} jobs: give more of the name{listed}")
    raise NoJobError(_say_whose(name) or f"there is no job {name}; these run:{listed}")


def _is_meant(job: RunningJob, name: str) -> bool:
    if name.isascii() and name.isdecimal() and int(name) == job.parent:
        return True
    if job.id.startswith(name.lower()):
        return bool(name)
    return name in {str(rank.pid) for rank in job.ranks}


def _say_none(name: str | None) -> str:
    none = "no job of yours runs on this machine"
    return none if name is None else (_say_whose(name) or f"there is no job {name}: {none}")


def _say_whose(name: str) -> str:
    """A sentence, if the name is that of somebody else's process."""
    owner = owner_of(int(name)) if name.isascii() and name.isdecimal() else None
    if owner is None or owner == os.geteuid():
        return ""
    return (
        f"process {name} is another user's (uid {owner}), whose jobs can be seen and stopped by "
        "that user only"
    )
