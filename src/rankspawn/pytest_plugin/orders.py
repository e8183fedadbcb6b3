"""What a rank's pytest is told by the one that started it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

__all__ = ["Orders"]


@dataclass(frozen=True, slots=True)
class Orders:
    """One test, and how the pytest of the parent was called.

    Attributes:
        target: The test: its file's absolute path, and its name there.
        args: The command line of the parent.
        folder: Where the parent was called.
        temporary: A folder of this test; each rank's ``tmp_path`` and messages are in it.
        shared_folder: The folder for ``shared_tmp_path``.
        options: Values that pytest or a plugin has chosen, such as a random seed.
    """

    target: str
    args: tuple[str, ...]
    folder: str
    temporary: str
    shared_folder: str
    options: dict[str, Any] = field(default_factory=dict)

    def message_file(self, rank: int) -> str:
        """Where a rank writes what it has to tell."""
        return f"{self.temporary}/messages.{rank}"
