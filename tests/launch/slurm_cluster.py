"""A real Slurm of two nodes on this machine, for tests: its daemons in a folder, on loopback."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import psutil

from rankspawn.plan.ports import HeldPorts
from tests.jobs import DEADLOCK

NODES = ("node0", "node1")
_PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel")
# The names of the nodes are no names of machines: where they are, NodeAddr says. The controller's
# is compared with the machine's. All is talked to on loopback, by who has the key. A job that is
# ended has more time than a test.
_CONFIGURATION = """
ClusterName=tests
SlurmctldHost={machine}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.sock
CredType=cred/munge
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SlurmdParameters=config_overrides
ReturnToService=2
KillWait={kill_wait:.0f}
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
"""
_NODE = "NodeName={name} NodeHostname={machine} NodeAddr=127.0.0.1 Port={port} CPUs=4\n"
# Jobs of the second one take the nodes from those of the first, which get time as well.
_PARTITIONS = """
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP GraceTime={kill_wait:.0f}
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=9 PreemptMode=OFF
"""


class Cluster:
    """Slurm, up; what it runs are descendants of its keeper."""

    def __init__(self, folder: Path, ports: tuple[int, ...]) -> None:
        self._folder = folder
        self.configuration = folder / "slurm.conf"
        machine = socket.gethostname().partition(".")[0]
        kill_wait = 2 * DEADLOCK
        text = _CONFIGURATION.format(
            folder=folder, machine=machine, controller_port=ports[0], kill_wait=kill_wait
        )
        for name, port in zip(NODES, ports[1:], strict=True):
            text += _NODE.format(name=name, machine=machine, port=port)
            (folder / f"spool.{name}").mkdir()
        (folder / "state").mkdir()
        self.configuration.write_text(text + _PARTITIONS.format(kill_wait=kill_wait))
        self._environ = {**os.environ, "SLURM_CONF": str(self.configuration)}
        self._keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("keeper.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            env=self._environ,
            start_new_session=True,
        )
        self._daemons: set[int] = set()

    def start(self) -> None:
        """Start the daemons, and wait until jobs can run on all nodes."""
        key = self._folder / "munge.key"
        key.touch(0o600)
        key.write_bytes(os.urandom(1024))
        files = {"socket": "munge.sock", "key-file": "munge.key", "log-file": "munged.log"}
        files |= {"pid-file": "munged.pid", "seed-file": "munged.seed"}
        where = [f"--{option}={self._folder / name}" for option, name in files.items()]
        # By force, as the folder may be below one that everybody can write to.
        self._daemon("munged", "--foreground", "--force", "--origin=127.0.0.1", *where)
        self._wait_until((self._folder / "munge.sock").exists, "munged does not come up")
        self._daemon("slurmctld", "-D", "-c")
        # A node that comes before the controller asks again a second later, and more each time.
        self._wait_until(lambda: "UP" in self._ask("scontrol", "ping"), "slurmctld is not up")
        for name in NODES:
            self._daemon("slurmd", "-D", "-N", name)
        self._wait_until(lambda: self._idle_nodes() == len(NODES), "the nodes do not come up")
        # With what a daemon has started for itself.
        self._daemons = {process.pid for process in self._processes()}

    def srun(self, *options: str) -> list[str]:
        """What to put before a command to run it once on each node."""
        return ["srun", f"--nodes={len(NODES)}", "--ntasks-per-node=1", *options]

    def cancel(self, name: str, *options: str) -> None:
        self.run("scancel", *options, f"--jobname={name}")

    def run(self, *command: str) -> str:
        """What one of Slurm's programs says."""
        done = subprocess.run(
            command,
            env=self._environ,
            check=True,
            timeout=DEADLOCK,
            stdout=subprocess.PIPE,
            text=True,
        )
        return done.stdout

    def wait_until_idle(self) -> None:
        """Wait until nothing of a job is left but what has no business to be there."""
        self._wait_until(
            lambda: self._idle_nodes() == len(NODES) and not self.left(), "a job does not end"
        )

    def left(self) -> list[str]:
        """Processes that are there because of a job."""
        found = []
        for process in self._processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid not in self._daemons:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return found

    def close(self) -> None:
        """End the daemons, and what they run."""
        self._keeper.communicate()

    def _processes(self) -> list[psutil.Process]:
        return psutil.Process(self._keeper.pid).children(recursive=True)

    def _daemon(self, *command: str) -> None:
        """Have it started."""
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(f"{json.dumps(command)}\n".encode())
        self._keeper.stdin.flush()
        assert int(self._keeper.stdout.readline())

    def _idle_nodes(self) -> int:
        return int(self._ask("sinfo", "-h", "-t", "idle", "-o", "%D").strip() or 0)

    def _ask(self, *command: str) -> str:
        done = subprocess.run(
            command,
            env=self._environ,
            check=False,
            timeout=DEADLOCK,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        return done.stdout

    def _wait_until(self, condition: Callable[[], bool], otherwise: str) -> None:
        deadline = time.monotonic() + DEADLOCK
        while not condition():
            if time.monotonic() > deadline:
                logs = "\n".join(path.read_text()[-3000:] for path in self._folder.glob("*.log"))
                raise AssertionError(f"{otherwise}; left: {self.left()}\n{logs}")
            time.sleep(0.02)


def why_no_slurm() -> str:
    """Why tests with Slurm have to be skipped; empty if they need not."""
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        packages = "slurmctld slurmd slurm-client munge"
        return (
            f"no {', '.join(missing)}: Slurm is not installed (Debian: apt-get install {packages})"
        )
    if os.geteuid() != 0:
        return "a Slurm of one's own can be started by root only"
    try:
        socket.getaddrinfo(socket.gethostname(), None)
    except OSError:
        return "this machine's own name does not resolve, which Slurm asks for where to listen"
    return ""


@contextlib.contextmanager
def running_slurm() -> Iterator[Cluster]:
    """Slurm, as long as it is needed; nothing of it is left then."""
    # Not where TMPDIR says: munged's is a Unix socket, whose path has 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="rst-slurm-", dir="/tmp"))
    folder.chmod(0o755)
    try:
        with closing(HeldPorts(1 + len(NODES))) as held, closing(Cluster(folder, held.ports)) as up:
            up.start()
            yield up
    finally:
        shutil.rmtree(folder)
