"""Agents in a Ray cluster: a placement group with a bundle on each node, an actor in each bundle.

The actor starts the agent, and its methods carry the bytes: nothing of ours listens. Ray ends the
actor when this process or its node is gone, and the agent finds its input at an end.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from rankspawn.cluster.engine import TIME_TO_KILL, AgentRequest, Node
from rankspawn.cluster.programs import SharedDeadline
from rankspawn.cluster.ray_actor import actor_class
from rankspawn.cluster.ray_channel import RayChannel, Shared

_log = logging.getLogger(__name__)
# Seconds without a place after which people want to know what it is that they wait for.
_PATIENCE = 10.0


class Ray:
    """Nodes of a Ray cluster: the one that this process is in, or that is at an address.

    Args:
        nodes: How many; None for all that are alive.
        address: As ``ray.init`` takes it; None for the cluster that runs here.
        resources: What is set aside on each node: ``{"GPU": 8}``. Ranks see these devices alone,
            and ``nprocs=-1`` means one for each of them, or for each CPU where only these are
            asked for. One CPU, if nothing is said.
        python: The interpreter on the nodes; None for the one that Ray's workers have.
        timeout: Seconds that Ray may take to find the place; None for as long as it takes.
        init: More for ``ray.init``, if this has to call it.

    Raises:
        ValueError: One of them makes no sense.
    """

    name = "Ray"
    start_timeout: float | None = None
    # Ray looks for its nodes itself.
    lease: float | None = None
    shares_files = False

    def __init__(
        self,
        nodes: int | None = None,
        *,
        address: str | None = None,
        resources: Mapping[str, float] | None = None,
        python: str | None = None,
        timeout: float | None = 600.0,
        init: Mapping[str, Any] | None = None,
    ) -> None:
        if nodes is not None and (isinstance(nodes, bool) or nodes < 1):
            raise ValueError(f"nodes={nodes!r}: a cluster has at least one node")
        if resources is not None and not any(resources.values()):
            raise ValueError(f"resources={dict(resources)} is nothing: a bundle needs a part")
        self._count, self._address, self._python = nodes, address, python
        self._resources = {"CPU": 1.0} if resources is None else dict(resources)
        self._is_asked = resources is not None
        self._timeout = timeout
        self._init = {"log_to_driver": False, "logging_level": logging.ERROR, **(init or {})}

    def __repr__(self) -> str:
        return f"Ray(nodes={self._count})"

    def nodes(self) -> Sequence[Node]:
        """As many as were asked for; which ones, Ray says later."""
        if self._count is None:
            ray = _import_ray()
            with self._connected(ray):
                self._count = sum(node["Alive"] for node in ray.nodes())
        return [Node()] * self._count

    def start(self, request: AgentRequest) -> Sequence[RayChannel]:
        """Have an actor placed on each node; waits until Ray has found the place."""
        ray = _import_ray()
        with contextlib.ExitStack() as undo:
            undo.enter_context(self._connected(ray))
            group = ray.util.placement_group(
                [self._resources] * len(self.nodes()), strategy="STRICT_SPREAD"
            )
            undo.callback(ray.util.remove_placement_group, group)
            words = [*([self._python] if self._python else []), *request.command("")[1:]]
            # They wait for the place by themselves, and go with it.
            kind = actor_class(ray)
            actors = [self._actor(ray, kind, group, number) for number in range(len(self.nodes()))]
            self._wait_for(ray, group)
            places = _places(ray, group)
            deadline = SharedDeadline(request.grace + TIME_TO_KILL)
            shared = Shared(ray, len(places), deadline, undo.pop_all())
        for actor in actors:
            actor.open.remote(words, self._environ())
        return [
            RayChannel(actor, *place, shared) for actor, place in zip(actors, places, strict=True)
        ]

    @contextlib.contextmanager
    def _connected(self, ray: Any) -> Any:
        """Connected to Ray; as before at the end."""
        if ray.is_initialized():
            yield
            return
        try:
            ray.init(address=self._address or "auto", **self._init)
        except ConnectionError as error:
            raise RuntimeError(
                f"there is no Ray cluster at {self._address or 'this machine'}: {error}. Start "
                "one with `ray start --head`, or say where it is with address="
            ) from error
        try:
            yield
        finally:
            ray.shutdown()

    def _wait_for(self, ray: Any, group: Any) -> None:
        began, ready = time.monotonic(), group.ready()
        limit = float("inf") if self._timeout is None else self._timeout
        while not ray.wait([ready], timeout=min(_PATIENCE, limit))[0]:
            what = f"{len(self.nodes())} nodes with {self._resources} each"
            have = [node["Resources"].get("CPU", 0) for node in ray.nodes() if node["Alive"]]
            if time.monotonic() - began >= limit:
                raise RuntimeError(
                    f"Ray found no place for {what} in {limit:g} s; it has {len(have)} nodes, with "
                    f"{have} CPUs. See `ray status`, or ask for less"
                )
            _log.warning("waiting for Ray to find %s; it has %d: see `ray status`", what, len(have))

    def _actor(self, ray: Any, kind: Any, group: Any, number: int) -> Any:
        strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            group, placement_group_bundle_index=number
        )
        others = {k: v for k, v in self._resources.items() if k not in ("CPU", "GPU", "memory")}
        return kind.options(
            num_cpus=self._resources.get("CPU", 0),
            num_gpus=self._resources.get("GPU", 0),
            memory=self._resources.get("memory"),
            resources=others or None,
            scheduling_strategy=strategy,
        ).remote()

    def _environ(self) -> dict[str, str]:
        """What the resources say to an agent that looks for devices."""
        cpus = int(self._resources.get("CPU", 0))
        return {"CPU_NUM": str(cpus)} if self._is_asked and cpus else {}


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise RuntimeError(
            "cluster=Ray() needs ray, which is not installed: pip install 'rankspawn[ray]'"
        ) from error
    return ray


def _places(ray: Any, group: Any) -> list[tuple[str, str]]:
    """Name and address of the node of each bundle; the address twice if names are not different."""
    placed = ray.util.placement_group_table(group)["bundles_to_node_id"]
    known = {node["NodeID"]: node for node in ray.nodes()}
    nodes = [known[placed[number]] for number in sorted(placed)]
    names = [node["NodeManagerHostname"] for node in nodes]
    addresses = [node["NodeManagerAddress"] for node in nodes]
    if len(set(names)) < len(names):
        names = addresses
    return list(zip(names, addresses, strict=True))
