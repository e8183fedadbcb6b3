"""What ``preload="auto"`` learns: the modules that ranks of a call had to import by themselves.

They stand in one file in memory per program, a name a line, in the order of the imports. A server
reads it when it starts; the first of its ranks that ends adds what is missing, and the next call
finds the file grown and takes a new server. So the parent itself never looks at a name.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence, Set

    from rankspawn.descriptors import Owned

# A second lesson has to be worth a new server: programs import a few modules now and then.
_WORTH_A_SERVER = 32
# Of the program or of this library, under names that mean nothing elsewhere.
_NOT_LEARNED = ("rankspawn", "__main__", "__mp_main__")

_file: Owned | None = None


def lessons() -> Owned:
    """The file of this program. Runs in the parent."""
    global _file  # noqa: PLW0603 - the program has one
    if _file is None or _file.closed:
        from rankspawn.descriptors import Owned, anonymous_file
        from rankspawn.handlers import handlers_held

        with handlers_held():  # or one could come between a descriptor and whoever closes it
            _file = Owned(anonymous_file("rankspawn-imports"))
    return _file


def forget() -> None:
    """Close the file; the next call begins anew."""
    if _file is not None:
        _file.close()


class Notebook:
    """A server's own view of the file. Runs in the server, and after a fork in the worker."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._path = f"/proc/{os.getpid()}/fd/{fd}"
        self._text = os.pread(fd, os.fstat(fd).st_size, 0).decode()
        self._known: Set[str] = frozenset()

    def names(self, left_out: Sequence[str]) -> list[str]:
        """What was learned so far, but for what was left out, or breaks in a fork anyway."""
        from rankspawn.workers.main_imports import BREAK_IN_A_FORK

        names = dict.fromkeys(self._text.splitlines())
        return [
            name
            for name in names
            if name not in left_out and name.partition(".")[0] not in BREAK_IN_A_FORK
        ]

    def know(self) -> None:
        """From now on what is imported would be worth a line."""
        self._known = frozenset(sys.modules)

    def leave(self) -> None:
        """In a worker: the descriptor is not the program's, which may close all that it finds."""
        os.close(self._fd)

    def add(self) -> None:
        """At the end of a worker: write what it has imported, if it is the first to do so."""
        found = [name for name in list(sys.modules) if name not in self._known and _is_own(name)]
        if len(found) < (_WORTH_A_SERVER if self._text else 1):
            return
        try:
            fd = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        except OSError:  # the server is gone, or may not be looked at
            return
        if os.fstat(fd).st_size == len(self._text.encode()):
            os.write(fd, "".join(f"{name}\n" for name in found).encode())
        os.close(fd)


def _is_own(name: str) -> bool:
    """Whether an import of this name would bring the module that has it."""
    spec = getattr(sys.modules[name], "__spec__", None)
    return getattr(spec, "name", None) == name and name.partition(".")[0] not in _NOT_LEARNED
