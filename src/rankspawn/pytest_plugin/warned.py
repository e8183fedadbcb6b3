"""Warnings of a rank, taken apart for the way to the parent and put together there.

As text with the names of classes, since the object may be of any class and hold anything.
"""

from __future__ import annotations

import sys
import warnings
from typing import Any

__all__ = ["pack_warning", "unpack_warning"]


def pack_warning(recorded: warnings.WarningMessage) -> dict[str, Any]:
    """Runs in the worker: what the parent needs in order to show it."""
    return {
        "text": str(recorded.message),
        "kinds": [(kind.__module__, kind.__qualname__) for kind in recorded.category.__mro__],
        "filename": recorded.filename,
        "lineno": recorded.lineno,
    }


def unpack_warning(packed: dict[str, Any]) -> warnings.WarningMessage:
    """Runs in the parent: the same, with the nearest class that is known here."""
    category = next(filter(None, map(_known, packed["kinds"])), Warning)
    try:
        message = category(packed["text"])
    except Exception:  # a class with a constructor of its own
        category, message = UserWarning, UserWarning(packed["text"])
    return warnings.WarningMessage(message, category, packed["filename"], packed["lineno"])


def _known(name: tuple[str, str]) -> type[Warning] | None:
    kind = getattr(sys.modules.get(name[0]), name[1], None)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else None
