"""Loggers that need no ``logging`` where a program shows plain words by itself.

``logging`` brings ``re``, ``string``, ``traceback`` and ``warnings`` along: a fifth of what a start
of ``rankrun`` would import. Its few lines are shown without, as long as nobody else has loaded it.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any

# As logging has them.
LEVELS = {"DEBUG": 10, "INFO": 20, "WARNING": 30, "ERROR": 40, "CRITICAL": 50}
# Its own caller, and the method that stands for the logger's.
_STACK_LEVEL = 3


class _Teller:
    """Stands for the logger of this name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def debug(self, text: str, *values: object) -> None:
        self._tell(10, text, values)

    def info(self, text: str, *values: object) -> None:
        self._tell(20, text, values)

    def warning(self, text: str, *values: object) -> None:
        self._tell(30, text, values)

    def error(self, text: str, *values: object) -> None:
        self._tell(40, text, values)

    def critical(self, text: str, *values: object) -> None:
        self._tell(50, text, values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._logger(), name)

    def _tell(self, level: int, text: str, values: tuple[object, ...]) -> None:
        if _show is not None and "logging" not in sys.modules:
            _show(level, text % values if values else text)
        else:
            self._logger().log(level, text, *values, stacklevel=_STACK_LEVEL)

    def _logger(self) -> logging.Logger:
        import logging

        attach_to_logging()
        return logging.getLogger(self._name)


_show: Callable[[int, str], None] | None = None
_attach: Callable[[], None] | None = None


def get_logger(name: str) -> logging.Logger:
    """The logger of this name, which imports nothing before it has to."""
    teller: Any = _Teller(name)
    found: logging.Logger = teller
    return found


def show_with(
    show: Callable[[int, str], None] | None, attach: Callable[[], None] | None = None
) -> None:
    """Have this show each level and text while nobody has loaded ``logging``.

    Args:
        show: Shows them; None for nobody.
        attach: Has ``logging`` show them there, too; called once, before it is used.
    """
    global _show, _attach
    _show, _attach = show, attach


def attach_to_logging() -> None:
    """Have what is told through ``logging`` itself shown at the same place."""
    global _attach
    attach, _attach = _attach, None
    if attach is not None:
        attach()
