"""By which method the processes of a rank start that it starts by multiprocessing."""

from __future__ import annotations

from multiprocessing import get_all_start_methods, get_start_method, set_start_method

from rankspawn.workers import child


def chosen_method() -> str | None:
    """What this program has set with ``multiprocessing.set_start_method``; None if nothing.

    Python's own default is nobody's choice: multiprocessing takes it for set once it was used, by a
    ``Queue()`` for instance. Nor is what this process, being a rank, was given itself.
    """
    method = get_start_method(allow_none=True)
    return None if method in (get_all_start_methods()[0], child.given_method) else method


def give_method(method: str) -> None:
    """Make this the default, and nobody's choice; runs in a forked worker."""
    if get_start_method(allow_none=True) != method:
        set_start_method(method, force=True)
    child.given_method = method
