"""``spawn(..., cluster=...)``: from checked options to groups on nodes."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rankspawn
from rankspawn.caller import warn_caller
from rankspawn.cluster.agent import clock_name
from rankspawn.cluster.agents import start_agents
from rankspawn.cluster.engine import Engine, Node
from rankspawn.cluster.group import ClusterGroup
from rankspawn.cluster.node_state import NodeState
from rankspawn.cluster.printed import InMemory, Logs, Merged
from rankspawn.cluster.terms import Terms
from rankspawn.descriptors import make_room_for_descriptors
from rankspawn.functions import name_of
from rankspawn.option_values import read_variables
from rankspawn.options import SpawnOptions, check_rank_args
from rankspawn.plan.job import device_request
from rankspawn.plan.resources import wanted_type
from rankspawn.values import replace
from rankspawn.view.request import check_show_request, read_show_request
from rankspawn.view.sources import Place
from rankspawn.workers.payload import Inheritance, write_payload
from rankspawn.workers.start import StartSettings, setting_of_parent

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.printed import Printed
    from rankspawn.supervise.group import Spectator
    from rankspawn.trace.recorder import Recorder
    from rankspawn.view.request import ShowRequest
    from rankspawn.view.viewer import View
    from rankspawn.workers.payload import Payload
    from rankspawn.workers.start import Task

# What each node's agent decides by, as it is.
_OF_THE_NODE = (
    *("start_method", "preload", "backend", "gpus", "xpus", "devices", "device_type"),
    *("share_devices", "selected_devices", "device_visibility", "numa", "threads_per_rank"),
    *("agent_store", "max_restarts", "print_config"),
)
# Options that are about this machine, or other machines found in another way.
_NOT_HERE = {
    "ips": "the engine says what nodes there are",
    "node_ip": "the engine says what nodes there are",
    "started_port": "each node takes free ports",
    "use_paddlecloud": "the engine says what nodes there are",
    "debug": "ranks on other machines have no terminal here",
    "debugpy": "ranks on other machines listen at no port of this one",
}
# Of ranks that are watched: two of a file with its output, and one each for the view, a watch
# for stalls and a trace.
_DESCRIPTORS_PER_RANK = 5
_PREFIX = "[{host} rank {rank}] "


def check_options(options: SpawnOptions) -> None:
    """Refuse what means nothing on a cluster.

    Raises:
        ValueError: An option, and why not.
    """
    usual = SpawnOptions()
    for name, why in _NOT_HERE.items():
        if getattr(options, name) != getattr(usual, name):
            raise ValueError(f"{name} and cluster cannot be given at once: {why}")
    if options.logging == "relay":
        raise ValueError(
            "logging='relay' and cluster cannot be given at once: records come from ranks of this "
            "machine only"
        )
    if options.start_method == "fork":
        raise ValueError(
            "start_method='fork' copies this process, which other machines do not have: use "
            "'spawn' or 'forkserver' with cluster"
        )


def counts_of(nprocs: int | Sequence[int], nodes: Sequence[Node]) -> list[int]:
    """How many ranks each node will have; -1 for one per device, which its agent knows.

    Raises:
        ValueError: There is not one count per node.
    """
    if isinstance(nprocs, int):
        if nprocs != -1:
            return [nprocs] * len(nodes)
        return [-1 if node.slots is None else node.slots for node in nodes]
    if len(nprocs) != len(nodes):
        raise ValueError(
            f"nprocs has {len(nprocs)} counts, but there are {len(nodes)} nodes: give one for "
            "each, or one int for all"
        )
    return list(nprocs)


@dataclasses.dataclass
class ClusterStarter:
    """Starts groups of one call of ``spawn``.

    Attributes:
        engine: Starts their agents.
        task: What ranks run.
        options: What was asked for.
        nprocs: Ranks on each node.
        daemon: The processes' daemon flag.
        logging: How it is set up here, if ranks are to have the same.
        recorder: Who writes a trace, if one was asked for.
        view: Who shows what they print, if anybody does.
    """

    engine: Engine
    task: Task
    options: SpawnOptions
    nprocs: int | Sequence[int]
    daemon: bool
    logging: bytes | None = None
    recorder: Recorder | None = None
    view: View | None = None

    def __post_init__(self) -> None:
        options = self.options
        self._run_id = uuid.uuid4().hex
        self._payload: Payload | None = None  # of which the places count
        self._pickled = b""
        self._warned = False
        timeout = options.timeout
        self._deadline = None if timeout is None else time.monotonic() + timeout
        self.request: ShowRequest | None = read_show_request(options, in_notebook=True)
        if self.request is not None and options.prefix is None and self.request.prefix:
            self.request = replace(self.request, prefix=_PREFIX)
        # Nobody has to tell the ranks' lines apart.
        watches = options.progress or (options.stall_timeout, options.trace) != (None, None)
        self._is_plain = options.tee is None and not watches and options.log_dir is None

    def check(self, counts: Sequence[int]) -> None:
        """What can only be known with the number of ranks.

        Raises:
            ValueError: An option is about another number of ranks.
        """
        if -1 not in counts:
            world_size = sum(counts)
            check_rank_args(self.options, world_size)
            check_show_request(self.options, self.request, world_size)
            if not self._is_plain:
                make_room_for_descriptors(_DESCRIPTORS_PER_RANK * world_size)

    @property
    def supervised(self) -> SpawnOptions:
        """The options that this process has to see to."""
        return self.options

    def spectators(self) -> list[Spectator]:
        """Who shows what ranks do."""
        found: list[Spectator] = [] if self.recorder is None else [self.recorder]
        if self.request is not None:
            from rankspawn.view.viewer import View

            self.view = View(self.request, [])
            found.append(self.view)
        return found

    def start(self, restart_count: int) -> ClusterGroup:
        """Start all ranks on all nodes, or none."""
        options, engine = self.options, self.engine
        nodes = engine.nodes()
        counts = counts_of(self.nprocs, nodes)
        self.check(counts)
        terms = self._terms(restart_count)
        printed = self._printed(restart_count)
        group, states = start_agents(
            engine,
            counts,
            terms,
            printed,
            job=f"rankspawn-{self._run_id[:12]}-{restart_count}",
            grace=options.grace_period,
            daemon=self.daemon,
            device_type=wanted_type(device_request(-1, options)),
        )
        if self._deadline is not None:
            self._deadline += group.queued
        group.stops_on_failure = options.on_failure == "stop"
        group.what = name_of(self.task.func)
        group.start(counts, self._deadline, engine.start_timeout)
        try:
            self._note_nodes(states, printed)
        except BaseException:  # a folder that is full, a filter of warnings
            group.stop(0.0)
            group.close()
            raise
        return group

    def _note_nodes(self, nodes: Sequence[NodeState], printed: Printed) -> None:
        """What is known once all nodes have answered."""
        if isinstance(printed, Logs):
            printed.make(sum(node.count for node in nodes))
        places = [place for node in nodes for place in _places(node, nodes)]
        if self.view is not None:
            self.view.places = places[:1] if self._is_plain else places
        if self.recorder is not None:
            self.recorder.take_places(
                [
                    dataclasses.replace(place, device=f"{place.host} {place.device}")
                    for place in places
                ]
            )
        warnings = {node.warning for node in nodes if node.warning}
        if not self._warned:
            self._warned = True
            for text in sorted(warnings):
                warn_caller(text, UserWarning)

    def _printed(self, restart_count: int) -> Printed:
        if self.options.log_dir is not None:
            folder = os.path.abspath(self.options.log_dir)
            from rankspawn.file_systems import check_answers

            check_answers(folder)
            os.makedirs(folder, exist_ok=True)
            return Logs(folder, keep=restart_count > 0)
        return Merged() if self._is_plain else InMemory()

    def _terms(self, restart_count: int) -> Terms:
        options, task = self.options, self.task
        if self._payload is None:
            payload = write_payload(
                task.func,
                task.args,
                task.kwargs,
                task.rows(),
                Inheritance(elsewhere=True),
                main_by_value=not self.engine.shares_files,
            )
            try:
                self._pickled = _read(payload)
            finally:
                payload.close()
            self._payload = payload
        payload = self._payload
        settings = StartSettings(
            options.start_method, self.daemon, options.preload, logging=self.logging
        )
        setting = setting_of_parent(payload, settings)
        multiprocessing = setting["multiprocessing"]
        authkey = multiprocessing["authkey"].hex()
        sent = {
            **setting,
            "logging": None if self.logging is None else self.logging.hex(),
            "prefixes": [sys.prefix, sys.base_prefix],
            "multiprocessing": {**multiprocessing, "authkey": authkey},
        }
        env = options.env
        return Terms(
            version=rankspawn.__version__,
            python=sys.version.split()[0],
            clock=clock_name(),
            prepare={
                "is": "prepare",
                "options": {name: getattr(options, name) for name in _OF_THE_NODE},
                "grace": options.grace_period,
                "lease": self.engine.lease,
            },
            start={
                "is": "start",
                "run_id": self._run_id,
                "restart_count": restart_count,
                "daemon": self.daemon,
                "what": name_of(self.task.func),
                "looked_at": options.progress
                or (options.on_report, options.stall_timeout, options.trace) != (None, None, None),
                "measured": options.progress or options.trace is not None,
                "traced": options.trace is not None,
                "setting": sent,
                "payload": {"task": payload.task.table},
            },
            payload=memoryview(self._pickled),
            shared=payload.task.end,
            own=[(part.table, part.end) for part in payload.own],
            env=None if env is None else lambda rank: _env_of(env, rank),
            check=self.check,
            lease=self.engine.lease,
        )


def _read(payload: Payload) -> bytes:
    """All that is in the file, which can be closed then: it is sent once to each node."""
    with open(payload.file.fileno(), "rb", closefd=False) as file:
        file.seek(0)
        return file.read(payload.end)


def _env_of(
    env: Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]], rank: int
) -> Mapping[str, str | None]:
    return dict(read_variables(f"env({rank})", env(rank)) if callable(env) else env)


def _places(node: NodeState, nodes: Sequence[NodeState]) -> list[Place]:
    """What the view calls each rank of a node."""
    world_size = sum(each.count for each in nodes)
    places = []
    for local in range(node.count):
        kind = node.device_type
        device = f"{kind} {node.devices[local]}" if node.devices else kind
        host, rank = node.host_of(local), node.first + local
        places.append(Place(rank, local, world_size, device, node=node.number, host=host))
    return places


def make_starter(
    engine: Any,
    task: Task,
    options: SpawnOptions,
    nprocs: int | Sequence[int],
    *,
    daemon: bool,
    logging: bytes | None,
    recorder: Recorder | None,
) -> ClusterStarter:
    """What starts the groups of this call; see :class:`ClusterStarter`.

    Raises:
        ValueError, TypeError: Something asked for cannot be; nothing was started.
    """
    check_options(options)
    make: type[ClusterStarter] = ClusterStarter
    if getattr(engine, "detaches", False):
        from rankspawn.cluster.attaching import DetachedStarter

        make = DetachedStarter
    return make(engine, task, options, nprocs, daemon, logging, recorder)
