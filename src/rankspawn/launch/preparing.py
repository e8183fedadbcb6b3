"""What a start on this machine alone and one among many nodes have in common."""

from __future__ import annotations

import logging
import os

from rankspawn.launch.flags import UsageError
from rankspawn.launch.pod import name_of
from rankspawn.launch.words import count_workers

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.plan.job import Job

__all__ = ["TemporaryFolder", "announce", "make_log_folder", "warn_about_cpu"]

logger = logging.getLogger(__name__)


def make_log_folder(path: str) -> None:
    """Make the folder of the logs, or say before anything is started that it cannot be.

    Raises:
        UsageError: It cannot be made.
    """
    try:
        os.makedirs(path, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--log_dir {path} cannot be made a folder for the logs: {error.strerror}"
        ) from error


def announce(specs: Sequence[ProgramSpec], log_dir: str, *, where: str = "") -> None:
    """Say what is about to be started."""
    logger.info("%s%s, logs in %s", where, count_workers(len(specs)), log_dir)
    for spec in specs:
        # Only what we set ourselves: the rest of the environment is nobody else's business.
        variables = " ".join(
            f"{name}={value}" for name, value in sorted(spec.env.items()) if value is not None
        )
        logger.debug("%s: %s\n  %s", name_of(spec), " ".join(spec.command), variables)


def warn_about_cpu(job: Job) -> None:
    """Say that there are no devices, if nobody said that this is meant."""
    if job.warning:
        # It is written for spawn's option.
        logger.warning("%s", job.warning.replace("backend='gloo'", "--device_type cpu"))


class TemporaryFolder:
    """A folder among the temporary files, removed with what is in it."""

    def __init__(self, name: str) -> None:
        import tempfile

        self.path = os.path.join(tempfile.gettempdir(), name)
        os.mkdir(self.path, 0o700)

    def close(self) -> None:
        """Remove it; a second call does nothing."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
