"""Where the master is, and where this node is reached: addresses, read and chosen."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass

from rankspawn.plan.facts import Machine
from rankspawn.plan.topology import is_loopback, join

__all__ = [
    "AddressError",
    "MasterAddress",
    "address_towards",
    "belongs_to",
    "machine_id",
    "outward_address",
    "read_master",
]

ETCD_PORT = 2379
# An address of a block that is kept for documentation: nothing is sent to it, but asking for the
# way there tells which address this machine shows to others.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


class AddressError(ValueError):
    """An address that cannot be meant, and why."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """What ``--master`` says.

    Attributes:
        is_etcd: An etcd cluster; else an embedded master.
        endpoints: Hosts and ports; one, unless it is etcd.
    """

    is_etcd: bool
    endpoints: tuple[tuple[str, int], ...]

    @property
    def host(self) -> str:
        """Of the first endpoint."""
        return self.endpoints[0][0]

    @property
    def port(self) -> int:
        """Of the first endpoint."""
        return self.endpoints[0][1]

    def __str__(self) -> str:
        return ",".join(join(*one) for one in self.endpoints)


def read_master(text: str) -> MasterAddress:
    """``host:port``, ``http://host:port`` or ``etcd://host:port[,host:port…]``.

    Raises:
        AddressError: It is none of these.
    """
    scheme, found, rest = text.rpartition("://")
    if found and scheme not in ("http", "etcd", "tcp"):
        raise AddressError(
            f"--master {text!r}: {scheme}:// is not known; give host:port, http://host:port or "
            "etcd://host:port[,host:port…]"
        )
    is_etcd = scheme == "etcd"
    words = rest.rstrip("/").split(",")
    if len(words) > 1 and not is_etcd:
        raise AddressError(f"--master {text!r} names several masters; only etcd:// has several")
    port = ETCD_PORT if is_etcd else None
    return MasterAddress(is_etcd, tuple(_read_endpoint(word.strip(), port, text) for word in words))


def _read_endpoint(word: str, default: int | None, text: str) -> tuple[str, int]:
    host, colon, port = word.rpartition(":")
    if not colon or word.endswith("]"):
        host, port = word, "" if default is None else str(default)
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise AddressError(f"--master {text!r}: {word!r} is no host:port")
    return host.strip("[]"), int(port)


def belongs_to(machine: Machine, host: str) -> bool:
    """Whether ``host`` means this machine."""
    if is_loopback(host):
        return True
    own = machine.addresses()
    return any(address in own or is_loopback(address) for address in machine.resolve(host))


def address_towards(host: str, port: int) -> str | None:
    """The address that this machine shows to ``host``; None if there is no way there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, where in found:
        try:
            # A datagram socket that is connected sends nothing; it only looks up the way.
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
    return None


def outward_address() -> str | None:
    """The address that this machine shows to the rest of the world, if it has one."""
    for somewhere in _SOMEWHERE:
        found = address_towards(somewhere, 9)
        if found is not None and not is_loopback(found):
            return found
    return None


def machine_id() -> str:
    """The same text for processes that reach each other over loopback, and for no others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        # Two containers, or two network namespaces, of one machine have each their own loopback.
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()
