"""One worker as a multiprocessing process, which programs know how to handle."""

from __future__ import annotations

from multiprocessing import process

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.workers.popen import WorkerPopen


class RankProcess(process.BaseProcess):
    """The process of one rank; ``is_alive``, ``exitcode``, ``join`` and the rest as usual."""

    _start_method = None  # multiprocessing then leaves a forked worker's default as it is

    def __init__(self, rank: int, daemon: bool) -> None:
        super().__init__(name=f"rank-{rank}", daemon=daemon)
        self.rank = rank

    def has_started(self, popen: WorkerPopen) -> None:
        """Take charge of the started process, in place of ``start()``.

        multiprocessing forbids daemonic processes to have children, because these would be
        orphaned; ours end with their parent. And it looks after all other children at each
        start, which is thousands of system calls for a large group.
        """
        self._popen = popen
        self._sentinel = popen.sentinel
        # multiprocessing waits for these at the parent's exit.
        process._children.add(self)  # type: ignore[attr-defined]

    @property
    def popen(self) -> WorkerPopen:
        """The started process."""
        popen: WorkerPopen = self._popen
        return popen
