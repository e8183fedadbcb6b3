"""The environment that a worker is executed with, or that a forked one makes of its own."""

from __future__ import annotations

import os

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rankspawn.workers.orders import EncodedChanges


def whole_environment(changes: Mapping[str, str | None], *, has_log: bool) -> dict[str, str]:
    """This process's environment with the changes; None removes a variable."""
    # What a killed worker printed last is what its log is read for.
    unbuffered = {"PYTHONUNBUFFERED": "1"} if has_log else {}
    merged = {**unbuffered, **os.environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}


def encode_changes(
    changes: Mapping[str, str | None], encode: Callable[[str], bytes] = os.fsencode
) -> EncodedChanges:
    """The changes as a forked worker makes them.

    Args:
        changes: None removes a variable.
        encode: For many workers one that remembers: most of their variables are the same.
    """
    return [
        (encode(name), None if value is None else encode(value)) for name, value in changes.items()
    ]
