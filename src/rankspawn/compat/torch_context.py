"""The context of ``compat.torch``."""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import tempfile
import uuid
from collections.abc import Sequence
from typing import Any, Self

from rankspawn.caller import at_users_line
from rankspawn.supervise.context import MultiprocessContext, T_co
from rankspawn.supervise.outcome import End

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess

    from rankspawn.supervise.supervisor import Supervisor


class ProcessContext(MultiprocessContext[T_co]):
    """A group of workers as torch has it, and all that :class:`MultiprocessContext` can do.

    Args:
        processes: Started processes of multiprocessing.
        error_files: For each of them the path of a file in which it pickles its traceback, as
            text, if it fails.
    """

    def __init__(self, processes: Sequence[BaseProcess], error_files: Sequence[str]) -> None:
        from rankspawn.compat.adopted import adopt

        super().__init__(adopt(processes, error_files))
        self._error_files: list[str] | None = list(error_files)

    @classmethod
    def over(cls, supervisor: Supervisor) -> Self:
        """The context of a group that was started here."""
        context = cls.__new__(cls)
        MultiprocessContext.__init__(context, supervisor)
        context._error_files = None
        return context

    @at_users_line
    def join(self, timeout: float | None = None, grace_period: float | None = None) -> bool:
        """Wait for the workers, and stop all of them if one fails.

        As :meth:`MultiprocessContext.join`, but for the grace period.

        Args:
            timeout: Seconds to wait; ``None`` waits for as long as they run.
            grace_period: After a failure, seconds that the others get to end by themselves, and
                once more after SIGTERM. ``None``: SIGTERM at once, and 30 s.
        """
        self._supervisor.patience = 0.0 if grace_period is None else self._grace(grace_period)
        try:
            return super().join(timeout, grace_period)
        finally:
            if self._error_files is not None:
                self._write_error_files(self._error_files)

    def pids(self) -> list[int]:
        """The process ids by rank."""
        return [process.pid or 0 for process in self.processes]

    @property
    def error_files(self) -> list[str]:
        """For each rank the path of a file with its pickled traceback; there if it raised.

        Nobody here needs them. So they are written for a program that has asked, and removed at
        its exit.
        """
        if self._error_files is None:
            name = f"rankspawn-errorfile-{uuid.uuid4().hex}"
            folder, count = tempfile.gettempdir(), len(self.processes)
            paths = [os.path.join(folder, f"{name}-{index}.pickle") for index in range(count)]
            atexit.register(_remove, paths)
            self._error_files = paths
            self._write_error_files(paths)
        return self._error_files

    def _write_error_files(self, paths: Sequence[str]) -> None:
        for index, path in enumerate(paths):
            outcome = self._group.outcomes.get(index)
            raised = outcome is not None and outcome.end is End.RAISED
            if raised and not os.path.exists(path):
                with open(path, "wb") as file:
                    pickle.dump(self._supervisor.take_error(index), file)


def _remove(paths: Sequence[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)


def context_class() -> type[ProcessContext[Any]]:
    """The class of a context: also torch's if torch is loaded."""
    from rankspawn.compat.peers import also

    return also(ProcessContext, "torch.multiprocessing.spawn", "ProcessContext")
