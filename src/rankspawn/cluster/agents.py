"""From an engine, and what its nodes are told, to a group whose agents are on their way."""

from __future__ import annotations

import time

from rankspawn.cluster.driver import Driver
from rankspawn.cluster.engine import AgentRequest
from rankspawn.cluster.group import ClusterGroup
from rankspawn.cluster.node_state import NodeState
from rankspawn.workers.running import settle_at_exit

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.cluster.engine import Engine
    from rankspawn.cluster.printed import Printed
    from rankspawn.cluster.terms import Terms


def start_agents(
    engine: Engine,
    counts: Sequence[int],
    terms: Terms,
    printed: Printed,
    *,
    job: str,
    grace: float,
    daemon: bool,
    device_type: str | None = None,
) -> tuple[ClusterGroup, list[NodeState]]:
    """The group, which is to be started yet, and its nodes.

    Args:
        engine: Starts them.
        counts: How many ranks each node will have; -1 for one per device of it.
        terms: What nodes are told.
        printed: Where output is kept; closed if there is no group.
        job: A name for it.
        grace: Seconds that ranks get to end.
        daemon: The processes' daemon flag.
        device_type: What ranks are to run on; None for whatever their node has.
    """
    settle_at_exit()
    try:
        asked_counts = tuple(None if count == -1 else count for count in counts)
        request = AgentRequest(job, asked_counts, grace, device_type)
        asked = time.monotonic()
        channels = engine.start(request)
        queued = time.monotonic() - asked if engine.start_timeout is None else 0.0
    except BaseException:
        printed.close()
        raise
    states = [
        NodeState(number, channel.host, channel.address) for number, channel in enumerate(channels)
    ]
    group = ClusterGroup(Driver(states, terms), channels, printed, grace, daemon)
    group.queued = queued
    return group, states
