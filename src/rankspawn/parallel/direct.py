"""Large broadcasts: each rank reads the root's memory where it is, and nothing is copied twice.

The kernel lets a process of the same user do that, unless it was told not to (Yama, a sandbox);
then all ranks find out together, and data goes through the memory that they share.
"""

from __future__ import annotations

import ctypes
from functools import cache

from rankspawn.parallel.pieces import get, put, rounds_for

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from rankspawn.parallel.buffers import Flat
    from rankspawn.parallel.lockstep import Lockstep

# Below this two copies in a core's cache take as long as one call of the kernel for each piece.
SMALLEST = 4 << 20
# Handlers of signals run between two pieces.
_PIECE = 4 << 20


class _Part(ctypes.Structure):
    _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))


def broadcast_large(step: Lockstep, flat: Flat, src: int, width: int) -> bool:
    """Give all ranks what one has, the root having announced where that is, if it may be written.

    Returns:
        Whether it is worth to try that again: the same on all ranks.
    """
    step.agree()
    address, is_fine = step.told()[src].offset, True
    if address:
        is_fine = step.rank == src or read_from(step.peers.pid(src), address, flat.data)
        step.slot(step.rank, step.parity)[0] = is_fine
        parity = step.meet()  # the root's data stays until all have read it
        is_fine = all(step.slot(rank, parity)[0] for rank in range(step.size))
    if not address or not is_fine:
        _broadcast_staged(step, flat, src, width)
    return is_fine


def _broadcast_staged(step: Lockstep, flat: Flat, src: int, width: int) -> None:
    for number in range(rounds_for(flat.nbytes, width)):
        if step.rank == src:
            put(flat.data, step.stage(src, step.parity), number, width)
        parity = step.meet()
        if step.rank != src:
            get(flat.data, step.stage(src, parity), number, width)


def read_from(pid: int, address: int, target: memoryview) -> bool:
    """Read another process's memory; False if that is not possible."""
    call = _function()
    if call is None:
        return False
    place = ctypes.addressof(ctypes.c_char.from_buffer(target))
    for begin in range(0, target.nbytes, _PIECE):
        length = min(_PIECE, target.nbytes - begin)
        here, there = _Part(place + begin, length), _Part(address + begin, length)
        if call(pid, ctypes.byref(here), 1, ctypes.byref(there), 1, 0) != length:
            return False
    return True


@cache
def _function() -> Callable[..., int] | None:
    function = getattr(ctypes.CDLL(None), "process_vm_readv", None)
    if function is None:
        return None
    function.restype = ctypes.c_ssize_t
    unsigned, pointer = ctypes.c_ulong, ctypes.c_void_p
    function.argtypes = (ctypes.c_int, pointer, unsigned, pointer, unsigned, unsigned)
    found: Callable[..., int] = function
    return found
