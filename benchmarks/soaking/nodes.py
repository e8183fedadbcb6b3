"""Jobs of ``rankrun`` on two or three hosts, to which something happens; and what comes of it.

What has to come of it is what docs/launch.md says:

- a cut link and a stopped store, for 2 to 8 seconds: a job of fixed size does not notice, one that
  goes on after a loss has all its nodes again afterwards;
- a launcher that is killed: the others go on without it, or end with the reason; so they do without
  the embedded master, unless it is started again in time;
- a scheduler that ends all nodes, one after the other: each worker gets to save.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TypeVar

from soaking.hosts import Hosts
from soaking.node_worker import is_alive
from soaking.watch import Program, watched

FAULTS = ("cut link", "stopped store", "killed launcher", "killed master", "ended by a scheduler")
MOST_HOSTS = 3
# A job that does not come to its next state within this time hangs; on a busy machine a node is
# lost after 4 s, and the others may wait for 8.
HANG_SECONDS = 90.0
# How long after the last launcher's end something of it may be there.
PATIENCE = 20.0
_Found = TypeVar("_Found")
_SOAK = Path(__file__).resolve().parent.parent / "soak.py"
_WORKER = Path(__file__).with_name("node_worker.py")
_LOOK_SECONDS = 0.05
_ETCD_PORT, _MASTER_PORT = 2379, 29500


@dataclass(frozen=True)
class Plan:
    """One job, and what happens to it.

    Attributes:
        size: How many hosts it has.
        elastic: Their number may change.
        level: ``--elastic_level``.
        with_etcd: Its nodes meet in an etcd; else at a master on host 0.
        talks: A worker fails when it loses a peer; else they only wait.
        victim: The host that it happens to.
        seconds: For how long, or after what time.
    """

    fault: str
    size: int
    elastic: bool
    level: int
    with_etcd: bool
    talks: bool
    victim: int
    seconds: float

    @property
    def goes_on(self) -> bool:
        """Whether the job goes on after the loss of a node, if enough are left or come."""
        return self.elastic or self.level >= 0

    @property
    def flags(self) -> list[str]:
        """Those of the job."""
        waits = self.fault in ("cut link", "stopped store") or self.comes_back
        pairs = {
            "--nnodes": f"1:{self.size}" if self.elastic else str(self.size),
            "--elastic_level": str(self.level),
            "--max_restart": "99",
            # A job of fixed size that sits out what is shorter must not be too quick.
            "--node_timeout": "4" if self.goes_on or not waits else "25",
            "--elastic_timeout": "60" if waits else "3",
            "--nproc_per_node": "1",
            "--device_type": "cpu",
        }
        return [word for pair in pairs.items() for word in pair]

    @property
    def comes_back(self) -> bool:
        """Whether the killed master's node is started again."""
        return self.fault == "killed master" and self.elastic and self.seconds < 5.0


def draw(fault: str, rng: random.Random) -> Plan:
    """A job for this fault."""
    size = rng.randint(2, MOST_HOSTS)
    with_etcd = fault != "killed master" and bool(find_spec("etcd3gw")) and rng.random() < 0.4
    others = fault == "killed launcher" and not with_etcd
    return Plan(
        fault,
        size,
        elastic=rng.random() < 0.6,
        level=rng.choice([-1, -1, 1]),
        with_etcd=with_etcd and shutil.which("etcd") is not None,
        # A peer's end must not come before the request to save.
        talks=fault != "ended by a scheduler" and rng.random() < 0.6,
        victim=0 if fault == "killed master" else rng.randrange(int(others), size),
        seconds=rng.uniform(2.0, 8.0),
    )


def run_nodes(
    fault: str, hosts: Hosts, rng: random.Random, injected: Counter[str]
) -> list[tuple[str, list[str]]]:
    """The verdict on a job on several hosts, with what it left."""
    words = (fault, rng.randrange(10**9), hosts.prefix)

    def act(program: Program) -> str:
        try:
            return program.communicate(timeout=5 * HANG_SECONDS)[0].strip()
        except subprocess.TimeoutExpired:
            return "hang"

    command = [sys.executable, str(_SOAK), "--as", "nodes", json.dumps(words)]
    verdict, left = watched(command, act, patience=PATIENCE)
    injected[fault] += verdict == "expected"
    return [(verdict, left)]


