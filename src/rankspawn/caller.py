"""Who calls this package: the user's line, however deep we are, and whether it is a notebook's.

Warnings point at that line, and an error can name its file.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import wraps
from types import TracebackType

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType
    from typing import Any, TypeVar

    _F = TypeVar("_F", bound=Callable[..., Any])

_PACKAGE = __name__.partition(".")[0]
# What nobody raises on purpose: from our own line it is our mistake, and the frames tell where.
_MISTAKES = (AssertionError, AttributeError, LookupError, NameError)
# Python's own access to an exception: its class may be frozen, or do anything when it is asked.
_CAUSE, _CONTEXT, _TRACEBACK = (
    vars(BaseException)[name].__get__ for name in ("__cause__", "__context__", "__traceback__")
)


def warn_caller(message: str, category: type[Warning]) -> None:
    """Warn at the nearest line that is not of this package."""
    _, depth = _caller(sys._getframe(1))
    # `skip_file_prefixes` would do the same, but is new in Python 3.12.
    warnings.warn(message, category, stacklevel=2 + depth)


def file_of_caller() -> str:
    """The file of the nearest line that is not of this package."""
    frame, _ = _caller(sys._getframe(1))
    return frame.f_code.co_filename


def in_notebook() -> bool:
    """Whether standard output is a cell of a notebook, found out without importing anything."""
    return type(sys.stdout).__module__.partition(".")[0] == "ipykernel"


class _AtUsersLine:
    """Errors that pass look as if the user's line had raised them: no frame of this package.

    A context and a decorator, for whatever users call. RANKSPAWN_FULL_TRACEBACK leaves all frames.
    """

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is not None and not os.environ.get("RANKSPAWN_FULL_TRACEBACK"):
            # Python raises it again with what it finds in here, and without the frame it is in.
            _hide_frames(error)

    def __call__(self, function: _F) -> _F:
        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            # As `with self` does it, without two more calls.
            try:
                return function(*args, **kwargs)
            except BaseException as error:
                self.__exit__(type(error), error, None)
                raise

        return call  # type: ignore[return-value]  # of the same type, which wraps() does not say


at_users_line: _AtUsersLine = _AtUsersLine()


def _hide_frames(error: BaseException) -> None:
    """Take our frames out of the tracebacks of an error and of those it came from."""
    chain: list[BaseException | None] = [error]
    seen: set[int] = set()
    while chain:
        current = chain.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        chain += [_CAUSE(current), _CONTEXT(current)]
        frames = _frames_of(current)
        if not (frames and issubclass(type(current), _MISTAKES) and _is_of_us(frames[-1])):
            shown = None
            for each in reversed([each for each in frames if not _is_of_us(each)]):
                shown = TracebackType(shown, each.tb_frame, each.tb_lasti, each.tb_lineno)
            # Not by assignment, which a class of users may refuse: a frozen dataclass does.
            BaseException.with_traceback(current, shown)


def _frames_of(error: BaseException) -> list[TracebackType]:
    frames, following = [], _TRACEBACK(error)
    while following is not None:
        frames.append(following)
        following = following.tb_next
    return frames


def _is_of_us(entry: TracebackType) -> bool:
    return _is_ours(entry.tb_frame.f_globals.get("__name__", ""))


def _caller(frame: FrameType) -> tuple[FrameType, int]:
    """The nearest frame that is not of this package, and how many are before it."""
    depth = 0
    while frame.f_back is not None and _is_ours(frame.f_globals.get("__name__", "")):
        depth += 1
        frame = frame.f_back
    return frame, depth


def _is_ours(module: str) -> bool:
    """Whether a module is of this package, and not of one whose name begins in the same way."""
    return module == _PACKAGE or module.startswith(f"{_PACKAGE}.")
