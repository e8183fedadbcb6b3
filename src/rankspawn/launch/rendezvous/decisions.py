"""What a session tells the launcher's agent to do."""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.launch.programs import Node
from rankspawn.launch.rendezvous.job_state import Result

__all__ = ["Decision", "JobOver", "StartWorkers", "StopWorkers", "Waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """For people: what the job waits for, such as a missing node."""

    text: str


@dataclass(frozen=True, slots=True)
class StartWorkers:
    """Start this node's workers, right after :meth:`Session.may_start` said yes.

    Attributes:
        generation: Grows with each start; goes into all that is said about these workers.
        nodes: All nodes of it by rank.
        node_rank: This one's.
        restarts: Regroups of this run so far.
        run_id: The same on all nodes, from the first generation to the last.
    """

    generation: int
    nodes: tuple[Node, ...]
    node_rank: int
    restarts: int
    run_id: str


@dataclass(frozen=True, slots=True)
class StopWorkers:
    """End this node's workers, and say so with :meth:`Session.stopped`.

    Attributes:
        reason: For people.
        grace: Seconds between SIGTERM and SIGKILL; None for the agent's own.
        succeeded: All work of the job is done; what still runs only served it.
    """

    generation: int
    reason: str
    grace: float | None = None
    succeeded: bool = False


@dataclass(frozen=True, slots=True)
class JobOver:
    """This node's part in the job is over: the last decision.

    Nothing runs here any more, unless the rendezvous itself has failed; then the agent ends
    what does.
    """

    result: Result


Decision = Waiting | StartWorkers | StopWorkers | JobOver
