"""Jobs of Slurm's that outlive who submitted them: sbatch, and a way in while they run."""

from __future__ import annotations

import logging
import os
import shlex
import subprocess
import time
from functools import partial
from pathlib import Path

from rankspawn.cluster.engine import TIME_TO_KILL
from rankspawn.cluster.kept_jobs import KEY_VARIABLE
from rankspawn.cluster.programs import ProgramChannel, SharedDeadline
from rankspawn.cluster.slurm import PATIENCE, Slurm, environ_of_steps
from rankspawn.cluster.slurm_words import explain

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

_log = logging.getLogger(__name__)
# Between two questions whether a job runs: Slurm has nothing that could be waited for.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0
_COMING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESIZING"}
# It may have been put back into the queue, which is said only when it is out of there.
_COMING.add("COMPLETING")
_RUNNING = {"RUNNING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}


def submit(words: Sequence[str], python: str, folder: Path, key: bytes) -> str:
    """Have the keeper of a folder run in a new job; the job's number.

    Raises:
        RuntimeError: Slurm refuses it, with its words.
    """
    keeper = shlex.join([python, "-m", "rankspawn.cluster.keeper", str(folder)])
    done = subprocess.run(
        ["sbatch", "--parsable", "--export=ALL", *words],
        input=f"#!/bin/sh\nexec {keeper}\n",
        # Not in the script, which Slurm shows; a job's environment is for its user alone.
        env={**environ_of_steps(os.environ), KEY_VARIABLE: key.hex()},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"Slurm took no job: {done.stderr.strip()}")
    return done.stdout.strip().partition(";")[0]


def cancel(number: str) -> None:
    """Have a job ended."""
    subprocess.run(["scancel", number], capture_output=True, check=False)


def state_of(number: str) -> tuple[str, str]:
    """What Slurm calls the state of a job, and the node of its keeper; empty if it is not known.

    Raises:
        RuntimeError: Slurm cannot be asked.
    """
    done = subprocess.run(
        ["squeue", "--noheader", f"--jobs={number}", "--states=all", "--format=%T %B"],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and "Invalid job id" not in done.stderr:
        raise RuntimeError(f"Slurm does not say what became of job {number}: {done.stderr.strip()}")
    state, _, host = done.stdout.strip().partition(" ")
    return state, host


def wait_until_it_runs(number: str) -> str | None:
    """The node of its keeper, once there is one; None if it is over already."""
    began, pause = time.monotonic(), _FIRST_PAUSE
    has_told = False
    while True:
        state, host = state_of(number)
        if state in _RUNNING:
            return host
        if state not in _COMING:
            return None
        if not has_told and time.monotonic() - began > PATIENCE:
            has_told = True
            _log.warning("job %s waits in Slurm's queue; `squeue --me` says why", number)
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def channel_to(number: str, host: str, python: str, name: str) -> ProgramChannel:
    """A way to the keeper of a running job: a step beside it carries the bytes."""
    command = [python, "-m", "rankspawn.cluster.relay", name]
    return ProgramChannel(
        host,
        Slurm().step_command(number, host, command),
        environ=environ_of_steps(os.environ),
        deadline=SharedDeadline(TIME_TO_KILL),
        explain=partial(explain, host),
    )
