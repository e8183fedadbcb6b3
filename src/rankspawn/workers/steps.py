"""How far a rank is, as a record in the file in which it reports.

``rankspawn.report`` packs one, ``view.ranks`` unpacks it. One number stands at both ends, so a
reader knows a record that was being written while it looked. A worker imports this only if
somebody looks.
"""

from __future__ import annotations

from math import nan
from struct import Struct

# More than fits into a row of a table.
_LONGEST_TEXT = 400
HEAD = Struct("<QddQ")
TAIL = Struct("<Q")
# Far less than what is left of the page; results begin on the next one.
RECORD_SIZE = HEAD.size + _LONGEST_TEXT + TAIL.size


def pack_steps(serial: int, step: float | None, total: float | None, text: str) -> bytes:
    """The record; each one has another serial number, from 1 on."""
    data = text.encode("utf-8", "replace")[:_LONGEST_TEXT]
    numbers = (nan if step is None else step, nan if total is None else total)
    return HEAD.pack(serial, *numbers, len(data)) + data + TAIL.pack(serial)
