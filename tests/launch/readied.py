"""Launches whose workers tell when they are ready, for tests that then do something to them."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment, write_script

# Each worker tells who it is, and whom it started, in a file; rank 0 prints once all have.
READY = """
    import json, os, signal, sys, time
    from tests.descendants import start_descendants

    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])

    def ready(with_descendants=True):
        pids = start_descendants() if with_descendants else {}
        with open(f"pids.{rank}.new", "w") as file:
            json.dump({**pids, "self": os.getpid()}, file)
        os.rename(f"pids.{rank}.new", f"pids.{rank}")
        while not all(os.path.exists(f"pids.{other}") for other in range(size)):
            time.sleep(0.005)
        if rank == 0:
            print("ready")

    def pause():
        while True:
            time.sleep(0.2)  # not pause(), which a signal just before it does not end
"""


def pids_in(folder: Path) -> list[int]:
    """Everybody that the workers told of."""
    return [pid for path in folder.glob("pids.?") for pid in json.loads(path.read_text()).values()]


class Launch:
    """A launch that runs while the test does something to it."""

    def __init__(
        self,
        folder: Path,
        body: str,
        *flags: str,
        before: Sequence[str] = (),
        command: Sequence[str] = COMMAND,
    ) -> None:
        write_script(folder, READY + body)
        self.folder = folder
        self.process = subprocess.Popen(
            [*before, *command, "--nproc_per_node", "2", *flags, "train.py"],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            # What a shell, or nohup, left behind for the tests themselves, is not for them.
            preexec_fn=_default_signals,  # noqa: PLW1509 - no thread runs here
        )

    def wait_until_ready(self) -> list[int]:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "ready\n", self.process.communicate()[1]
        return pids_in(self.folder)

    def finish(self) -> str:
        _, errors = self.process.communicate(timeout=DEADLOCK)
        return errors

    def __enter__(self) -> Launch:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        self.process.wait()


def _default_signals() -> None:
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
