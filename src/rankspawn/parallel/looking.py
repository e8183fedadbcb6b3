"""Who waits for whom, seen from outside: any process of this user can look.

No rank has to help. All that is needed stands in the memory that ranks share: how far each is, what
it called last, and how long it has waited for whom. So it is seen also if ranks are stopped, or
busy in C code. A look is a snapshot: of ranks that are not stuck, it says where they were a moment
ago.
"""

from __future__ import annotations

import mmap
import os
import sys
import time
from contextlib import suppress
from typing import NamedTuple

from rankspawn.parallel.announcing import Announcements
from rankspawn.parallel.layout import ANNOUNCED, MESSAGE, PID, SINCE, STATE, TO, Layout
from rankspawn.parallel.peers import JOINED
from rankspawn.parallel.statistics import Shown, Talk
from rankspawn.workers.meeting import ENTRY, FIRST_ENTRY_AT, count_listed

TYPE_CHECKING = False  # typing's own, which checkers take for true
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

# As the links in /proc call them: the memory of a whole group, and that of a part of it.
_GROUPS, _PARTS = "rankspawn-meeting", "rankspawn-part"
_PHASE, _HALF = 0xFFFF, 0x8000


class Waiting(NamedTuple):
    """What a rank waits for.

    Attributes:
        collective: What it is in: ``all_reduce``, ``recv`` and the like.
        waits_for: The ranks that have not come.
        seconds: For how long.
        call: All that it called, and at which line; of messages, their name alone.
    """

    collective: str
    waits_for: tuple[int, ...]
    seconds: float
    call: str


def waiting(pids: Mapping[int, int], holders: Iterable[int] = ()) -> dict[int, Waiting]:
    """Which ranks wait, in which collective, and for whom; those that do not are left out.

    Args:
        pids: Rank to its process.
        holders: Other processes that may have the ranks' memory open: whoever started them.
    """
    found: dict[int, Waiting] = {}
    for file, ranks in _files(pids, holders):
        found |= _waiting(file, ranks)
    return found


def stragglers(pids: Mapping[int, int], holders: Iterable[int] = ()) -> dict[int, float]:
    """Rank to the seconds that others have waited for it so far, the longest first."""
    total: dict[int, float] = {}
    for file, ranks in _files(pids, holders):
        for place, rank in ranks.items():
            total[rank] = total.get(rank, 0.0) + file.waited_for(place)
    order = sorted(total, key=total.__getitem__, reverse=True)
    return {rank: total[rank] for rank in order if total[rank]}


def awaited(found: Mapping[int, Waiting]) -> dict[int, list[int]]:
    """Rank that others wait for to these; of those that wait themselves, whoever they wait for.

    So a rank that is stuck is named once for all that it holds up, also through others.
    """
    named: dict[int, list[int]] = {}
    for rank in sorted(found):
        seen, open_ = {rank}, [rank]
        while open_:
            for other in found[open_.pop()].waits_for:
                if other in seen:
                    continue
                seen.add(other)
                if other in found:
                    open_.append(other)
                else:
                    named.setdefault(other, []).append(rank)
    return named


class Talks:
    """What ranks exchange, as whoever started them sees it, also when they are gone.

    Args:
        pids: Rank to its process.
        holder: Who started them, and has their memory open: only there it is looked for.
    """

    def __init__(self, pids: Mapping[int, int], holder: int) -> None:
        self._ranks = {pid: rank for rank, pid in pids.items()}
        self._fd: int | None = None
        self._file: _File | None = None
        for fd in _descriptors([holder] if pids else [], _GROUPS, set()):
            if self._fd is None and _first_listed(fd) in self._ranks:
                self._fd = fd
            else:
                os.close(fd)

    def look(self) -> dict[int, Talk]:
        """By rank; nothing as long as none of them has asked for the others."""
        if self._file is None and self._fd is not None:
            self._file = _open(self._fd)
        if self._file is None:
            return {}
        known = _ranks_of(self._file, self._ranks)
        found = {}
        for place, rank in known.items():
            talk = self._file.talk(place)
            waits = {
                known[other]: each for other, each in talk.waited_for.items() if other in known
            }
            found[rank] = talk._replace(waited_for=waits)
        return found

    def close(self) -> None:
        """Let go of the memory; a second call does nothing."""
        if self._file is not None:
            self._file.close()
        if self._fd is not None:
            os.close(self._fd)
        self._file = self._fd = None


