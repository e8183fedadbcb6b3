"""CPUs of ranks, from trees that describe machines as the kernel does."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import pytest

from rankspawn import spawn
from rankspawn.plan.numa import bind, parse_cpus


def describe(root: Path, *, nodes: int, sockets: int, cores: int, per_cache: int) -> str:
    """A machine with ``cores`` cores of two threads each; the second threads come last."""
    for node in range(nodes):
        own = range(node * cores // nodes, (node + 1) * cores // nodes)
        text = f"{own[0]}-{own[-1]},{own[0] + cores}-{own[-1] + cores}\n"
        write(root / "node" / f"node{node}" / "cpulist", text)
    for cpu in range(2 * cores):
        core = cpu % cores
        folder = root / "cpu" / f"cpu{cpu}"
        write(folder / "topology" / "physical_package_id", f"{core * sockets // cores}\n")
        write(folder / "topology" / "thread_siblings_list", f"{core},{core + cores}\n")
        first = core // per_cache * per_cache
        last = first + per_cache - 1
        shared = f"{first}-{last},{first + cores}-{last + cores}\n"
        write(folder / "cache" / "index3" / "shared_cpu_list", shared)
    return str(root)


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def large(tmp_path: Path) -> str:
    """Four nodes in two sockets, 16 cores of two threads, two cores with each cache."""
    return describe(tmp_path, nodes=4, sockets=2, cores=16, per_cache=2)


ALL = range(32)


def cpus(*texts: str) -> list[frozenset[int]]:
    return [parse_cpus(text) for text in texts]


def test_the_node_of_its_device(large: str) -> None:
    assert bind("node", [3, 0, 3], ALL, large) == cpus("12-15,28-31", "0-3,16-19", "12-15,28-31")


def test_the_socket_of_its_device(large: str) -> None:
    assert bind("socket", [1, 2], ALL, large) == cpus("0-7,16-23", "8-15,24-31")


def test_cores_for_each_alone(large: str) -> None:
    assert bind("exclusive", [1, 1, 0, 1], ALL, large) == cpus(
        "4-5,20-21", "6,22", "0-3,16-19", "7,23"
    )


def test_more_ranks_than_cores(large: str) -> None:
    with pytest.raises(ValueError, match="5 ranks share a NUMA node with 4 cores"):
        bind("exclusive", [0] * 5, ALL, large)


def test_those_that_share_a_cache(large: str) -> None:
    assert bind("core-complex", [0, 0, 0, 2], ALL, large) == cpus(
        "0-1,16-17", "2-3,18-19", "0-1,16-17", "8-9,24-25"
    )


def test_ranks_without_devices_are_shared_out(large: str) -> None:
    nodes = cpus("0-3,16-19", "4-7,20-23", "8-11,24-27", "12-15,28-31")
    assert bind("node", [None] * 4, ALL, large) == nodes
    assert bind("node", [None] * 2, ALL, large) == [nodes[0], nodes[2]]
    assert bind("node", [None] * 8, ALL, large) == [node for node in nodes for _ in range(2)]


def test_no_others_than_this_process_has(large: str) -> None:
    assert bind("node", [0, None], [1, 2, 17, 9], large) == cpus("1-2,17", "9")
    # The node of its device is not among them.
    assert bind("node", [3], [1, 2], large) == cpus("1-2")
    assert bind("exclusive", [0, 0], [1, 2, 17], large) == cpus("1,17", "2")


@pytest.mark.parametrize("how", ["node", "socket", "core-complex"])
def test_a_machine_that_says_nothing_is_one(tmp_path: Path, how: str) -> None:
    assert bind(how, [None, 0], range(4), str(tmp_path)) == cpus("0-3", "0-3")


def test_one_node_is_shared_out_by_cores(tmp_path: Path) -> None:
    assert bind("exclusive", [None] * 2, range(4), str(tmp_path)) == cpus("0-1", "2-3")


def test_lists_of_cpus() -> None:
    assert parse_cpus("0-2,8\n") == {0, 1, 2, 8}
    assert parse_cpus("\n") == frozenset()


def own_cpus() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def outer() -> tuple[list[int], list[list[int]], bool]:
    inner = spawn(own_cpus, nprocs=1, backend="gloo", start_method="fork").results()
    return own_cpus(), inner, "RANKSPAWN_CPUS" in os.environ


@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_ranks_of_spawn(method: Literal["spawn", "fork", "forkserver"]) -> None:
    count = min(2, len(os.sched_getaffinity(0)))
    expected = bind("exclusive", [None] * count, os.sched_getaffinity(0))
    context = spawn(own_cpus, nprocs=count, backend="gloo", numa="exclusive", start_method=method)
    assert [frozenset(own) for own in context.results()] == expected


def test_a_job_in_a_bound_rank_is_not_told_its_cpus() -> None:
    ((own, inner, is_told),) = spawn(outer, nprocs=1, backend="gloo", numa="node").results()
    assert (inner, is_told) == ([own], True)


def test_a_system_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "sched_setaffinity")
    with pytest.raises(ValueError, match="cannot bind processes to CPUs"):
        spawn(own_cpus, nprocs=1, backend="gloo", numa="node")


def test_more_ranks_than_this_machine_has_cores() -> None:
    with pytest.raises(ValueError, match="numa 'exclusive' is not possible"):
        spawn(own_cpus, nprocs=len(own_cpus()) + 1, backend="gloo", numa="exclusive")
