"""Several machines on one: network namespaces, joined by a bridge in one of their own."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator

import pytest


class Network:
    """Machines ``0`` to ``count - 1`` with addresses of their own, and links that can be cut."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._prefix = f"rst{os.getpid()}"
        self._hub = f"{self._prefix}hub"
        self._made: list[str] = []

    def address(self, machine: int) -> str:
        return f"10.77.0.{machine + 1}"

    def inside(self, machine: int) -> list[str]:
        """What to put before a command to run it on a machine."""
        return ["ip", "netns", "exec", self._name(machine)]

    def cut(self, machine: int) -> None:
        """Nothing comes through, and nobody is told."""
        _ip("-n", self._hub, "link", "set", f"port{machine}", "nomaster")

    def mend(self, machine: int) -> None:
        _ip("-n", self._hub, "link", "set", f"port{machine}", "master", "bridge")

    def build(self) -> None:
        self._add(self._hub)
        _ip("-n", self._hub, "link", "add", "bridge", "type", "bridge", "forward_delay", "0")
        _ip("-n", self._hub, "link", "set", "bridge", "up")
        for machine in range(self.count):
            name, port = self._name(machine), f"port{machine}"
            self._add(name)
            peer = ("peer", "name", "eth0", "netns", name)
            _ip("link", "add", port, "netns", self._hub, "type", "veth", *peer)
            _ip("-n", self._hub, "link", "set", port, "master", "bridge", "up")
            _ip("-n", name, "address", "add", f"{self.address(machine)}/24", "dev", "eth0")
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "link", "set", "eth0", "up")

    def remove(self) -> None:
        for name in self._made:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)

    def _add(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)

    def _name(self, machine: int) -> str:
        return f"{self._prefix}m{machine}"


@contextlib.contextmanager
def network(count: int) -> Iterator[Network]:
    """A network of machines; skips the test where that is not permitted."""
    if shutil.which("ip") is None:
        pytest.skip("the command `ip` (iproute2) is not installed")
    built = Network(count)
    try:
        try:
            built.build()
        except subprocess.CalledProcessError as error:
            pytest.skip(f"network namespaces are not permitted here: {error.stderr.strip()}")
        yield built
    finally:
        built.remove()


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True)
