"""Objects of any size, pickled: ranks bring different numbers of bytes, and say how many."""

from __future__ import annotations

import pickle

from rankspawn.parallel.pieces import get, put, rounds_for

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from rankspawn.parallel.lockstep import Lockstep


def pickled(obj: Any) -> bytes:
    """An object as bytes; by value what other ranks may not be able to import."""
    try:
        return pickle.dumps(obj, pickle.HIGHEST_PROTOCOL)
    except (pickle.PicklingError, AttributeError, TypeError):
        import cloudpickle  # for lambdas and the like

        data: bytes = cloudpickle.dumps(obj)
        return data


def unpickled(data: bytes | bytearray) -> Any:
    """The object again."""
    return pickle.loads(data)


def exchange_objects(step: Lockstep, mine: bytes, wanted: Iterable[int]) -> dict[int, bytearray]:
    """What the wanted ranks brought; the call was announced with the number of this rank's bytes.

    What fits goes with the announcement; if that of any rank does not, all go in pieces.
    """
    layout = step.region.layout
    data = memoryview(mine)
    if len(mine) <= layout.inline:
        put(data, step.slot(step.rank, step.parity), 0, layout.inline)
    step.agree()
    sizes = [told.nbytes for told in step.told()]
    found = {rank: bytearray(sizes[rank]) for rank in wanted}
    if max(sizes) <= layout.inline:
        for rank, room in found.items():
            get(memoryview(room), step.slot(rank, step.phase & 1), 0, layout.inline)
        return found
    for number in range(rounds_for(max(sizes), layout.chunk)):
        put(data, step.stage(step.rank, step.parity), number, layout.chunk)
        parity = step.meet()
        for rank, room in found.items():
            get(memoryview(room), step.stage(rank, parity), number, layout.chunk)
    return found
