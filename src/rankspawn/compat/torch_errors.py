"""The exceptions of ``compat.torch``: ours, and torch's as well where torch is loaded."""

from __future__ import annotations

from rankspawn.compat.peers import also

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    from rankspawn.errors import ProcessException

    _E = TypeVar("_E", bound=ProcessException)


def class_for(ours: type[_E]) -> type[_E]:
    """The class that ``except`` finds under torch's name, too."""
    # It is nowhere under its name, so pickle is told how to find it again.
    methods = {"_origin": lambda error: (make_again, (ours, *error.args))}
    return also(ours, "torch.multiprocessing.spawn", ours.__name__, methods)


def make_again(ours: type[_E], *args: object) -> _E:
    """An unpickled exception; torch's as well if torch is loaded here."""
    make: Callable[..., _E] = class_for(ours)
    return make(*args)
