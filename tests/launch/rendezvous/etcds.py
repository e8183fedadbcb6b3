"""Real etcd servers for tests: one, or a cluster."""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rankspawn.launch.rendezvous.etcd_access import EtcdAccess
from rankspawn.plan.ports import HeldPorts
from tests.jobs import DEADLOCK


class Etcd:
    """Members on this machine, each a process."""

    def __init__(
        self, folder: Path, ports: tuple[int, ...], certificates: Certificates | None = None
    ) -> None:
        self.certificates = certificates
        half = len(ports) // 2
        self.client_ports, peer_ports = ports[:half], ports[half:]
        cluster = ",".join(f"m{index}={_url(port)}" for index, port in enumerate(peer_ports))
        self.members = [
            subprocess.Popen(
                [
                    "etcd",
                    *("--name", f"m{index}", "--data-dir", str(folder / str(index))),
                    *("--listen-client-urls", self._client_url(client)),
                    *("--advertise-client-urls", self._client_url(client)),
                    *(certificates.of_a_member if certificates else ()),
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

    def _client_url(self, port: int) -> str:
        return _url(port) if self.certificates is None else _url(port).replace("http", "https")

    @property
    def access(self) -> EtcdAccess:
        """Lets everybody in, where there are no users."""
        if self.certificates is None:
            return EtcdAccess()
        known = EtcdAccess(uses_tls=True, ca=str(self.certificates.ca))
        if not self.certificates.of_clients:
            return known
        cert, key = str(self.certificates.cert), str(self.certificates.key)
        return replace(known, cert=cert, key=key)

    @property
    def master(self) -> str:
        """As ``--master`` takes it."""
        scheme = "etcd" if self.certificates is None else "etcds"
        return f"{scheme}://" + ",".join(f"{host}:{port}" for host, port in self.endpoints)

    def have_users(self, name: str, password: str) -> None:
        """Let only this user in from now on, who may do everything."""
        from rankspawn.launch.rendezvous.etcd_members import Members

        members = Members(self.endpoints, DEADLOCK, self.access)
        members.post("auth/user/add", {"name": "root", "password": password})
        members.post("auth/role/add", {"name": "root"})
        members.post("auth/user/grant", {"user": "root", "role": "root"})
        members.post("auth/user/add", {"name": name, "password": password})
        members.post("auth/user/grant", {"user": name, "role": "root"})
        members.post("auth/enable", {})
        members.close()

    def wait_until_up(self) -> None:
        from rankspawn.launch.rendezvous.etcd import EtcdStore
        from rankspawn.launch.rendezvous.store import StoreUnreachableError

        deadline = time.monotonic() + DEADLOCK
        for endpoint in self.endpoints:
            store = EtcdStore([endpoint], answer_within=5.0, access=self.access)
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


class Certificates:
    """An authority, and a certificate of its for 127.0.0.1, made with ``openssl``.

    Args:
        folder: Gets the files.
        of_clients: Whether clients have to show one of this authority, too.
    """

    def __init__(self, folder: Path, *, of_clients: bool = False) -> None:
        self.of_clients = of_clients
        self.ca, self.cert, self.key = (folder / name for name in ("ca.pem", "c.pem", "c.key"))
        new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2")
        _openssl(
            *("req", "-x509", *new_key, "-subj", "/CN=tests", "-out", str(self.ca)),
            *("-keyout", str(folder / "ca.key")),
        )
        _openssl(
            *("req", "-x509", *new_key, "-subj", "/CN=etcd", "-out", str(self.cert)),
            *("-keyout", str(self.key), "-CA", str(self.ca), "-CAkey", str(folder / "ca.key")),
            *("-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=CA:FALSE"),
        )

    @property
    def of_a_member(self) -> tuple[str, ...]:
        own = ("--cert-file", str(self.cert), "--key-file", str(self.key))
        asked = ("--client-cert-auth", "--trusted-ca-file", str(self.ca))
        return (*own, *asked) if self.of_clients else own


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True)


@contextlib.contextmanager
def running_etcd(
    folder: Path, count: int, certificates: Certificates | None = None
) -> Iterator[Etcd]:
    """A cluster of this many members; skips the test where etcd is not installed."""
    if why_no_etcd():
        pytest.skip(why_no_etcd())
    with closing(HeldPorts(2 * count)) as held:
        etcd = Etcd(folder, held.ports, certificates)
        try:
            etcd.wait_until_up()
            yield etcd
        finally:
            for process in etcd.members:
                process.kill()
                process.wait()
