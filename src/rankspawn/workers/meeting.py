"""A file in memory at which the ranks of a group can meet, if they want to talk to each other.

Made by whoever starts the group, whichever way: one descriptor, and no memory but for a page with
the ranks' process ids. Ranks find it through a variable and open it at this process
(``/proc/<pid>/fd/<n>``), so no launcher has to hand it on, and a rank that does not ask for it
has nothing of it. Only this user may follow that link, the file has no name that could be left
behind, and each start of a group has one of its own.
"""

from __future__ import annotations

import os

from rankspawn.descriptors import Owned, anonymous_file

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

# Where ranks meet: the process that has the file, its number there, its device and inode.
MEETING_VARIABLE = "RANKSPAWN_MEETING"
# The file begins with a page of 64-bit words: one that is the number of processes once all are
# listed, then two for each of them: its id, and a time at which it ran already.
# In front of them, how many breakpoints the rank that is debugged has passed.
LISTED_AT, PASSED_AT, FIRST_ENTRY_AT, ENTRY = 0, 8, 64, 16


# What the files of a group and of a rank are called. The links in /proc/<pid>/fd show these names,
# to this user and nobody else and as long as the process has the file: so a group can be found
# from outside (inspect/labels.py reads them), without a file that a crash would leave.
GROUP_FILE, RANK_FILE = "rankspawn-meeting", "rankspawn-outcome"
# Of the mark there is a part only: who has a file mapped whose name holds the whole of it is taken
# for one of the job. It tells when it was made, and enough of what is random.
_PART_OF_MARK = 24
# A name in memory may have 249 bytes, and one in a folder not many more.
_LONGEST = 100


def group_name(mark: str, grace: float, what: str) -> str:
    """The name of a group's meeting place.

    Args:
        mark: The group's.
        grace: Seconds that its workers get to end.
        what: The function that it runs; empty for programs.
    """
    return f"{GROUP_FILE}:{os.getpid()}:{mark[:_PART_OF_MARK]}:{grace:g}:{_plain(what)}:"


def rank_name(mark: str, index: int, rank: int, changes: Mapping[str, str | None]) -> str:
    """The name of a rank's outcome file; ``changes`` are those of its environment."""
    device = (changes.get("RANKSPAWN_DEVICE_TYPE"), changes.get("RANKSPAWN_DEVICE"))
    words = " ".join(word for word in device if word)
    return f"{RANK_FILE}:{mark[:_PART_OF_MARK]}:{index}:{rank}:{_plain(words)}:"


def _plain(text: str) -> str:
    """A text that may stand between colons in the name of a file."""
    text = text.encode("ascii", "replace").decode().replace(":", ";").replace("/", "|")
    return text[:_LONGEST]


class MeetingPlace(Owned):
    """The file, from its making to the end of the group; ranks that have it keep it.

    Attributes:
        address: The value of the variable that leads to it.
    """

    __slots__ = ("address",)

    def __init__(self, name: str = GROUP_FILE) -> None:
        super().__init__(anonymous_file(name))
        os.fchmod(self._fd, 0o600)
        status = os.fstat(self._fd)
        self.address: str = f"{os.getpid()}:{self._fd}:{status.st_dev}:{status.st_ino}"


def write_entries(fd: int, pids: Sequence[int]) -> None:
    """List processes that run by now; a process that has such an id later is a stranger."""
    from rankspawn.workers.marker import ticks_since_boot

    now = ticks_since_boot().to_bytes(8, "little")
    entries = b"".join(pid.to_bytes(8, "little") + now for pid in pids)
    os.pwrite(fd, entries, FIRST_ENTRY_AT)
    # By a call of its own: whoever sees the number finds the entries.
    os.pwrite(fd, len(pids).to_bytes(8, "little"), LISTED_AT)


def count_listed(fd: int) -> int:
    """How many processes are listed; none as long as they are being started."""
    return int.from_bytes(os.pread(fd, 8, LISTED_AT), "little")
