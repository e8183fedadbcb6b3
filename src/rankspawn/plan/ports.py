"""Ports that nobody else gets while a job runs.

A port is held by a socket that is bound but does not listen. With ``SO_REUSEADDR`` on both
sides a worker can still bind the port and listen on it, as torch, Paddle and gRPC do,
while the system gives it to nobody who asks for a free one.
"""

from __future__ import annotations

import errno
import sys

from rankspawn.descriptors import Owned
from rankspawn.plan.topology import join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.plan.topology import Topology

# What to do about a port that is in use; the launcher has flags for it.
_REMEDY = "give another started_port on every node"


def hold_ports(topology: Topology) -> HeldPorts:
    """Hold this node's ports: free ones on one node, the agreed ones on several.

    Raises:
        OSError: A port that the other nodes expect is in use; it is named.
    """
    own = topology.own
    if own.ports is None:
        return HeldPorts(own.count, topology.bind_host)
    return HeldPorts.fixed(own.ports, topology.bind_host)


class HeldPorts:
    """Some ports, held until ``close``; all of them, or none.

    Attributes:
        ports: The numbers, all different.
    """

    __slots__ = ("_held", "ports")

    def __init__(self, count: int, host: str = "127.0.0.1") -> None:
        """Hold ``count`` free ports of ``host``."""
        self._hold([0] * count, host, _REMEDY)

    @classmethod
    def fixed(
        cls, ports: Sequence[int], host: str = "127.0.0.1", *, remedy: str = _REMEDY
    ) -> HeldPorts:
        """Hold exactly these ports.

        Args:
            ports: Their numbers.
            host: The address that they are held at.
            remedy: What the user can do about one that is in use.

        Raises:
            OSError: One of them is in use; it is named.
        """
        held = cls.__new__(cls)
        held._hold(ports, host, remedy)
        return held

    def close(self) -> None:
        """Give the ports back; closing twice is fine."""
        while self._held:
            self._held.pop().close()

    def _hold(self, ports: Sequence[int], host: str, remedy: str) -> None:
        self._held: list[Owned] = []
        self.ports: tuple[int, ...] = ()
        try:
            self.ports = tuple(self._hold_one(host, port, remedy) for port in ports)
        except BaseException:
            self.close()
            raise

    def _hold_one(self, host: str, port: int, remedy: str) -> int:
        try:
            bound = self._bind(host, port)
            # After the port, so that whoever has the name has the port as well.
            if port and not self._take_name(host, port):
                self._held.pop().close()
                self._bind(host, port, alone=True)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or not port:
                raise
            raise OSError(
                errno.EADDRINUSE,
                f"the port {join(host, port)}, which the other nodes expect a rank to use, "
                f"is in use: stop its owner, or {remedy}",
            ) from error
        return bound

    def _bind(self, host: str, port: int, *, alone: bool = False) -> int:
        """Bind a socket and keep it; ``alone`` fails if anybody else has one there."""
        import socket

        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(not alone))
            try:
                sock.bind((host, port))
            except OSError as error:
                if error.errno != errno.EADDRNOTAVAIL:
                    raise
                # The address at which others reach this node may be one that a router
                # translates, so that no interface has it.
                sock.bind(("", port))
            # What counts for those who bind it later is how it is by then.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            bound = int(sock.getsockname()[1])
            self._held.append(Owned(sock.detach()))
        return bound

    def _take_name(self, host: str, port: int) -> bool:
        """Take the name that stands for this port; False if somebody has it.

        Two sockets with ``SO_REUSEADDR`` can be bound to one port as long as neither
        listens, so binding alone would not notice a job that is just starting. Without
        the option, ports of the last run would look used for a minute (TIME_WAIT).
        An abstract Unix socket has neither problem: its name is taken once per network
        namespace, as a port is, and is gone with its last descriptor. But any user can take
        any name, and so it proves nothing by itself: only the port does. A lock in a folder of
        this user would not show the jobs of others, who want the same ports.
        """
        if sys.platform != "linux":
            return True
        import socket

        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as name:
            try:
                name.bind(f"\0rankspawn/{join(host, port)}")
            except OSError as error:
                if error.errno != errno.EADDRINUSE:
                    raise
                return False
            self._held.append(Owned(name.detach()))
        return True
