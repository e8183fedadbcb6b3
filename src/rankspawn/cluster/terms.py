"""What nodes are told: plain values of the driver."""

from __future__ import annotations

from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rankspawn.cluster.frames import Header


@dataclass(frozen=True, slots=True)
class Send:
    """A frame for one node.

    Attributes:
        node: Which one.
        header: What it says.
        blob: What goes with it.
        offset: Not None if the blob goes in pieces, and may wait for what is urgent.
        is_last: After all such pieces.
    """

    node: int
    header: Header
    blob: bytes | memoryview = b""
    offset: int | None = None
    is_last: bool = False


@dataclass(frozen=True, slots=True)
class Terms:
    """What all nodes are told, and what only some.

    Attributes:
        version: Of rankspawn here.
        python: Of Python here.
        clock: The name of the clock of this machine.
        prepare: What is asked of each node before the start.
        start: What each node is told at the start, without what is different for each.
        env: The variables of each rank that the caller wants; None if there are none.
        payload: The file with the task, as far as all ranks need it, and beyond that.
        shared: How many bytes of it are for all.
        own: Table and end of each rank's own part, in their order; none if ranks have none.
        check: Looks at the counts of all nodes, once they are known.
        lease: Seconds of silence after which a node is lost; None for never.
    """

    version: str
    python: str
    clock: str
    prepare: Header
    start: Header
    payload: memoryview
    shared: int
    own: Sequence[tuple[int, int]] = ()
    env: Callable[[int], Any] | None = None
    check: Callable[[Sequence[int]], None] | None = None
    lease: float | None = None
