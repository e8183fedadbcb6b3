"""The values that the rules of membership are about.

All are frozen and hold plain data: they travel through a store, and the tests walk through
all of their states.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from rankspawn.launch.backoff import pause_after
from rankspawn.launch.session import FINAL, Cause, JobResult


class Phase(enum.StrEnum):
    """The phase of a job."""

    GATHERING = "gathering"  # no worker may start; those of the last generation end
    RUNNING = "running"  # the nodes of the newest generation run their workers
    ENDING = "ending"  # it will fail; the nodes stop and say that they are there
    ENDED = "ended"  # the result is known


@dataclass(frozen=True, slots=True)
class JobTerms:
    """The terms of a job, the same on every node.

    Attributes:
        min_nodes: The fewest nodes that it runs with.
        max_nodes: The most.
        max_restart: Regroups because of failed workers and lost nodes, in all.
        elastic_level: What a failed worker means, if no node was lost. -1: the end of the job;
            0: its node leaves; 1: all restart.
        elastic_timeout: Seconds to wait for more nodes than the fewest, and for a node that
            replaces a lost one.
        lease_seconds: How long a node counts as alive after its last sign of life.
        settle_seconds: Changes that come within this time are one regroup.
        join_timeout: Seconds to wait for the fewest nodes at the beginning.
        answer_seconds: How long the end of a failed job waits for nodes that do not answer.
        expected: The nodes' addresses if they are known beforehand, to name a missing one.
        roles: Flags that say which processes each node has, as a user would write them.
    """

    min_nodes: int
    max_nodes: int
    max_restart: int = 3
    elastic_level: int = -1
    elastic_timeout: float = 30.0
    lease_seconds: float = 10.0
    settle_seconds: float = 1.0
    answer_seconds: float = 3.0
    expected: tuple[str, ...] = ()
    roles: str = "--run_mode collective"
    join_timeout: float = 600.0

    @property
    def is_elastic(self) -> bool:
        """Whether the number of nodes may change."""
        return self.min_nodes < self.max_nodes

    @property
    def survives_loss(self) -> bool:
        """Whether the job goes on when a node is lost."""
        return self.is_elastic or self.elastic_level >= 0

    @property
    def flags(self) -> str:
        """The flags that all nodes must agree on, as a user would write them."""
        nodes = f"{self.min_nodes}:{self.max_nodes}" if self.is_elastic else f"{self.min_nodes}"
        return (
            f"--nnodes {nodes} --max_restart {self.max_restart} "
            f"--elastic_level {self.elastic_level} --elastic_timeout {self.elastic_timeout:g} "
            f"--node_timeout {self.lease_seconds:g} {self.roles}"
        )


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node says while it takes part.

    Attributes:
        stopped: No worker of this generation or an earlier one runs here, or ever will.
        ready: It has answered the call for this generation, so it is not a dead node whose
            lease has not ended yet.
        done: The generation whose work is done here.
        failed: The generation in which a worker failed here, and ``cause`` what happened.
        leaving: Why it wants to leave; None if it does not.
        answered: It has seen that the job is ending.
        unable: Why it cannot take part; None if it can.
    """

    stopped: int = 0
    ready: int = 0
    done: int = 0
    failed: int = 0
    cause: Cause | None = None
    leaving: Cause | None = None
    answered: bool = False
    unable: Cause | None = None


@dataclass(frozen=True, slots=True)
class Member:
    """One node, as it describes itself.

    A node that comes back is another member, with another name: what is known of a member that
    is gone stays true for ever.

    Attributes:
        given_rank: The rank that its user gave it; -1 for none.
        serves: The embedded master runs in it.
        machine: The same text for nodes that reach each other over loopback.
        flags: Those of its own terms; see :attr:`JobTerms.flags`.
        ignores: The run that had ended when this node came.
        returned: It was in the job before, and lost its store, which may have forgotten
            everything. So it carries what it knows of its last start:
        restarts: How many there had been before it; -1 for a node that has started nothing.
        used: See :attr:`JobState.used`.
        former_rank: Its rank; -1 for none.
        order: Its place in the order of arrival.
        updated: Grows with each of its reports, across all members.
    """

    name: str
    host: str
    ports: tuple[int, ...] = ()
    given_rank: int = -1
    serves: bool = False
    machine: str = ""
    flags: str = ""
    ignores: str = ""
    returned: bool = False
    restarts: int = -1
    used: int = 0
    former_rank: int = -1
    order: int = 0
    updated: int = 0
    report: NodeReport = field(default_factory=NodeReport)


@dataclass(frozen=True, slots=True)
class Refusal:
    """A member that may not take part any longer, and why."""

    name: str
    cause: Cause


@dataclass(frozen=True, slots=True)
class JobState:
    """What all nodes agree on; kept in one entry of the store, changed by compare-and-swap.

    Attributes:
        run_id: One start of the job; differs between two that follow each other.
        generation: The newest that was formed. It only ever grows, also from run to run.
        group: The names of its nodes by rank; empty while a run has not formed any.
        hosts: Their addresses, for messages about one that is gone.
        restarts: Generations that this run formed after its first.
        calling: Enough nodes seem to be there for the next generation, and have to answer; or
            all that run, because others came which can only be right if one of them is dead.
        because: Why the nodes are gathered again.
        hold: Wait for a replacement before going on with fewer nodes.
        blamed: The node whose worker failed first, until it is known whether one was lost.
        causes: What went wrong: why the nodes are gathered again, or why the job ends.
        refused: Members that may not take part, and are still there.
        used: Those of the restarts that ``max_restart`` is about.
        tries: How many failed in a row and did not last; see ``backoff``.
    """

    run_id: str
    terms: JobTerms
    phase: Phase = Phase.GATHERING
    generation: int = 0
    group: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    restarts: int = 0
    calling: bool = False
    because: str = ""
    hold: bool = False
    blamed: str = ""
    causes: tuple[Cause, ...] = ()
    refused: tuple[Refusal, ...] = ()
    used: int = 0
    tries: int = 0

    @property
    def result(self) -> JobResult:
        """How the job ended; meaningful in the phase ENDED."""
        return JobResult(self.causes)

    @property
    def is_doomed(self) -> bool:
        """Whether it cannot begin, because nodes that it needs cannot take part."""
        return self.phase is Phase.GATHERING and not self.group and bool(self.causes)

    @property
    def began_with_failure(self) -> bool:
        """Whether a failed worker is why it ends or gathers again, as far as is known."""
        return bool(self.causes) and self.causes[0].kind in ("failed", FINAL)

    @property
    def patience(self) -> float:
        """Seconds for which too few nodes wait for more."""
        begins = not self.group and not self.is_doomed
        return self.terms.join_timeout if begins else self.terms.elastic_timeout

    @property
    def pause(self) -> float:
        """Seconds from a worker's failure to the next start, at least; 0 after anything else."""
        return pause_after(self.tries) if self.began_with_failure else 0.0

    def concerns(self, name: str) -> bool:
        """Whether the end of this run is the end of this member's part, too.

        Not that of a node that came to a complete job of fixed size: it waits for the next run,
        which may be about to begin because all of this one's nodes died.
        """
        return not self.group or name in self.group or self.terms.survives_loss

    def rank_of(self, name: str) -> int:
        """The rank of a node in the newest generation; -1 if it has none."""
        try:
            return self.group.index(name)
        except ValueError:
            return -1
