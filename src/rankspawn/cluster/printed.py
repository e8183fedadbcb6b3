"""What ranks on other machines print, kept in files here: for people, and for whoever shows it.

- with ``log_dir`` in that folder, as the ranks of one machine would have written it;
- if ranks are shown (``tee``, ``progress``), in a file in memory for each;
- else all lines in one file in memory, each as soon as it is whole, for the program's own output.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rankspawn.descriptors import Owned
from rankspawn.supervise.group import RankOutput
from rankspawn.workers.lines import LineAssembler
from rankspawn.workers.logs import describe_tail, log_path, open_capture, open_log

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Protocol

    class Printed(Protocol):
        """Where output is kept."""

        def add(self, pieces: Sequence[tuple[int, bytes]]) -> None:
            """Index and bytes, as they come."""

        def open(self, index: int) -> RankOutput | None:
            """Where it can be read."""

        def last_lines(self, index: int, told: str) -> str:
            """A rank's last lines, for its error; ``told`` is what its agent says of them."""

        def finish(self) -> None:
            """Nothing more comes."""

        def close(self) -> None:
            """Let go of it."""


class Logs:
    """A file per rank in a folder; no descriptor stays open."""

    def __init__(self, folder: str, *, keep: bool) -> None:
        self._folder, self._keep = folder, keep
        self._starts: dict[int, int] = {}

    def add(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Append to the files."""
        joined: dict[int, list[bytes]] = {}
        for index, piece in pieces:
            joined.setdefault(index, []).append(piece)
        for index, parts in joined.items():
            log = self._open(index)
            try:
                view = memoryview(b"".join(parts))
                while view:
                    view = view[os.write(log.fileno(), view) :]
            finally:
                log.close()

    def make(self, count: int) -> None:
        """The files of all ranks, also of those that print nothing."""
        for index in range(count):
            self._open(index).close()

    def _open(self, index: int) -> Owned:
        path = log_path(self._folder, index)
        log = open_log(path, keep=self._keep or index in self._starts)
        if index not in self._starts:
            self._starts[index] = os.fstat(log.fileno()).st_size
        return log

    def open(self, index: int) -> RankOutput | None:
        """The log."""
        self._open(index).close()
        path = log_path(self._folder, index)
        return RankOutput(Owned(os.open(path, os.O_RDONLY | os.O_CLOEXEC)), self._starts[index])

    def last_lines(self, index: int, told: str) -> str:  # noqa: ARG002 - the file has all
        """The end of the file, and its path."""
        path = log_path(self._folder, index)
        return describe_tail(path, start=self._starts.get(index, 0))

    def finish(self) -> None:
        """Every file is closed already."""

    close = finish


class InMemory:
    """A file without a name for each rank that prints, or is shown."""

    def __init__(self) -> None:
        self._files: dict[int, tuple[Owned, Owned]] = {}

    def _of(self, index: int) -> tuple[Owned, Owned]:
        if index not in self._files:
            self._files[index] = open_capture()
        return self._files[index]

    def add(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Append to the files."""
        for index, piece in pieces:
            _append(self._of(index)[0], piece)

    def open(self, index: int) -> RankOutput | None:
        """The file of a rank."""
        _, read = self._of(index)
        return RankOutput(Owned(os.dup(read.fileno())), is_captured=True)

    def last_lines(self, index: int, told: str) -> str:  # noqa: ARG002 - of all ranks alike
        """What the rank's agent has of it."""
        return told

    def finish(self) -> None:
        """Let go of the files; who shows them has them open."""
        for files in self._files.values():
            for file in files:
                file.close()

    close = finish


class Merged:
    """One file for the lines of all ranks: without a name, unless another one is given."""

    def __init__(self, files: tuple[Owned, Owned] | None = None) -> None:
        """Take these two, to write and to read."""
        self._write, self._read = files or open_capture()
        self._lines: dict[int, LineAssembler] = {}

    def add(self, pieces: Sequence[tuple[int, bytes]]) -> None:
        """Append the lines that are whole."""
        for index, piece in pieces:
            lines = self._lines.setdefault(index, LineAssembler()).feed(piece)
            if lines:
                _append(self._write, b"".join(line + b"\n" for line in lines))

    def open(self, index: int) -> RankOutput | None:
        """The file, which stands for the first rank."""
        if index:
            return None
        return RankOutput(Owned(os.dup(self._read.fileno())), is_captured=True)

    def last_lines(self, index: int, told: str) -> str:  # noqa: ARG002 - it was seen already
        """Nothing: it is where the program prints."""
        return ""

    def finish(self) -> None:
        """Append what is not whole, and let go of the file; who shows it has it open."""
        for lines in self._lines.values():
            rest = lines.finish()
            if rest and not self._write.closed:
                _append(self._write, b"".join(line + b"\n" for line in rest))
        self.close()

    def close(self) -> None:
        """Let go of the file."""
        self._write.close()
        self._read.close()


def _append(file: Owned, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file.fileno(), view) :]
