"""A program of ``rankrun`` that imports us says where it is, as a rank of ``spawn`` does.

Runs in the program, where it imports the package. Whoever asks finds the file by its name among
those that the program has open, as ``rankspawn stacks`` and the launcher do.
"""

from __future__ import annotations

import os

from rankspawn.descriptors import anonymous_file
from rankspawn.workers.board import STEPS_VARIABLE
from rankspawn.workers.parcel import WORD, pack_words
from rankspawn.workers.report import (
    IN_FUNCTION,
    STACKS_AT,
    STACKS_FD_WORD,
    STACKS_SIGNAL,
    with_high_number,
    write_stacks_on_request,
)

# What the file is called in /proc/<pid>/fd. It begins as the report of a worker does, as far as
# one who asks reads that.
STACKS_FILE = "rankspawn-stacks"


def answer_stack_requests() -> None:
    """Answer from now on, if this process is what the launcher has started.

    What a rank starts has its variables as well, and is no rank.
    """
    launcher = os.environ.get(STEPS_VARIABLE, "").partition(":")[0]
    if not STACKS_SIGNAL or launcher != str(os.getppid()):
        return
    try:
        fd = with_high_number(anonymous_file(STACKS_FILE))
    except OSError:  # it has no room for that, or no number; then nobody finds it
        return
    try:
        os.lseek(fd, STACKS_AT, os.SEEK_SET)
        os.pwrite(fd, pack_words([IN_FUNCTION]), 0)
        os.pwrite(fd, pack_words([fd]), STACKS_FD_WORD * WORD)
        write_stacks_on_request(fd)
    except (OSError, ValueError):  # it is imported in a thread
        os.close(fd)


def find_stacks(pid: int) -> str | None:
    """Where such a program answers; None if it does not."""
    folder = f"/proc/{pid}/fd"
    try:
        for number in os.listdir(folder):
            if STACKS_FILE in os.readlink(f"{folder}/{number}"):
                return f"{folder}/{number}"
    except OSError:  # it ended, or has closed one of them meanwhile
        pass
    return None
