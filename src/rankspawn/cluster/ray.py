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
            asked for. If nothing is said it is one CPU, and unless ranks are for the CPU a GPU for
            each of them: with ``nprocs=-1`` as many as all of the nodes have.
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
        self._resources = None if resources is None else dict(resources)
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
            bundles = self._bundles(ray, request)
            group = ray.util.placement_group(bundles, strategy="STRICT_SPREAD")
            undo.callback(ray.util.remove_placement_group, group)
            words = [*([self._python] if self._python else []), *request.command("")[1:]]
            # They wait for the place by themselves, and go with it.
            kind = actor_class(ray)
            actors = [
                _actor(ray, kind, group, number, bundle) for number, bundle in enumerate(bundles)
            ]
            self._wait_for(ray, group, bundles)
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

    def _bundles(self, ray: Any, request: AgentRequest) -> list[dict[str, float]]:
        """What is set aside on each node."""
        if self._resources is not None:
            return [dict(self._resources) for _ in request.counts]
        gpus = 0
        if request.device_type in (None, "gpu"):
            # What is not set aside Ray gives to others, and older ones hide it from our ranks.
            alive = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            have = sorted((int(each.get("GPU", 0)) for each in alive), reverse=True)
            # So many nodes have at least that; a rank that gets none is its agent's error.
            gpus = have[len(request.counts) - 1] if len(request.counts) <= len(have) else 0
        bundles = []
        for count in request.counts:
            part = gpus if count is None else min(count, gpus)
            bundles.append({"CPU": 1.0} | ({"GPU": float(part)} if part else {}))
        return bundles

    def _wait_for(self, ray: Any, group: Any, bundles: Sequence[Any]) -> None:
        began, ready = time.monotonic(), group.ready()
        limit = float("inf") if self._timeout is None else self._timeout
        while not ray.wait([ready], timeout=min(_PATIENCE, limit))[0]:
            what = f"{len(bundles)} nodes with {_in_words(bundles)}"
            have = [node["Resources"] for node in ray.nodes() if node["Alive"]]
            cpus, gpus = ([each.get(kind, 0) for each in have] for kind in ("CPU", "GPU"))
            if time.monotonic() - began >= limit:
                raise RuntimeError(
                    f"Ray found no place for {what} in {limit:g} s; it has {len(have)} nodes, with "
                    f"{cpus} CPUs and {gpus} GPUs. See `ray status`, or ask for less"
                )
            _log.warning("waiting for Ray to find %s; it has %d: see `ray status`", what, len(have))

    def _environ(self) -> dict[str, str]:
        """What the resources say to an agent that looks for devices."""
        cpus = int((self._resources or {}).get("CPU", 0))
        return {"CPU_NUM": str(cpus)} if cpus else {}


def _import_ray() -> Any:
    try:
        import ray
        import ray.util.scheduling_strategies
    except ImportError as error:
        raise RuntimeError(
            "cluster=Ray() needs ray, which is not installed: pip install 'rankspawn[ray]'"
        ) from error
    return ray


def _actor(ray: Any, kind: Any, group: Any, number: int, bundle: Mapping[str, float]) -> Any:
    """The one of a bundle, which has all of that."""
    strategy = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
        group, placement_group_bundle_index=number
    )
    others = {k: v for k, v in bundle.items() if k not in ("CPU", "GPU", "memory")}
    return kind.options(
        num_cpus=bundle.get("CPU", 0),
        num_gpus=bundle.get("GPU", 0),
        memory=bundle.get("memory"),
        resources=others or None,
        scheduling_strategy=strategy,
    ).remote()


def _in_words(bundles: Sequence[Any]) -> str:
    """What each of them has; once, if it is the same."""
    if all(bundle == bundles[0] for bundle in bundles):
        return f"{bundles[0]} each"
    return ", ".join(map(str, bundles))


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
