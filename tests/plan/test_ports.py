"""Ports that are held, and can still be used by a worker."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from rankspawn.options import SpawnOptions
from rankspawn.plan.devices import Machine
from rankspawn.plan.job import resolve
from rankspawn.plan.ports import HeldPorts, hold_ports
from tests.ports import free_port


def listener(port: int, host: str = "127.0.0.1", *, reuse: bool = True) -> socket.socket:
    """A server as torch, Paddle and gRPC open it."""
    sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(reuse))
        if ":" in host:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        sock.bind((host, port))
        sock.listen()
    except BaseException:
        sock.close()
        raise
    return sock


def open_fds() -> set[str]:
    return set(os.listdir("/proc/self/fd"))


def test_the_ports_are_all_different() -> None:
    with closing(HeldPorts(200)) as one, closing(HeldPorts(200)) as other:
        assert len({*one.ports, *other.ports}) == 400


needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="needs IPv6")


# torch listens on the last one: all addresses of both kinds.
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", pytest.param("::", marks=needs_ipv6)])
def test_a_worker_can_listen_on_a_held_port(host: str) -> None:
    with closing(HeldPorts(1)) as held, listener(held.ports[0], host) as server:
        address = ("127.0.0.1", held.ports[0])
        with socket.create_connection(address) as client, server.accept()[0] as accepted:
            assert client.getsockname()[1] == accepted.getpeername()[1]


def test_a_worker_that_shares_its_port_as_grpc_does_can_listen_too() -> None:
    with closing(HeldPorts(1)) as held, socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        server.bind(("127.0.0.1", held.ports[0]))
        server.listen()


def test_nobody_else_is_given_a_held_port() -> None:
    with closing(HeldPorts(1)) as held, pytest.raises(OSError, match=os.strerror(errno.EADDRINUSE)):
        listener(held.ports[0], reuse=False)


def test_close_gives_everything_back_and_may_be_called_twice() -> None:
    before = open_fds()
    held = HeldPorts(3)
    held.close()
    held.close()
    assert open_fds() == before
    listener(held.ports[0], reuse=False).close()


def test_fixed_ports_are_the_ones_asked_for() -> None:
    port = free_port()
    with closing(HeldPorts.fixed([port])) as held:
        assert held.ports == (port,)
        listener(port).close()


def test_a_fixed_port_with_a_listener_is_named_and_nothing_stays_open() -> None:
    first = free_port()
    with closing(HeldPorts(1)) as other, listener(other.ports[0]):
        before = open_fds()
        with pytest.raises(OSError, match=f"127.0.0.1:{other.ports[0]}.*started_port") as caught:
            HeldPorts.fixed([first, other.ports[0]])
        assert open_fds() == before
    assert caught.value.errno == errno.EADDRINUSE


def test_a_fixed_port_of_another_job_is_noticed_before_anyone_listens() -> None:
    port = free_port()
    with (
        closing(HeldPorts.fixed([port])),
        pytest.raises(OSError, match=f"127.0.0.1:{port}.*in use"),
    ):
        HeldPorts.fixed([port])
    HeldPorts.fixed([port]).close()


# Another user, who takes the names of ports, and no port.
TAKE_NAMES = """
import socket, sys
from tests.rights import drop
drop()
names = [socket.socket(socket.AF_UNIX) for _ in sys.argv[1:]]
for name, port in zip(names, sys.argv[1:]):
    name.bind(f"\\0rankspawn/127.0.0.1:{port}")
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def named_port() -> Iterator[int]:
    """A free port whose name somebody has."""
    port = free_port()
    command = [sys.executable, "-c", TAKE_NAMES, str(port)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.readline() == "taken\n"
        yield port


def test_a_name_that_somebody_took_does_not_block_a_port(named_port: int) -> None:
    with closing(HeldPorts.fixed([named_port])) as held:
        assert held.ports == (named_port,)
        listener(named_port).close()
        with pytest.raises(OSError, match=f"127.0.0.1:{named_port}.*in use"):
            HeldPorts.fixed([named_port])
    HeldPorts.fixed([named_port]).close()


def test_two_nodes_on_one_machine_can_hold_the_same_number() -> None:
    port = free_port()
    with (
        closing(HeldPorts.fixed([port], "127.0.0.1")),
        closing(HeldPorts.fixed([port], "127.0.0.2")) as second,
    ):
        assert second.ports == (port,)


def test_a_used_port_of_the_last_run_can_be_held_again() -> None:
    port = free_port()
    with listener(port) as server, socket.create_connection(("127.0.0.1", port)) as client:
        # The side that closes first is the one whose port lingers in TIME_WAIT.
        server.accept()[0].close()
        assert client.recv(1) == b""
    HeldPorts.fixed([port]).close()


def test_an_address_that_no_interface_has_is_held_on_all() -> None:
    # 192.0.2.0/24 is reserved for documentation, so no machine owns this one.
    with closing(HeldPorts(1, "192.0.2.77")) as held:
        listener(held.ports[0]).close()


def test_a_topology_says_which_ports_to_hold(machine: Callable[..., Machine]) -> None:
    port = free_port()
    one_node = resolve(2, SpawnOptions(backend="gloo"), {}, machine())
    with closing(hold_ports(one_node.topology)) as held:
        assert len(held.ports) == 2
    fixed = resolve(1, SpawnOptions(backend="gloo", started_port=port), {}, machine())
    with closing(hold_ports(fixed.topology)) as held:
        assert held.ports == (port,)
