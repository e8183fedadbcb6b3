"""The values that go from the controllers to the pod: nodes, and the programs to start."""

from __future__ import annotations

from rankspawn.values import dataclass, field

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankspawn.launch.torchrun import OwnStreams

TRAINER = "trainer"
SERVER = "server"
HETER = "heter"


@dataclass(frozen=True, slots=True)
class Node:
    """One machine of the job, as agreed at the rendezvous.

    Attributes:
        rank: Its number among the nodes; 0 is the master's node.
        host: The address that the others reach it by.
        ports: One per worker, held or free on that node.
        name: Its name in the job, such as six random letters.
    """

    rank: int
    host: str
    ports: tuple[int, ...]
    name: str = ""


@dataclass(frozen=True, slots=True)
class ProgramSpec:
    """One process to start.

    Attributes:
        role: ``trainer``, ``server`` or ``heter``.
        rank: Its number among all processes of that role.
        command: What is executed.
        env: Changes against the launcher's environment; None removes a variable.
        log_name: The file in the log directory that gets its output.
        on_terminal: Its output is also shown live.
        streams: Where its standard output and error go, if each has a file of its own.
        cpus: The CPUs that it may run on; None for those of the launcher.
        debugged: It has the terminal, to read from and to print to; None if no program has.
    """

    role: str
    rank: int
    command: tuple[str, ...]
    # It may hold what the user put into the environment, which has no place in a log.
    env: Mapping[str, str | None] = field(repr=False)
    log_name: str
    on_terminal: bool
    streams: OwnStreams | None = None
    cpus: frozenset[int] | None = None
    debugged: bool | None = None

    @property
    def reads_input(self) -> bool:
        """Whether it has the launcher's standard input; others have none."""
        # A debugger in the process whose output is shown can be talked to.
        first = self.on_terminal and self.role == TRAINER
        return first if self.debugged is None else self.debugged
