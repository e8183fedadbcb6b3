"""The folder of this node's logs, and that one job at a time writes to each of them.

There is a lock on each log, advisory, on the log itself, so that no other file lies in the folder.
The launcher has it and no worker does: what a worker leaves running after a success does not hold
up the next job. The kernel lets go of it when the launcher ends, however that happens.

A folder that was asked for is used or refused. The default one is Paddle's, ``log``, and many a
script looks there; only where another job has it, the logs go to a folder of the run in it.
"""

from __future__ import annotations

import fcntl
import os
import stat

from rankspawn.descriptors import Owned, make_room_for_descriptors
from rankspawn.file_systems import check_answers
from rankspawn.launch.flags import UsageError
from rankspawn.telling import get_logger
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from rankspawn.descriptors import Closable
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.launch.session import StartWorkers

logger: logging.Logger = get_logger(__name__)


class LogFolder:
    """Where the programs of this node log.

    Args:
        config: What was asked for, with an absolute path of the logs.

    Attributes:
        path: The folder; another one once it was found to be in use.

    Raises:
        UsageError: It cannot be made.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self.path: str = config.log_dir
        self._config = config
        self._kept: LogLocks | None = None
        _make(self.path)

    def claim(
        self, specs: list[ProgramSpec], instruction: StartWorkers, resources: list[Closable]
    ) -> list[ProgramSpec]:
        """Have nobody else write to the logs of these programs.

        Args:
            specs: What is about to be started.
            instruction: Why.
            resources: Gets what has to be closed with the programs.

        Returns:
            The programs, told of another folder where the logs go there.

        Raises:
            UsageError: Another job has a folder that was asked for.
        """
        names = [spec.log_name for spec in specs]
        if self._kept is None and not self._lock(names, instruction, resources):
            self._move(instruction.run_id)
            self._lock(names, instruction, resources)
        if self.path == self._config.log_dir:
            return specs
        return [replace(spec, env={**spec.env, "PADDLE_LOG_DIR": self.path}) for spec in specs]

    def close(self) -> None:
        """Let go of the logs; a second call does nothing."""
        if self._kept is not None:
            self._kept.close()

    def _lock(
        self, names: Sequence[str], instruction: StartWorkers, resources: list[Closable]
    ) -> bool:
        """Lock the logs; False if another job has the default folder."""
        locks = LogLocks(self.path, names)
        # Later on who has them is a node of this very job: one that was lost, and whose launcher
        # has not noticed.
        if locks.taken and not instruction.restarts:
            locks.close()
            if "log_dir" in self._config.given:
                raise UsageError(
                    f"another job writes to {locks.taken[0]} in --log_dir {self.path}: give each "
                    "job a folder of its own, or start this one when that one has ended"
                )
            return False
        if self._config.spans_machines:
            # Another node may have these ranks, and so these logs, in the next generation.
            resources.append(locks)
        else:
            self._kept = locks
        return True

    def _move(self, run_id: str) -> None:
        job = self._config.job_id.replace(os.sep, "_")
        # The same on all nodes that share the folder.
        path = os.path.join(self.path, f"{job}-{run_id}")
        logger.warning("another job writes to %s: the logs of this one are in %s", self.path, path)
        _make(path)
        self.path = path


class LogLocks:
    """The locks on some logs, as far as nobody else has them.

    Logs that cannot be locked, such as a pipe, or one on a file system without locks, are left
    alone; whether they can be written shows when they are.

    Args:
        folder: Of the logs; it is there.
        names: Of the logs.

    Attributes:
        taken: The names of those that another launcher writes to.
    """

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        self._held: list[Owned] = []
        self.taken: list[str] = []
        make_room_for_descriptors(len(names))
        try:
            for name in names:
                self._lock(folder, name)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Let go of them; a second call does nothing."""
        for held in self._held:
            held.close()

    def _lock(self, folder: str, name: str) -> None:
        # Not to wait for the reader of a pipe.
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
        try:
            log = Owned(os.open(os.path.join(folder, name), flags, 0o644))
        except OSError:
            return
        self._held.append(log)
        if not stat.S_ISREG(os.fstat(log.fileno()).st_mode):
            return
        try:
            # Of the open file, not of the process: a fork of the launcher that closes its copy
            # does not end it. On NFS it counts on all machines.
            fcntl.flock(log.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.taken.append(name)
        except OSError:
            return


def _make(path: str) -> None:
    """Make the folder of the logs, or say before anything is started that it cannot be."""
    try:
        check_answers(path)
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--log_dir {path} cannot be made a folder for the logs: {error.strerror}"
        ) from error
