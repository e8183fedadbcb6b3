"""Where editors reach ranks that they debug: a port for each, on this machine alone."""

from __future__ import annotations

import sys

from rankspawn.plan.ports import HeldPorts

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.option_values import DebugpyRequest
    from rankspawn.options import SpawnOptions

# The port of a rank, with a comma and a word if it waits; empty for one that is not debugged.
DEBUGPY_VARIABLE = "RANKSPAWN_DEBUGPY"


def check_debugpy(options: SpawnOptions, world_size: int) -> None:
    """Refuse what cannot be debugged.

    Raises:
        ValueError: There is no such rank, or another debugger was asked for, too.
        ModuleNotFoundError: There is no debugpy.
    """
    request = options.debugpy
    if request is None:
        return
    if options.debug is not None:
        raise ValueError(
            "debug and debugpy cannot be given at once: one debugs in this terminal, the other in "
            "an editor"
        )
    if request.rank is not None and request.rank >= world_size:
        raise ValueError(f"debugpy={request} is no rank: the ranks are 0 to {world_size - 1}")
    from importlib.util import find_spec

    spec = find_spec("debugpy")
    if spec is None or spec.origin is None:  # or it is a folder of that name
        raise ModuleNotFoundError(
            f"debugpy={request} needs the package debugpy, and this Python ({sys.executable}) has "
            "none: install it (pip install debugpy), or use debug=RANK in a terminal",
            name="debugpy",
        )


def hold_debug_ports(request: DebugpyRequest, ranks: Sequence[int]) -> tuple[HeldPorts, list[str]]:
    """Ports for those of these ranks that are debugged, and the variable of each rank."""
    chosen = [rank for rank in ranks if request.rank in (None, rank)]
    held = HeldPorts(len(chosen))
    wait = ",wait" if request.waits else ""
    told = {rank: f"{port}{wait}" for rank, port in zip(chosen, held.ports, strict=True)}
    return held, [told.get(rank, "") for rank in ranks]
