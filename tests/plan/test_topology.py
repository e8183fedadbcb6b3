"""Nodes, endpoints and PaddleCloud."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from rankspawn.options import SpawnOptions
from rankspawn.plan.devices import Machine
from rankspawn.plan.topology import (
    Host,
    Topology,
    endpoints_of,
    find_nodes,
    identify,
    ignored_ips,
)

MachineOf = Callable[..., Machine]
TWO_NODES = ("10.0.0.1", "10.0.0.2")
SECOND = frozenset({"127.0.0.1", "10.0.0.2"})
CLOUD = {
    "PADDLE_TRAINERS": "10.0.0.1,10.0.0.2",
    "POD_IP": "10.0.0.2",
    "PADDLE_TRAINER_ID": "1",
    "TRAINER_PORTS_NUM": "2",
    "PADDLE_TRAINERS_NUM": "2",
}


def ports(topology: Topology) -> list[tuple[int, ...] | None]:
    return [node.ports for node in topology.nodes]


def test_one_node_uses_free_ports_on_loopback(machine: MachineOf) -> None:
    found = find_nodes(2, SpawnOptions(), {}, machine())
    assert found.own.address == found.bind_host == "127.0.0.1"
    assert ports(found) == [None]
    assert endpoints_of(found, (5001, 5002)) == ("127.0.0.1:5001", "127.0.0.1:5002")


def test_several_nodes_count_up_from_6070(machine: MachineOf) -> None:
    found = find_nodes(2, SpawnOptions(ips=TWO_NODES), {}, machine(own=SECOND))
    assert found.node_rank == 1
    assert endpoints_of(found, (6070, 6071)) == (
        "10.0.0.1:6070",
        "10.0.0.1:6071",
        "10.0.0.2:6070",
        "10.0.0.2:6071",
    )


def test_started_port_is_where_the_ports_begin(machine: MachineOf) -> None:
    options = SpawnOptions(ips=TWO_NODES, started_port=7000)
    assert ports(find_nodes(2, options, {}, machine(own=SECOND))) == [(7000, 7001)] * 2
    assert ports(find_nodes(2, SpawnOptions(started_port=7000), {}, machine())) == [(7000, 7001)]


def test_ports_end_at_65535(machine: MachineOf) -> None:
    assert ports(find_nodes(1, SpawnOptions(started_port=65535), {}, machine())) == [(65535,)]
    with pytest.raises(ValueError, match="started_port=65535 leaves no room for 2 ports"):
        find_nodes(2, SpawnOptions(started_port=65535), {}, machine())


def test_a_host_name_is_found_by_its_address(machine: MachineOf) -> None:
    options = SpawnOptions(ips=("first", "second"))
    names = {"first": "10.0.0.1", "second": "10.0.0.2"}
    found = find_nodes(1, options, {}, machine(own=SECOND, names=names))
    assert (found.node_rank, found.bind_host) == (1, "10.0.0.2")
    assert endpoints_of(found, ()) == ("first:6070", "second:6070")


def test_a_host_name_that_means_loopback_here_is_this_node(machine: MachineOf) -> None:
    names = {"first": "127.0.1.1", "second": "10.0.0.2"}
    options = SpawnOptions(ips=("first", "second"))
    assert find_nodes(1, options, {}, machine(names=names)).node_rank == 0


def test_node_ip_says_which_node_this_is(machine: MachineOf) -> None:
    options = SpawnOptions(ips=("127.0.0.1", "127.0.0.2"), node_ip="127.0.0.2")
    found = find_nodes(1, options, {}, machine())
    assert (found.node_rank, found.bind_host) == (1, "127.0.0.2")


def test_node_ip_must_be_one_of_the_nodes(machine: MachineOf) -> None:
    options = SpawnOptions(ips=TWO_NODES, node_ip="10.0.0.3")
    with pytest.raises(ValueError, match=r"node_ip='10.0.0.3' .* ips='10.0.0.1,10.0.0.2'"):
        find_nodes(1, options, {}, machine())


@pytest.mark.parametrize("ips", [TWO_NODES, ("10.0.0.1",), ("nowhere",)])
def test_a_machine_that_is_no_node_is_told_both_lists(
    ips: tuple[str, ...], machine: MachineOf
) -> None:
    expected = f"none of ips='{','.join(ips)}' belongs .* 127.0.0.1, ::1"
    with pytest.raises(ValueError, match=expected):
        find_nodes(1, SpawnOptions(ips=ips), {}, machine())


def test_two_nodes_on_this_machine_need_node_ip(machine: MachineOf) -> None:
    options = SpawnOptions(ips=("127.0.0.1", "127.0.0.2"))
    with pytest.raises(ValueError, match="names this machine 2 times"):
        find_nodes(1, options, {}, machine())


def test_loopback_is_refused_next_to_real_addresses(machine: MachineOf) -> None:
    options = SpawnOptions(ips=("127.0.0.1", "10.0.0.2"), node_ip="127.0.0.1")
    with pytest.raises(ValueError, match=r"127\.0\.0\.1 means a different machine on every node"):
        find_nodes(1, options, {}, machine())


def test_ipv6_endpoints_have_brackets(machine: MachineOf) -> None:
    found = find_nodes(1, SpawnOptions(ips=("::1",)), {}, machine())
    assert found.bind_host == "::1"
    assert endpoints_of(found, (5001,)) == ("[::1]:5001",)


def test_nodes_may_have_different_numbers_of_ranks() -> None:
    rows = ((1, 2), (3,), (4, 5, 6))
    hosts = tuple(Host(name, len(row), row) for name, row in zip("abc", rows, strict=True))
    nodes = [Topology(hosts, me, "") for me in range(3)]
    everybody = [who for node, row in zip(nodes, rows, strict=True) for who in identify(node, row)]
    assert [node.first_rank for node in nodes] == [0, 2, 3]
    assert [who.rank for who in everybody] == list(range(6))
    assert [who.local_rank for who in everybody] == [0, 1, 0, 0, 1, 2]
    assert [who.local_world_size for who in everybody] == [2, 2, 1, 3, 3, 3]
    assert [who.endpoint for who in everybody] == ["a:1", "a:2", "b:3", "c:4", "c:5", "c:6"]
    assert {who.world_size for who in everybody} == {node.world_size for node in nodes} == {6}


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ({}, [(6170, 6171), (6170, 6171)]),
        ({"PADDLE_PORT": "7100"}, [(7100, 7101), (7100, 7101)]),
        (
            {
                "PADDLE_PORT": "7100",
                "DISTRIBUTED_TRAINER_ENDPOINTS": "10.0.0.1:1,10.0.0.1:2,10.0.0.2:3,10.0.0.2:4",
            },
            [(1, 2), (3, 4)],
        ),
    ],
)
def test_paddlecloud_brings_its_own_nodes_and_ports(
    extra: dict[str, str], expected: list[tuple[int, ...]], machine: MachineOf
) -> None:
    found = find_nodes(2, SpawnOptions(), CLOUD | extra, machine())
    assert [node.address for node in found.nodes] == list(TWO_NODES)
    assert (found.node_rank, found.bind_host) == (1, "10.0.0.2")
    assert ports(found) == expected


@pytest.mark.parametrize("missing", ["PADDLE_TRAINERS", "POD_IP", "PADDLE_TRAINER_ID"])
def test_incomplete_cloud_variables_are_ignored_unless_asked_for(
    missing: str, machine: MachineOf
) -> None:
    environ = {name: value for name, value in CLOUD.items() if name != missing}
    assert len(find_nodes(2, SpawnOptions(), environ, machine()).nodes) == 1
    with pytest.raises(ValueError, match=f"{missing} is not set"):
        find_nodes(2, SpawnOptions(use_paddlecloud=True), environ, machine())


def test_a_cloud_of_one_trainer_is_one_node(machine: MachineOf) -> None:
    environ = CLOUD | {"PADDLE_TRAINERS_NUM": "1"}
    assert ports(find_nodes(2, SpawnOptions(), environ, machine())) == [None]


def test_a_spawn_inside_a_worker_stays_on_its_machine(machine: MachineOf) -> None:
    environ = CLOUD | {"RANKSPAWN_DEVICE_TYPE": "cpu"}
    assert ports(find_nodes(2, SpawnOptions(), environ, machine())) == [None]


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"PADDLE_TRAINER_ID": "0"}, "contradict each other"),
        ({"PADDLE_TRAINER_ID": "2"}, "contradict each other"),
        ({"PADDLE_TRAINER_ID": "x"}, "PADDLE_TRAINER_ID='x' is no number"),
        ({"PADDLE_PORT": "x"}, "PADDLE_PORT='x' is no number"),
        ({"DISTRIBUTED_TRAINER_ENDPOINTS": "10.0.0.1:1,10.0.0.2:3"}, "has 1 endpoints"),
    ],
)
def test_cloud_variables_that_make_no_sense_are_named(
    extra: dict[str, str], message: str, machine: MachineOf
) -> None:
    with pytest.raises(ValueError, match=message):
        find_nodes(2, SpawnOptions(), CLOUD | extra, machine())


def test_ips_that_the_cloud_overrides_are_named() -> None:
    given = SpawnOptions(ips=("10.9.9.1", "10.9.9.2"))

    told = ignored_ips(given, CLOUD)

    assert told is not None
    assert "ips='10.9.9.1,10.9.9.2' is not used" in told
    assert CLOUD["PADDLE_TRAINERS"] in told
    assert ignored_ips(given, {}) is None
    assert ignored_ips(SpawnOptions(), CLOUD) is None
    same = tuple(CLOUD["PADDLE_TRAINERS"].split(","))
    assert ignored_ips(SpawnOptions(ips=same), CLOUD) is None
