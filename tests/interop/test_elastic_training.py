"""An elastic job of real DDP workers, who all fail or hang when one of them is gone."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.launch.members import SHORT, Job, Member, Worker, running_job
from tests.launch.rendezvous.networks import Network, network
from tests.ports import free_port

pytestmark = [
    pytest.mark.interop,
    pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed"),
]

SCRIPT = str(Path(__file__).with_name("elastic_script.py"))
PORT = 6170
# As in docs/launch.md, with less patience: all three are started here.
FLAGS = ("--nnodes", "1:3", "--elastic_timeout", "600", *SHORT)
DEFAULT: tuple[str, ...] = ()
levels = pytest.mark.parametrize(
    "level", [DEFAULT, ("--elastic_level", "1")], ids=["default", "level 1"]
)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[Job]:
    with running_job(tmp_path) as job:
        yield job


def start(
    job: Job, master: str, *flags: str, inside: Sequence[str] = (), **variables: str
) -> Member:
    flags = (*FLAGS, "--master", master, *flags)
    return job.start(*flags, inside=inside, script=[SCRIPT], OMP_NUM_THREADS="1", **variables)


def finish(survivors: list[Member], workers: list[Worker]) -> None:
    workers[0].say("done")
    assert [member.wait() for member in survivors] == [0, 0]


@levels
def test_training_goes_on_without_a_killed_node(job: Job, level: tuple[str, ...]) -> None:
    """The others' all-reduce fails at once, long before the node counts as lost."""
    master = f"127.0.0.1:{free_port()}"
    first = start(job, master, *level)
    first.wait_for("1 of 3 nodes are here")
    others = [start(job, master, *level) for _ in range(2)]
    old = job.workers(3)
    others[1].send(signal.SIGKILL)
    new = job.next_generation(old, 2)
    assert int(new[0].args[0]) >= 2, "it did not go on from a checkpoint"
    finish([first, others[0]], new)


@pytest.fixture
def machines() -> Iterator[Network]:
    with network(3) as built:
        yield built


def test_training_goes_on_without_a_machine_that_was_cut_off(job: Job, machines: Network) -> None:
    """Nobody hears of it: an all-reduce waits for half an hour. It comes back, and takes part."""
    master = f"{machines.address(0)}:{PORT}"
    # The name of this machine, by which gloo finds its address, means none of theirs.
    device = {"GLOO_SOCKET_IFNAME": "eth0"}
    nodes = [start(job, master, inside=machines.inside(machine), **device) for machine in range(3)]
    old = job.workers(3)
    machines.cut(2)
    new = job.next_generation(old, 2)
    machines.mend(2)
    last = job.next_generation(new, 3)
    assert int(last[0].args[0]) >= 4
    last[0].say("done")
    assert [node.wait() for node in nodes] == [0, 0, 0]