def run_job(fault: str, seed: int, prefix: str) -> None:
    """Runs in a program of its own: a job, what happens to it, and a line about it."""
    rng = random.Random(seed)
    plan = draw(fault, rng)
    hosts = Hosts(prefix, MOST_HOSTS)
    folder = Path(tempfile.mkdtemp(prefix="rankspawn-soak-"))
    cluster = Cluster(plan, hosts, folder)
    verdict = "expected"
    try:
        cluster.start_all()
        time.sleep(rng.random())
        _STORIES[fault](cluster, rng)
        cluster.check_generations()
    except AssertionError as error:
        verdict = f"{error}\n  {plan}, seed {seed}\n{cluster.said()}"
    finally:
        for host in range(plan.size):
            hosts.mend(host)
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
    print(verdict)


class Cluster:
    """The launchers of one job, a process on each host, and its store."""

    def __init__(self, plan: Plan, hosts: Hosts, folder: Path) -> None:
        self.plan = plan
        self.hosts = hosts
        self.folder = folder
        self.launchers: list[subprocess.Popen[bytes]] = []
        self.etcd: subprocess.Popen[bytes] | None = None

    def start_all(self) -> None:
        """Start the store and the launchers, and wait until all workers are up."""
        if self.plan.with_etcd:
            self.etcd = self._start_etcd()
        for host in range(self.plan.size):
            self.launchers.append(self.start(host))
        self.wait_for_workers(self.plan.size)

    def start(self, host: int) -> subprocess.Popen[bytes]:
        """The launcher of one host."""
        master = f"{self.hosts.address(0)}:{_MASTER_PORT}"
        if self.plan.with_etcd:
            master = f"etcd://{self.hosts.hub_address}:{_ETCD_PORT}"
        command = [*self.hosts.inside(host), sys.executable, "-m", "rankspawn.launch"]
        command += [*self.plan.flags, "--master", master, "--log_dir", f"log{host}"]
        environ = {**os.environ, "TMPDIR": str(self.folder), "RANKSPAWN_JOB_TOKEN": "a" * 32}
        with open(self.folder / f"said.{host}", "ab") as said:
            return subprocess.Popen(
                [*command, str(_WORKER), "talks" if self.plan.talks else "waits"],
                cwd=self.folder,
                env=environ,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )

    def _start_etcd(self) -> subprocess.Popen[bytes]:
        url = f"http://{self.hosts.hub_address}:{_ETCD_PORT}"
        peer = f"http://{self.hosts.hub_address}:{_ETCD_PORT + 1}"
        return subprocess.Popen(
            [
                *("ip", "netns", "exec", self.hosts.hub, "etcd", "--log-level", "error"),
                *("--data-dir", str(self.folder / "etcd"), "--name", "m"),
                *("--listen-client-urls", url, "--advertise-client-urls", url),
                *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
                *("--initial-cluster", f"m={peer}", "--unsafe-no-fsync"),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait_for_workers(self, count: int, *, after: int = -1) -> int:
        """Wait for a start with so many workers, all of which are up; its number.

        Args:
            count: How many.
            after: A start that is over.
        """

        def found() -> int | None:
            newest = max(self.starts, default=-1)
            up = self.workers("up", newest, count)
            return (
                newest if newest > after and len(up) == count and all(map(is_alive, up)) else None
            )

        return _wait(found, f"no start of {count} workers after {after}")

    @property
    def starts(self) -> set[int]:
        """The numbers of all starts so far."""
        return {int(name.split(".")[1]) for name in self._names("up")}

    def workers(self, what: str, start: int, count: int) -> list[int]:
        """The process ids in files of this kind, of one start with so many workers."""
        names = (f"{what}.{start}.{count}.{rank}" for rank in range(count))
        return [int(self._read(name)) for name in names if (self.folder / name).exists()]

    def _names(self, what: str) -> list[str]:
        names = os.listdir(self.folder)
        return [one for one in names if one.startswith(f"{what}.") and not one.endswith(".new")]

    def _read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def finish(self, launchers: list[subprocess.Popen[bytes]]) -> None:
        """Have the work done; all of these must end well."""
        (self.folder / "done").touch()
        self.expect_codes(launchers, 0)

    def expect_codes(self, launchers: list[subprocess.Popen[bytes]], code: int) -> None:
        """Wait for their ends, all with this code."""
        codes = _wait(lambda: _codes(launchers), "hang: a launcher does not end")
        assert set(codes) == {code}, f"exit codes {codes}, not {code}"

    def check_generations(self) -> None:
        """No worker found one of an earlier start."""
        assert not self._names("violation"), f"two generations: {self._names('violation')}"

    def unsaved(self) -> set[str]:
        """Workers that were up, and have not saved."""
        saved = {name.partition(".")[2] for name in self._names("saved")}
        return {name.partition(".")[2] for name in self._names("up")} - saved

    def said(self) -> str:
        """The last words of each launcher."""
        words = (self._read(f"said.{host}")[-1500:] for host in range(len(self.launchers)))
        return "\n".join(f"  --- node {host}: {text}" for host, text in enumerate(words))

    def close(self) -> None:
        """End what is still there of the launchers; the rest is somebody else's to find."""
        for process in [*self.launchers, *([self.etcd] if self.etcd else [])]:
            process.kill()
            process.send_signal(signal.SIGCONT)
            process.wait()


def _codes(launchers: list[subprocess.Popen[bytes]]) -> list[int] | None:
    codes = [launcher.poll() for launcher in launchers]
    if None in codes:
        return None
    # As a shell has them: a signal may come when its handler is gone, after the last line.
    return [128 - code if code < 0 else code for code in codes if code is not None]


def _wait(look: Callable[[], _Found | None], otherwise: str) -> _Found:
    deadline = time.monotonic() + HANG_SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline, f"hang: {otherwise}"
        time.sleep(_LOOK_SECONDS)
    return found


def _interrupt(cluster: Cluster, trouble: contextlib.AbstractContextManager[None]) -> None:
    """Something that is over after a while; all nodes must end well."""
    with trouble:
        time.sleep(cluster.plan.seconds)
    if cluster.plan.goes_on:
        cluster.wait_for_workers(cluster.plan.size)
    else:
        assert cluster.starts == {0}, f"a job of fixed size was started again: {cluster.starts}"
    cluster.finish(cluster.launchers)


@contextlib.contextmanager
def _cut(cluster: Cluster) -> Iterator[None]:
    cluster.hosts.cut(cluster.plan.victim)
    try:
        yield
    finally:
        cluster.hosts.mend(cluster.plan.victim)


@contextlib.contextmanager
def _stopped(process: subprocess.Popen[bytes]) -> Iterator[None]:
    process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        process.send_signal(signal.SIGCONT)


def _kill_launcher(cluster: Cluster, _: random.Random) -> None:
    plan, launchers = cluster.plan, cluster.launchers
    before = max(cluster.starts)
    launchers[plan.victim].kill()
    others = [launcher for launcher in launchers if launcher is not launchers[plan.victim]]
    if plan.elastic:
        cluster.wait_for_workers(plan.size - 1, after=before)
        cluster.finish(others)
        return
    cluster.expect_codes(others, 1)
    for host in range(plan.size):
        text = (cluster.folder / f"said.{host}").read_text()
        assert host == plan.victim or "vanished" in text, f"node {host} does not name the cause"


def _kill_master(cluster: Cluster, rng: random.Random) -> None:
    plan, launchers = cluster.plan, cluster.launchers
    before = max(cluster.starts)
    launchers[0].kill()
    if not plan.comes_back:
        cluster.expect_codes(launchers[1:], 1)
        return
    time.sleep(rng.random() * plan.seconds)
    launchers[0].wait()
    launchers[0] = cluster.start(0)
    cluster.wait_for_workers(plan.size, after=before)
    cluster.finish(launchers)


def _end_all(cluster: Cluster, rng: random.Random) -> None:
    """As ``scancel``, or a spot market, does."""
    for launcher in rng.sample(cluster.launchers, len(cluster.launchers)):
        launcher.terminate()
        time.sleep(rng.random())
    cluster.expect_codes(cluster.launchers, 128 + signal.SIGTERM)
    assert not cluster.unsaved(), f"these have not saved: {cluster.unsaved()}"


_STORIES: dict[str, Callable[[Cluster, random.Random], None]] = {
    "cut link": lambda cluster, _: _interrupt(cluster, _cut(cluster)),
    "stopped store": lambda cluster, _: _interrupt(
        cluster, _stopped(cluster.etcd or cluster.launchers[0])
    ),
    "killed launcher": _kill_launcher,
    "killed master": _kill_master,
    "ended by a scheduler": _end_all,
}
