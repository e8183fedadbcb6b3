"""Who may call a communicator, and with which ranks: the same over memory and over engines."""

from __future__ import annotations

import os
import threading

from rankspawn.parallel.pieces import check_rank

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.parallel.buffers import Flat


class Usage:
    """A communicator as its process uses it.

    Attributes:
        rank: This rank's number in the group.
        size: How many ranks there are.
        backend: Who carries the data.
    """

    def __init__(self, rank: int, size: int, backend: str, timeout: float | None) -> None:
        self.rank: int = rank
        self.size: int = size
        self.backend: str = backend
        self._timeout = timeout
        self._pid = os.getpid()
        # The thread that has it may take it again: in a handler of a signal, which is then refused.
        self._using = threading.RLock()
        self._is_busy = False
        self._closed = False

    def __repr__(self) -> str:
        return f"<Communicator {self.backend}: rank {self.rank} of {self.size}>"

    def __reduce__(self) -> tuple[object, ...]:
        raise TypeError(
            f"{self!r} cannot be pickled: it belongs to its process, and another has its own from "
            "init_parallel_env()"
        )

    @property
    def _failure(self) -> BaseException | None:
        """What made it unusable."""
        raise NotImplementedError

    def _check_usable(self, name: str) -> None:
        if self._is_busy:  # and by this thread, which is in a handler
            raise RuntimeError(f"{name} was called in the middle of another collective")
        if os.getpid() != self._pid:
            raise RuntimeError(
                f"{name} was called in process {os.getpid()}, a fork of rank {self.rank} (process "
                f"{self._pid}): only the rank itself talks to the others"
            )
        if self._closed:
            raise RuntimeError(f"{name} was called after close()")
        failure = self._failure
        if failure is not None:
            raise RuntimeError(
                f"{name} was called on a communicator that failed before, with "
                f"{type(failure).__name__}: {failure}"
            )

    def _check_rank(self, rank: int, name: str) -> int:
        return check_rank(rank, name, self.size)

    def _check_peer(self, rank: int, name: str) -> int:
        rank = self._check_rank(rank, name)
        if rank == self.rank:
            raise ValueError(f"{name}={rank} is this rank itself")
        return rank

    def _check_rows(self, flat: Flat, name: str) -> None:
        if not flat.shape or flat.shape[0] != self.size:
            raise ValueError(
                f"{name} needs one entry per rank: {self.size} in the first dimension, not the "
                f"shape {flat.shape}"
            )
