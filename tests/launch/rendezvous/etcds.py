"""Real etcd servers for tests: one, or a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from rankspawn.plan.ports import HeldPorts
from tests.jobs import DEADLOCK


class Etcd:
    """Members on this machine, each a process."""

    def __init__(self, folder: Path, ports: tuple[int, ...]) -> None:
        half = len(ports) // 2
        self.client_ports, peer_ports = ports[:half], ports[half:]
        cluster = ",".join(f"m{index}={_url(port)}" for index, port in enumerate(peer_ports))
        self.members = [
            subprocess.Popen(
                [
                    "etcd",
                    *("--name", f"m{index}", "--data-dir", str(folder / str(index))),
                    *("--listen-client-urls", _url(client)),
                    *("--advertise-client-urls", _url(client)),
                    *("--listen-peer-urls", _url(peer)),
                    *("--initial-advertise-peer-urls", _url(peer)),
                    *("--initial-cluster", cluster, "--log-level", "error"),
                    # The disk of a test machine is slow, and nothing here has to survive it.
                    *("--heartbeat-interval", "100", "--election-timeout", "1000"),
                ],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            for index, (client, peer) in enumerate(zip(self.client_ports, peer_ports, strict=True))
        ]

    @property
    def endpoints(self) -> list[tuple[str, int]]:
        return [("127.0.0.1", port) for port in self.client_ports]

    @property
    def master(self) -> str:
        """As ``--master`` takes it."""
        return "etcd://" + ",".join(f"{host}:{port}" for host, port in self.endpoints)

    def wait_until_up(self) -> None:
        from rankspawn.launch.rendezvous.etcd import EtcdStore
        from rankspawn.launch.rendezvous.store import StoreUnreachableError

        deadline = time.monotonic() + DEADLOCK
        for endpoint in self.endpoints:
            store = EtcdStore([endpoint], answer_within=5.0)
            while True:
                try:
                    store.put("up", "1")
                    break
                except StoreUnreachableError:
                    assert time.monotonic() < deadline, "etcd does not come up"
            store.close()

    def kill(self, member: int) -> None:
        self.members[member].kill()
        self.members[member].wait()


def _url(port: int) -> str:
    return f"http://127.0.0.1:{port}"


def why_no_etcd() -> str:
    """Why tests with etcd have to be skipped; empty if they need not."""
    if shutil.which("etcd") is None:
        return "etcd is not installed (Debian: apt-get install etcd-server)"
    if importlib.util.find_spec("etcd3gw") is None:
        return "the client for etcd is not installed: pip install 'rankspawn[etcd]'"
    return ""


@contextlib.contextmanager
def running_etcd(folder: Path, count: int) -> Iterator[Etcd]:
    """A cluster of this many members; skips the test where etcd is not installed."""
    if why_no_etcd():
        pytest.skip(why_no_etcd())
    with closing(HeldPorts(2 * count)) as held:
        etcd = Etcd(folder, held.ports)
        try:
            etcd.wait_until_up()
            yield etcd
        finally:
            for process in etcd.members:
                process.kill()
                process.wait()
