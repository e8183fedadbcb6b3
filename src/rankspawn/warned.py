"""The user's own line, however deep in this package we are: for warnings and errors."""

from __future__ import annotations

import sys
import warnings

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from types import FrameType

_PACKAGE = __name__.partition(".")[0]


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the nearest line that is not of this package."""
    _, depth = _caller(sys._getframe(1))
    warnings.warn(message, category, stacklevel=2 + depth)


def file_of_caller() -> str:
    """The file of the nearest line that is not of this package."""
    frame, _ = _caller(sys._getframe(1))
    return frame.f_code.co_filename


def _caller(frame: FrameType) -> tuple[FrameType, int]:
    """The nearest frame that is not of this package, and how many are before it."""
    depth = 0
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        depth += 1
        frame = frame.f_back
    return frame, depth


def _is_ours(module: str) -> bool:
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
