"""The ranks of one node: what they run on, and their start. Runs in the agent.

They are a group of local processes like any other: marks, guardian, outcome files, stacks and all
the rest are those of ``rankspawn.workers``.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from rankspawn.descriptors import Owned, anonymous_file, make_room_for_descriptors
from rankspawn.machine import RealMachine
from rankspawn.options import SpawnOptions
from rankspawn.plan.job import Job, device_request
from rankspawn.plan.ports import HeldPorts
from rankspawn.plan.resources import find_resources
from rankspawn.plan.topology import Host, Topology, bind_host_of
from rankspawn.spawning import start_planned
from rankspawn.values import dataclass, replace
from rankspawn.workers.child import current_folder
from rankspawn.workers.payload import Part, Payload
from rankspawn.workers.start import StartSettings, Task

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.frames import Header
    from rankspawn.plan.resources import Resources
    from rankspawn.workers.group import WorkerGroup
    from rankspawn.workers.payload import Inheritance

# A sentinel, an outcome, a port, its output and two looks at that.
_DESCRIPTORS_PER_RANK = 7


@dataclass(frozen=True, slots=True)
class SentTask(Task):
    """A task that came in a file, ready for workers."""

    payload: Payload | None = None
    sent: Any = None

    def write(
        self,
        inheritance: Inheritance,  # noqa: ARG002 - nothing is inherited
        settings: StartSettings,  # noqa: ARG002 - the driver's setting counts
    ) -> tuple[Payload, int]:
        """The file as it came, and there the table of the setting."""
        assert self.payload is not None
        return self.payload, self.payload.add(self._setting())

    def _setting(self) -> dict[str, Any]:
        """What the driver is like, as far as it can be had here."""
        sent: dict[str, Any] = self.sent
        folder = sent["folder"]
        multiprocessing = sent["multiprocessing"]
        return {
            **sent,
            "path": merge_paths(sent["path"], sent["prefixes"]),
            "folder": folder if folder and os.path.isdir(folder) else current_folder(),
            "logging": sent["logging"] and bytes.fromhex(sent["logging"]),
            "main": sent["main"] and tuple(sent["main"]),
            "multiprocessing": {
                **multiprocessing,
                "authkey": bytes.fromhex(multiprocessing["authkey"]),
                "parent_pid": os.getpid(),
            },
        }


def merge_paths(theirs: list[str], prefixes: list[str]) -> list[str]:
    """The import path of ranks: the driver's, but for what belongs to its installation.

    Args:
        theirs: The driver's ``sys.path``.
        prefixes: Where its interpreter and its environment are.
    """
    if prefixes == [sys.prefix, sys.base_prefix]:
        return theirs
    installed = tuple(os.path.join(prefix, "lib", "") for prefix in prefixes)
    own = [path for path in theirs if not path.startswith(installed) and path not in sys.path]
    return own + sys.path


class NodeRanks:
    """What an agent is told to start, step by step.

    Attributes:
        group: The ranks, once they are started.
        grace: Seconds that they get to end.
    """

    def __init__(self) -> None:
        self.group: WorkerGroup | None = None
        self.grace: float = 10.0
        self._ports: HeldPorts | None = None
        self._payload: Owned | None = None

    def prepare(self, asked: Header) -> Header:
        """Find out what there is for ranks, and hold their ports; the answer to the driver.

        Raises:
            Exception: The node cannot do it; the message says why.
        """
        self.grace = asked["grace"]
        self._options = _read_options(asked["options"], self.grace)
        machine = RealMachine()
        request = device_request(asked["count"], self._options)
        self._resources: Resources = find_resources(request, os.environ, machine)
        count = self._resources.nprocs
        make_room_for_descriptors(_DESCRIPTORS_PER_RANK * count)
        address = asked["address"] or own_address(machine)
        self._bind_host = bind_host_of(address, machine)
        self._ports = HeldPorts(count, self._bind_host)
        self._payload = Owned(anonymous_file("rankspawn-payload"))
        devices = self._resources.devices
        return {
            "is": "ready",
            "address": address,
            "ports": self._ports.ports,
            "backend": self._resources.backend,
            "device_type": self._resources.device_type,
            "devices": [device.id for device in devices],
            "warning": self._resources.warning,
        }

    @property
    def gpus(self) -> list[str | None]:
        """The id of each rank's GPU; None for one that has none."""
        resources = self._resources
        if resources.device_type != "gpu" or not resources.devices:
            return [None] * resources.nprocs
        return [device.id for device in resources.devices]

    def take_payload(self, offset: int, data: bytes) -> None:
        """Keep a part of the payload."""
        assert self._payload is not None, "prepare comes first"
        view = memoryview(data)
        while view:
            done = os.pwrite(self._payload.fileno(), view, offset)
            view, offset = view[done:], offset + done

    def start(self, asked: Header, hosts: list[Any]) -> Header:
        """Start the ranks; the answer to the driver.

        Args:
            asked: What is different on each node.
            hosts: Address, count and ports of each.
        """
        assert self._payload is not None
        assert self._ports is not None
        nodes = tuple(Host(address, count, tuple(ports)) for address, count, ports in hosts)
        topology = Topology(nodes, asked["node_rank"], self._bind_host)
        options = self._options
        if asked["env"] is not None:
            own, first = asked["env"], topology.first_rank
            options = replace(options, env=lambda rank: own[rank - first])
        parts = asked["payload"]
        own_parts = tuple(Part(table, ()) for table in parts["own"])
        payload = Payload(self._payload, parts["end"], Part(parts["task"], ()), own_parts, None, ())
        settings = StartSettings(
            options.start_method,
            asked["daemon"],
            options.preload,
            captures=True,
            looked_at=asked["looked_at"],
        )
        shown: list[str] = []
        ports, self._ports = self._ports, None
        self.group = start_planned(
            SentTask(_InFile(asked["what"]), payload=payload, sent=asked["setting"]),
            Job(self._resources, topology, options),
            ports,
            settings,
            show=shown.append,
            run_id=asked["run_id"],
            restart_count=asked["restart_count"],
        )
        return {
            "is": "started",
            "pids": [worker.popen.pid for worker in self.group.workers],
            "plan": "\n".join(shown),
        }

    def close(self) -> None:
        """Let go of what was prepared, and of the group, which has ended."""
        if self.group is not None:
            self.group.close()
        for held in (self._ports, self._payload):
            if held is not None:
                held.close()


def _read_options(sent: Header, grace: float) -> SpawnOptions:
    """The options as they were, with tuples in place of JSON's lists."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in sent.items()
    }
    return SpawnOptions(**values, grace_period=grace)


class _InFile:
    """Stands for the function, which is in the payload; it has its name."""

    def __init__(self, what: str) -> None:
        self.__qualname__ = what

    def __call__(self) -> None:
        raise RuntimeError("this task is in a file")


def own_address(machine: RealMachine) -> str:
    """Where others reach this node, as far as it can know."""
    # What sshd says: the driver's address and port, and the address at which it came in.
    words = os.environ.get("SSH_CONNECTION", "").split()
    if len(words) == 4 and words[2] in machine.addresses():
        return words[2]
    name = os.uname().nodename
    own = machine.resolve(name) & machine.addresses()
    outside = sorted(address for address in own if not address.startswith(("127.", "::1")))
    return min(outside, key=lambda address: (":" in address, address), default=name)
