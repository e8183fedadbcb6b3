"""Whether a file system answers, asked before anything waits for it for ever.

A server that is gone holds whoever opens a file of it, and neither Ctrl-C nor a time limit ends
that. Only those that can be elsewhere are asked; the mount table, which is the kernel's own, says
which these are.
"""

from __future__ import annotations

import errno
import os
import threading

# Those that are on this machine.
_LOCAL = ("btrfs", "devtmpfs", "ext2", "ext3", "ext4", "f2fs", "overlay", "tmpfs", "xfs", "zfs")
_MOUNTS = "/proc/self/mountinfo"
# A server that is slow or restarts is waited for.
_PATIENCE_SECONDS = 30.0


def check_answers(folder: str) -> None:
    """Make sure that something can be looked up in this folder.

    Args:
        folder: Its absolute path; it need not exist.

    Raises:
        TimeoutError: Nothing came back.
    """
    kind = _kind_of(folder)
    if kind is None or kind in _LOCAL:
        return
    answered = threading.Event()

    def ask() -> None:
        _look_up(folder)
        answered.set()

    # Nothing ends a thread that waits for the system, but then nobody waits for it, either.
    threading.Thread(target=ask, name="rankspawn-file-system", daemon=True).start()
    if not answered.wait(_PATIENCE_SECONDS):
        raise TimeoutError(
            errno.ETIMEDOUT,
            f"its file system ({kind}) does not answer for {_PATIENCE_SECONDS:g} s: choose another "
            "folder, or look at its server",
            folder,
        )


def _look_up(folder: str) -> None:
    os.path.exists(folder)


def _kind_of(folder: str) -> str | None:
    """The type of the file system that a path leads to; None if the system does not tell."""
    best, kind = -1, None
    try:
        with open(_MOUNTS, encoding="utf-8", errors="surrogateescape") as mounts:
            for line in mounts:
                before, _, after = line.partition(" - ")
                # Blanks and the like are octal numbers, as are they nowhere else in it.
                place = before.split()[4].replace(r"\040", " ").rstrip("/")
                # The last one of several in one place is what can be seen.
                if len(place) >= best and f"{folder}/".startswith(f"{place}/"):
                    best, kind = len(place), after.split()[0]
    except OSError:
        return None
    return kind
