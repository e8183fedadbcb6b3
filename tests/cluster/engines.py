"""Every engine that the common tests run over: two nodes each.

An engine is added as a line: its name, and a context in which what it needs is up, or which skips
the test with the reason if that is not here.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import pytest

from rankspawn.cluster import Engine, Local, Ray, Slurm, Ssh
from tests.cluster.sshd import HOSTS, running_sshd, why_no_sshd
from tests.launch.slurm_cluster import running_slurm, why_no_slurm


@dataclass(frozen=True)
class Place:
    """Where an engine starts something.

    Attributes:
        make: The engine, for so many nodes.
        settle: Waits until nothing of a job is left there.
    """

    make: Callable[[int], Engine]
    settle: Callable[[], None] = lambda: None


@contextlib.contextmanager
def _local() -> Iterator[Place]:
    yield Place(lambda nodes: Local(nodes=nodes))


@contextlib.contextmanager
def _ssh() -> Iterator[Place]:
    if why := why_no_sshd():
        pytest.skip(why)
    with running_sshd() as server:

        def make(nodes: int) -> Engine:
            return Ssh(
                HOSTS[:nodes],
                port=server.port,
                identity=server.identity,
                options=server.options,
            )

        yield Place(make, server.wait_until_idle)


@contextlib.contextmanager
def _slurm() -> Iterator[Place]:
    if why := why_no_slurm():
        pytest.skip(why)
    with running_slurm() as cluster, pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLURM_CONF", str(cluster.configuration))
        yield Place(lambda nodes: Slurm(nodes=nodes), cluster.wait_until_idle)


@contextlib.contextmanager
def _ray() -> Iterator[Place]:
    init = {"_node_ip_address": "127.0.0.2"}
    yield Place(lambda nodes: Ray(nodes, address=os.environ[RAY_ADDRESS], init=init))


ENGINES: dict[str, Callable[[], AbstractContextManager[Place]]] = {
    "local": _local,
    "ssh": _ssh,
    "slurm": _slurm,
}
# Where Ray is: test_ray.py runs the tests over it in a process of its own.
RAY_ADDRESS = "RANKSPAWN_TESTS_RAY"
if RAY_ADDRESS in os.environ:
    ENGINES = {"ray": _ray}
# Those that the README's test command runs; the others take longer, and are slow.
FAST = ("local",)


def parameters() -> list[object]:
    """One for each engine, for ``pytest.fixture``."""
    return [
        pytest.param(up, id=name, marks=() if name in FAST else pytest.mark.slow)
        for name, up in ENGINES.items()
    ]
