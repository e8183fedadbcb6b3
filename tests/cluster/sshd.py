"""A real OpenSSH server on this machine, for tests: two hosts on loopback, with its own keys."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import psutil

from rankspawn.plan.ports import HeldPorts
from tests.jobs import DEADLOCK

# Two addresses of loopback are two hosts: one server listens on both.
HOSTS = ("127.0.0.1", "127.0.0.2")
_PROGRAMS = ("sshd", "ssh", "ssh-keygen")
# Debian keeps the server away from the PATH of plain users.
_PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin:/usr/local/sbin"
# No PAM, no passwords, no file of the machine's own: who has the key may come in, from here alone.
_SERVER = """
Port {port}
{addresses}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowUsers {user}
MaxStartups 100
PrintMotd no
UseDNS no
"""


class Sshd:
    """An OpenSSH server, up; what it runs are descendants of its keeper.

    Args:
        folder: For its files.
        port: Where it listens.
        hosts: At which addresses.
        inside: What stands before a command to run it where these are; empty for here.
    """

    def __init__(
        self, folder: Path, port: int, hosts: Sequence[str] = HOSTS, inside: Sequence[str] = ()
    ) -> None:
        self.folder, self.port, self.user = folder, port, getpass.getuser()
        self._hosts, self._inside = hosts, inside
        self.identity = folder / "identity"
        self.known_hosts = folder / "known_hosts"
        self._keeper = subprocess.Popen(
            [sys.executable, str(Path(__file__).parents[1] / "launch/keeper.py")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=folder,
            start_new_session=True,
        )

    @property
    def options(self) -> dict[str, str]:
        """What a client has to know, of which nothing is in the user's own files."""
        return {"UserKnownHostsFile": str(self.known_hosts), "GlobalKnownHostsFile": "/dev/null"}

    def start(self) -> None:
        """Make the keys and start the server; wait until it answers, if it is here."""
        for name in ("host_key", "identity"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(self.folder / name)]
            subprocess.run(command, check=True, timeout=DEADLOCK)
        shutil.copy(self.folder / "identity.pub", self.folder / "authorized_keys")
        key = " ".join((self.folder / "host_key.pub").read_text().split()[:2])
        self.known_hosts.write_text(
            "".join(f"[{host}]:{self.port} {key}\n" for host in self._hosts)
        )
        if os.geteuid() == 0:
            # The server's own: a service manager makes it, and is not there in a container.
            Path("/run/sshd").mkdir(0o755, exist_ok=True)
        addresses = "\n".join(f"ListenAddress {host}" for host in self._hosts)
        configuration = self.folder / "sshd_config"
        configuration.write_text(
            _SERVER.format(port=self.port, addresses=addresses, folder=self.folder, user=self.user)
        )
        server = shutil.which("sshd", path=_PATH) or "sshd"
        log = str(self.folder / "sshd.log")
        command = [*self._inside, server, "-D", "-E", log, "-f", str(configuration)]
        assert self._keeper.stdin is not None
        assert self._keeper.stdout is not None
        self._keeper.stdin.write(f"{json.dumps(command)}\n".encode())
        self._keeper.stdin.flush()
        self._server = psutil.Process(int(self._keeper.stdout.readline()))
        deadline = time.monotonic() + DEADLOCK
        while not self._answers():
            if time.monotonic() > deadline or not self._server.is_running():
                logs = "\n".join(path.read_text()[-3000:] for path in self.folder.glob("*.log"))
                raise AssertionError(f"sshd does not come up\n{logs}")
            time.sleep(0.02)

    def connections(self) -> list[psutil.Process]:
        """The processes that serve a connection, each with what was started over it."""
        return self._server.children()

    def left(self) -> list[str]:
        """Processes that are there because of a connection."""
        found = []
        for process in psutil.Process(self._keeper.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != self._server.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.pid}: {' '.join(process.cmdline())}")
        return found

    def wait_until_idle(self) -> None:
        """Wait until nothing of a connection is left."""
        deadline = time.monotonic() + DEADLOCK
        while left := self.left():
            assert time.monotonic() < deadline, f"left: {left}"
            time.sleep(0.02)

    def close(self) -> None:
        """End the server, and what it runs."""
        self._keeper.communicate()

    def _answers(self) -> bool:
        for host in () if self._inside else self._hosts:
            try:
                socket.create_connection((host, self.port), timeout=DEADLOCK).close()
            except OSError:
                return False
        return True


def why_no_sshd() -> str:
    """Why tests with ssh have to be skipped; empty if they need not."""
    missing = [name for name in _PROGRAMS if shutil.which(name, path=_PATH) is None]
    if missing:
        packages = "openssh-server openssh-client"
        names = ", ".join(missing)
        return f"no {names}: OpenSSH is not installed (Debian: apt-get install {packages})"
    try:
        with socket.socket() as probe:
            probe.bind((HOSTS[1], 0))
    except OSError:
        return f"{HOSTS[1]} is no address of this machine"
    return ""


@contextlib.contextmanager
def running_sshd(hosts: Sequence[str] = HOSTS, inside: Sequence[str] = ()) -> Iterator[Sshd]:
    """A server, as long as it is needed; nothing of it is left then."""
    folder = Path(tempfile.mkdtemp(prefix="rst-ssh-", dir="/tmp"))
    try:
        with closing(HeldPorts(1)) as held:
            up = Sshd(folder, held.ports[0], hosts, inside)
            with closing(up):
                up.start()
                yield up
    finally:
        shutil.rmtree(folder)
