"""How far a rank is, as a record in the file in which it reports.

``rankspawn.report`` packs one, ``supervise.reports`` unpacks it. One number stands at both ends, so
a reader knows a record that was being written while it looked. A worker imports this with its first
report.
"""

from __future__ import annotations

from math import nan
from struct import Struct

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

# Of one value, and of all: more than fits into a row of a table.
_LONGEST_VALUE = 200
_LONGEST_TEXT = 960
HEAD = Struct("<QddQ")
TAIL = Struct("<Q")
# A quarter of the page; results begin on the next one.
RECORD_SIZE = HEAD.size + _LONGEST_TEXT + TAIL.size
# Between values, and between the name of one, its kind and its text. What splits words takes
# both for spaces, so neither is in a name or a text.
BETWEEN_VALUES, IN_VALUE = "\x1e", "\x1f"


def pack_steps(serial: int, step: float | None, total: float | None, text: str) -> bytes:
    """The record; each one has another serial number, from 1 on."""
    data = text.encode("utf-8", "replace")[:_LONGEST_TEXT]
    numbers = (nan if step is None else step, nan if total is None else total)
    return HEAD.pack(serial, *numbers, len(data)) + data + TAIL.pack(serial)


def pack_values(values: Mapping[str, float | str]) -> str:
    """The values as one text, for :func:`pack_steps`; what does not fit any more is left out."""
    text = ""
    for name, value in values.items():
        kind = {float: "f", int: "i"}.get(type(value), "s")
        word = repr(value) if kind != "s" else " ".join(str(value).split())
        item = IN_VALUE.join((" ".join(name.split()), kind, word[:_LONGEST_VALUE]))
        longer = text + BETWEEN_VALUES + item if text else item
        if len(longer.encode("utf-8", "replace")) > _LONGEST_TEXT:
            break
        text = longer
    return text


def unpack_values(text: str) -> dict[str, float | str]:
    """What :func:`pack_values` has packed."""
    values: dict[str, float | str] = {}
    for item in text.split(BETWEEN_VALUES) if text else ():
        name, _, rest = item.partition(IN_VALUE)
        kind, _, word = rest.partition(IN_VALUE)
        try:
            values[name] = float(word) if kind == "f" else int(word) if kind == "i" else word
        except ValueError:  # somebody else wrote to the file
            values[name] = word
    return values
