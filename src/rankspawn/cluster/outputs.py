"""What the ranks of a node print, read from the files that they write to. Runs in the agent."""

from __future__ import annotations

from rankspawn.workers.tail import CHUNK, Growth, Tail

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator

    from rankspawn.supervise.group import Group


class Outputs:
    """The output of each rank of a group; whoever made it closes it.

    It is read only as fast as it is taken on the way to the driver: what is not read stays in the
    files, so that no rank ever waits for a slow line.
    """

    def __init__(self, group: Group, count: int) -> None:
        self._tails: list[Tail] = []
        self._growth = Growth()
        try:
            for index in range(count):
                output = group.open_output(index)
                assert output is not None, "an agent's ranks write to files"
                self._tails.append(Tail(output.file, output.start))
            self._growth.watch_only(f"/proc/self/fd/{tail.file.fileno()}" for tail in self._tails)
        except BaseException:
            self.close()
            raise

    def fileno(self) -> int | None:
        """Readable once something was printed; None where one has to look."""
        return self._growth.fileno()

    def note_growth(self) -> None:
        """Make that unreadable, before a look."""
        self._growth.wait(0)

    def read(self) -> Iterator[tuple[int, bytes]]:
        """Index and piece, one for each rank that has printed something."""
        for index, tail in enumerate(self._tails):
            if piece := tail.read():
                tail.free_what_was_read()
                yield index, piece

    def read_rest(self, index: int) -> Iterator[bytes]:
        """All that is left of one rank, which has ended."""
        tail = self._tails[index]
        tail.end_here()  # what it has started may print for ever
        while piece := tail.read():
            yield piece
            if len(piece) < CHUNK:
                return

    def close(self) -> None:
        """Let go of all files."""
        for tail in self._tails:
            tail.close()
        self._growth.close()
