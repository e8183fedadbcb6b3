"""Makes the pictures of what was measured: ``python docs/measured_pictures.py [folder]``.

From the rows that ``python -m benchmarks --keep`` has kept; needs nothing that is not in Python.
"""

from __future__ import annotations

import sys
from pathlib import Path

import scaling_pictures
import talking_pictures

NAMES = (*talking_pictures.NAMES, *scaling_pictures.NAMES)


def make_all() -> dict[str, str]:
    """Each by its name."""
    return {**talking_pictures.make_all(), **scaling_pictures.make_all()}


def draw_all(folder: Path) -> None:
    """Write them."""
    for name, drawn in make_all().items():
        (folder / name).write_text(drawn)


if __name__ == "__main__":
    draw_all(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "pictures")
