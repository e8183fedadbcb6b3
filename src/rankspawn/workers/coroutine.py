"""A coroutine function as what a rank runs. Runs in the worker; loaded for those only."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType
    from typing import Any


class InEventLoop:
    """Calls a coroutine function, and runs what it returns in an event loop of its own."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self.func = func
        # What people call it.
        self.__name__: str = getattr(func, "__name__", type(func).__name__)
        self.__qualname__: str = getattr(func, "__qualname__", self.__name__)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The result of the coroutine."""
        import asyncio  # not in the parent, nor in ranks that have none

        try:
            return asyncio.run(self.func(*args, **kwargs))
        except BaseException as error:
            frames = BaseException.__dict__["__traceback__"].__get__(error)
            BaseException.with_traceback(error, _without_loop(frames, asyncio.__file__))
            raise


def _without_loop(frames: TracebackType | None, asyncio_file: str) -> TracebackType | None:
    """A traceback from the coroutine's own frame on; all of it if there is none."""
    folder, here = asyncio_file.rpartition("/")[0], __file__
    own = frames
    while own is not None and own.tb_frame.f_code.co_filename.startswith((folder, here)):
        own = own.tb_next
    return own or frames
