"""A recording as one page that any browser shows, without a network. Pure but for its own files."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_HERE = Path(__file__).parent
# Of JSON in a page: what could end the script, or begin a comment.
_UNSAFE = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}


def make_page(recording: Mapping[str, Any]) -> str:
    """One whole HTML file.

    Whatever ranks printed is data in it, never markup: it stands in JSON without angle brackets,
    is put into the page as text, and a policy lets nothing be loaded.

    Args:
        recording: As :meth:`rankspawn.trace.recording.Recording.as_data` gives it.
    """
    data = json.dumps(recording, separators=(",", ":"), allow_nan=False)
    for character, code in _UNSAFE.items():
        data = data.replace(character, code)
    parts = {
        "TITLE": escape(recording["facts"].get("what") or "rankspawn"),
        "STYLE": (_HERE / "page.css").read_text(encoding="utf-8"),
        "DRAW": (_HERE / "draw.js").read_text(encoding="utf-8"),
        "SCRIPT": (_HERE / "page.js").read_text(encoding="utf-8"),
        "DATA": data,
    }
    page = (_HERE / "page.html").read_text(encoding="utf-8")
    # Cut at the marks first: a part may hold what looks like one.
    pieces = page.split("%%")
    return "".join(parts.get(piece, "") if at % 2 else piece for at, piece in enumerate(pieces))
