"""Where editors reach ranks that they debug: a port for each, on this machine alone."""

from __future__ import annotations

import sys

from rankspawn.plan.ports import HeldPorts

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.option_values import DebugpyRequest

# The port of a rank, with a comma and a word if it waits; empty for one that is not debugged.
DEBUGPY_VARIABLE = "RANKSPAWN_DEBUGPY"


def check_debugpy(asked: str, *, other: str) -> None:
    """Refuse what no rank can be debugged with.

    Args:
        asked: How the caller asked for it, such as ``debugpy=1``.
        other: How it asked for the debugger of the terminal, too; empty if it did not.

    Raises:
        ValueError: Another debugger was asked for, too.
        ModuleNotFoundError: There is no debugpy.
    """
    if other:
        raise ValueError(
            f"{other} and {asked} cannot be given at once: one debugs in this terminal, the other "
            "in an editor"
        )
    from importlib.util import find_spec

    spec = find_spec("debugpy")
    if spec is None or spec.origin is None:  # or it is a folder of that name
        raise ModuleNotFoundError(
            f"{asked} needs the package debugpy, and this Python ({sys.executable}) has "
            "none: install it (pip install debugpy), or debug one rank in a terminal",
            name="debugpy",
        )


def check_debugged_rank(asked: str, rank: int | None, world_size: int) -> None:
    """Refuse a rank that there is not.

    Raises:
        ValueError: It is out of range.
    """
    if rank is not None and rank >= world_size:
        raise ValueError(f"{asked} is no rank: the ranks are 0 to {world_size - 1}")


def hold_debug_ports(request: DebugpyRequest, ranks: Sequence[int]) -> tuple[HeldPorts, list[str]]:
    """Ports for those of these ranks that are debugged, and the variable of each rank."""
    chosen = [rank for rank in ranks if request.rank in (None, rank)]
    held = HeldPorts(len(chosen))
    wait = ",wait" if request.waits else ""
    told = {rank: f"{port}{wait}" for rank, port in zip(chosen, held.ports, strict=True)}
    return held, [told.get(rank, "") for rank in ranks]
