"""One worker as a multiprocessing process, which programs know how to handle."""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import process

from rankspawn.workers.popen import WorkerPopen


class RankProcess(process.BaseProcess):
    """The process of one rank; ``is_alive``, ``exitcode``, ``join`` and the rest as usual."""

    _start_method = None  # multiprocessing then leaves a forked worker's default as it is

    def __init__(self, rank: int, launch: Callable[[RankProcess], WorkerPopen], daemon: bool):
        super().__init__(name=f"rank-{rank}", daemon=daemon)
        self.rank = rank
        self._launch: Callable[[RankProcess], WorkerPopen] | None = launch
        # What a forked worker runs in place of a target.
        self.body: Callable[[], int] = int

    def start(self) -> None:
        """Start it, also from a daemonic process.

        multiprocessing forbids those to have children, because these would be orphaned; ours
        end with their parent. And it looks after all other children at each start, which is
        thousands of system calls for a large group.
        """
        launch = self._launch
        assert launch is not None, "a process can be started once"
        try:
            self._popen = launch(self)
        finally:
            # What was needed for the start is not kept for as long as the process object.
            self._launch = None
            self.body = int
        self._sentinel = self._popen.sentinel
        # multiprocessing waits for these at the parent's exit.
        process._children.add(self)  # type: ignore[attr-defined]

    def run(self) -> None:
        """Runs in a forked worker."""
        raise SystemExit(self.body())

    @property
    def popen(self) -> WorkerPopen:
        """The started process."""
        popen: WorkerPopen = self._popen
        return popen
