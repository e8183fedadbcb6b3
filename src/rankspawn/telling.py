"""Loggers that import ``logging`` with the first word: most starts have none to say before it.

``logging`` brings ``re``, ``string``, ``traceback`` and ``warnings`` along, a quarter of what is
imported before ``rankrun`` starts its first worker. What is said later finds them ready, since
the interpreters of the workers take that long to start.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable
    from typing import Any


class _Teller:
    """Stands for the logger of this name."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        """What the logger has; with the first word, whoever shows it is called before."""
        global _show
        if _show is not None:
            show, _show = _show, None
            show()
        import logging

        return getattr(logging.getLogger(self._name), name)


_show: Callable[[], None] | None = None


def get_logger(name: str) -> logging.Logger:
    """The logger of this name, which imports nothing before it is used."""
    teller: Any = _Teller(name)
    found: logging.Logger = teller
    return found


def show_with(show: Callable[[], None] | None) -> None:
    """Have this called before the first word, to set up where it is shown; None for nobody."""
    global _show  # noqa: PLW0603 - there is one console
    _show = show
