"""Whether a host is this machine, asked in every way there is."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankspawn.launch.config import read_config
from rankspawn.launch.joining import plan_join
from rankspawn.options import SpawnOptions
from rankspawn.plan.devices import Machine
from rankspawn.plan.topology import (
    find_here,
    find_nodes,
    is_here,
    join,
    split_endpoint,
    stray_loopback,
)
from tests.plan.conftest import FakeMachine

Ask = Callable[[str, Machine], int]
OWN = frozenset({"127.0.0.1", "::1", "10.0.0.1", "fd00::1"})
# Debian has a machine's own name at 127.0.1.1, which no interface lists.
NAMES = {"node1": "10.0.0.1", "node2": "10.0.0.2", "debian": "127.0.1.1"}
HERE = FakeMachine(own=OWN, names=NAMES)


def by_spawn(hosts: str, machine: Machine) -> int:
    return find_nodes(1, SpawnOptions(ips=tuple(hosts.split(","))), {}, machine).node_rank


def by_ips(hosts: str, machine: Machine) -> int:
    return plan_join(read_config(["--ips", hosts, "x.py"], {}), machine).node_rank


def by_servers(hosts: str, machine: Machine) -> int:
    listed = ",".join(f"{host}:7000" for host in hosts.split(","))
    flags = ["--servers", listed, "--trainers", listed.replace("7000", "7001")]
    return plan_join(read_config([*flags, "x.py"], {}), machine).node_rank


every_way = pytest.mark.parametrize("ask", [by_spawn, by_ips, by_servers])


@every_way
@pytest.mark.parametrize(
    "hosts", ["10.0.0.2,10.0.0.1", "node2,node1", "node2,debian", "10.0.0.2,debian"]
)
def test_a_node_finds_itself(ask: Ask, hosts: str) -> None:
    assert ask(hosts, HERE) == 1


@every_way
@pytest.mark.parametrize("hosts", ["10.0.0.2,10.0.0.3", "node2,nowhere", "node1,debian"])
def test_none_or_two_of_the_hosts(ask: Ask, hosts: str) -> None:
    with pytest.raises(ValueError, match="this machine"):
        ask(hosts, HERE)


def test_by_address_or_name() -> None:
    for host in ("10.0.0.1", "fd00::1", "node1", "debian", "localhost", "127.0.0.1", "127.0.3.4"):
        assert is_here(host, HERE), host
    for host in ("10.0.0.2", "node2", "nowhere"):
        assert not is_here(host, HERE), host


def test_whoever_says_which_one_it_is_is_believed() -> None:
    assert find_here(["127.0.0.1", "10.0.0.9"], "10.0.0.9", HERE) == [1]
    assert find_here(["10.0.0.9", "127.0.0.1"], "localhost", HERE) == [1]
    assert find_here(["10.0.0.1", "10.0.0.9"], "10.0.0.8", HERE) == []


def test_one_loopback_address_needs_no_look_at_the_machine() -> None:
    class Untouched(FakeMachine):
        def addresses(self) -> frozenset[str]:
            raise AssertionError("a look costs an import")

    assert find_here(["localhost"], None, Untouched()) == [0]


def test_loopback_next_to_other_addresses() -> None:
    assert stray_loopback(["10.0.0.1", "localhost"]) == 1
    assert stray_loopback(["127.0.0.1", "127.0.0.2"]) is None
    assert stray_loopback(["10.0.0.1", "10.0.0.2"]) is None


@pytest.mark.parametrize(("host", "text"), [("a", "a:1"), ("fd00::1", "[fd00::1]:1")])
def test_endpoints_are_joined_and_split(host: str, text: str) -> None:
    assert join(host, 1) == text
    assert split_endpoint(text) == (host, 1)