class _File:
    """The memory of some ranks, as somebody who has no part in it sees it."""

    def __init__(self, fd: int, size: int) -> None:
        self.size = size
        self._layout = Layout(size)
        self._map = mmap.mmap(fd, self._layout.controls_end, prot=mmap.PROT_READ)
        whole = memoryview(self._map)
        self._words = whole.cast("I")
        self._long = whole.cast("Q")
        self._double = whole.cast("d")
        self._whole = whole
        self._announcements = Announcements(whole, self._layout, 0, range(size))

    def close(self) -> None:
        self._double.release()
        for view in (self._long, self._words, self._whole):
            view.release()
        self._map.close()

    def listed(self, place: int) -> int:
        """The process that was started as this one."""
        return int(self._long[(FIRST_ENTRY_AT + ENTRY * place) // 8])

    def joined(self, place: int) -> int:
        """The process that takes part as this one; 0 for none yet."""
        return self._word(place, PID)

    def _word(self, place: int, which: int) -> int:
        return int(self._words[(self._layout.control(place) + which) // 4])

    def phases(self) -> list[int]:
        """How many meetings each has come to, in the lowest bits."""
        last = []
        for place in range(self.size):
            even, odd = (
                self._long[self._layout.entries(parity) // 8 + place] & _PHASE for parity in (0, 1)
            )
            last.append(int(odd if (odd - even) & _PHASE < _HALF else even))
        return last

    def is_at_work(self, place: int) -> bool:
        return self._word(place, STATE) == JOINED

    def call(self, place: int) -> str:
        """What it called last, and where."""
        return self._announcements.describe(place, self._word(place, ANNOUNCED))

    def message(self, place: int) -> tuple[str, int] | None:
        """The message that it waits for: what it called, and the place of the other rank."""
        word = self._word(place, MESSAGE)
        if not word:
            return None
        return ("send" if word & TO else "recv"), (word & ~TO) - 1

    def since(self, place: int) -> float:
        """When it went to sleep, if it sleeps; else 0."""
        return float(self._double[(self._layout.control(place) + SINCE) // 8])

    def talk(self, place: int) -> Talk:
        """What it shows of its calls."""
        shown = Shown(self._whole, self._layout, place)
        try:
            return shown.read()
        finally:
            shown.close()

    def waited_for(self, place: int) -> float:
        """How long all others have waited for this one."""
        others = (other for other in range(self.size) if other != place)
        return sum(self._double[self._layout.waited(other) // 8 + place] for other in others)


def _waiting(file: _File, ranks: Mapping[int, int]) -> dict[int, Waiting]:
    """The same of one file; ``ranks`` has the rank of each place in it."""
    phases = file.phases()
    # Serial numbers: the greatest is half of all of them at most ahead of the others.
    latest = max(phases, key=lambda phase: (phase - phases[0] + _HALF) & _PHASE)
    late = tuple(ranks[place] for place in ranks if phases[place] != latest)
    found = {}
    for place, rank in ranks.items():
        if not file.is_at_work(place):
            continue
        message, since = file.message(place), file.since(place)
        seconds = max(0.0, time.perf_counter() - since) if since else 0.0
        if message is not None and message[1] in ranks:
            name, other = message
            found[rank] = Waiting(name, (ranks[other],), seconds, name)
        elif late and phases[place] == latest:
            call = file.call(place)
            found[rank] = Waiting(_name_in(call), late, seconds, call)
    return found


def _name_in(call: str) -> str:
    """``all_reduce`` of ``all_reduce of float64[3] op=sum at train.py:9``."""
    head = call.replace("(", " ").split(maxsplit=1)
    return head[0] if head else ""


def _files(
    pids: Mapping[int, int], holders: Iterable[int]
) -> Iterator[tuple[_File, dict[int, int]]]:
    """The memory of the group and of its parts, each with the rank of each place in it."""
    ranks = {pid: rank for rank, pid in pids.items()}
    seen: set[tuple[int, int]] = set()
    # A rank may be a process that the one which was started has started; it is known after this.
    for kind in (_GROUPS, _PARTS):
        for file in _opened([*ranks, *holders], kind, seen):
            known = _ranks_of(file, ranks)
            if known:
                yield file, known


def _opened(pids: Iterable[int], kind: str, seen: set[tuple[int, int]]) -> Iterator[_File]:
    """The files of a kind that processes have open, each once and open until the next."""
    for fd in _descriptors(pids, kind, seen):
        try:
            file = _open(fd)
        finally:
            os.close(fd)
        if file is None:
            continue
        try:
            yield file
        finally:
            file.close()


def _descriptors(pids: Iterable[int], kind: str, seen: set[tuple[int, int]]) -> Iterator[int]:
    """Descriptors of the files of a kind that processes have open; each file once."""
    for pid in list(pids):
        numbers: list[str] = []
        with suppress(OSError):  # ended, or another user's
            numbers = os.listdir(f"/proc/{pid}/fd")
        for number in numbers:
            path = f"/proc/{pid}/fd/{number}"
            with suppress(OSError):  # closed meanwhile
                if kind not in os.readlink(path):
                    continue
                status = os.stat(path)
                if (status.st_dev, status.st_ino) not in seen:
                    seen.add((status.st_dev, status.st_ino))
                    yield os.open(path, os.O_RDONLY | os.O_CLOEXEC)


def _first_listed(fd: int) -> int:
    return int.from_bytes(os.pread(fd, 8, FIRST_ENTRY_AT), sys.byteorder)


def _open(fd: int) -> _File | None:
    """None as long as nobody has joined: then nothing is in it."""
    size = count_listed(fd)
    if not size or os.fstat(fd).st_size < Layout(size).controls_end:
        return None
    try:
        return _File(fd, size)
    except OSError:  # no memory to map it
        return None


def _ranks_of(file: _File, ranks: dict[int, int]) -> dict[int, int]:
    """Place to rank, of those that are meant; adds the processes that have joined as them."""
    known = {}
    for place in range(file.size):
        for pid in (file.listed(place), file.joined(place)):
            if pid in ranks:
                known[place] = ranks[pid]
        if place in known and file.joined(place):
            ranks.setdefault(file.joined(place), known[place])
    return known
