"""Several hosts on this one, for root: network namespaces, joined by a bridge in another one."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator


class Hosts:
    """Hosts ``0`` to ``count - 1`` with addresses of their own, and links that can be cut.

    Args:
        prefix: What the names of its namespaces begin with.
        count: How many hosts it has.
    """

    def __init__(self, prefix: str, count: int) -> None:
        self.prefix = prefix
        self.count = count

    @property
    def hub(self) -> str:
        """The namespace of the bridge, whose own link is never cut."""
        return f"{self.prefix}hub"

    @property
    def hub_address(self) -> str:
        """Its address."""
        return "10.78.0.254"

    def address(self, host: int) -> str:
        """The address of a host."""
        return f"10.78.0.{host + 1}"

    def inside(self, host: int) -> list[str]:
        """What to put before a command to run it on a host; it keeps its process id."""
        return ["ip", "netns", "exec", self._name(host)]

    def cut(self, host: int) -> None:
        """Nothing comes through, and nobody is told."""
        _ip("-n", self.hub, "link", "set", f"port{host}", "nomaster")

    def mend(self, host: int) -> None:
        """All comes through again."""
        _ip("-n", self.hub, "link", "set", f"port{host}", "master", "bridge")

    def build(self) -> None:
        """Make them all."""
        _ip("netns", "add", self.hub)
        _ip("-n", self.hub, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _ip("-n", self.hub, "address", "add", f"{self.hub_address}/24", "dev", "bridge")
        for link in ("bridge", "lo"):
            _ip("-n", self.hub, "link", "set", link, "up")
        for host in range(self.count):
            name, port = self._name(host), f"port{host}"
            _ip("netns", "add", name)
            peer = ("peer", "name", "eth0", "netns", name)
            _ip("link", "add", port, "netns", self.hub, "type", "veth", *peer)
            _ip("-n", self.hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            for link in ("lo", "eth0"):
                _ip("-n", name, "link", "set", link, "up")

    def remove(self) -> None:
        """Remove what there is of them."""
        for name in (*map(self._name, range(self.count)), self.hub):
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def _name(self, host: int) -> str:
        return f"{self.prefix}h{host}"


@contextlib.contextmanager
def some_hosts(count: int) -> Iterator[Hosts]:
    """So many hosts, for as long as the block lasts."""
    hosts = Hosts(f"soak{os.getpid()}", count)
    try:
        hosts.build()
        yield hosts
    finally:
        hosts.remove()


def why_no_hosts() -> str:
    """Why there can be none here; empty if there can."""
    if os.geteuid() != 0:
        return "only root can make network namespaces"
    if shutil.which("ip") is None:
        return "the command ip (iproute2) is not installed"
    try:
        with some_hosts(1):
            return ""
    except subprocess.CalledProcessError as error:
        return f"network namespaces are not permitted here: {error.stderr.strip()}"


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
