"""Notes who asks for a rank before there is one. Runs in fork servers, while they import."""

from __future__ import annotations

import os
from typing import Any

from rankspawn.plan.environ import OF_A_RANK


class rank_reads:
    """A block in which it is noted when ``os.environ`` is asked for what each rank has for itself.

    A module that is imported once for all ranks would keep the answer.

    Attributes:
        stories: What was noted, in words; whoever has used it clears it.
    """

    def __init__(self) -> None:
        self.stories: list[str] = []

    def __enter__(self) -> rank_reads:
        environ: Any = os.environ
        self._kind: type = type(environ)
        stories = self.stories

        class Watched(self._kind):  # type: ignore[misc, name-defined]
            def __getitem__(self, name: str) -> Any:
                if name in OF_A_RANK:
                    stories.append(f"read {name}, which each rank has for itself")
                return super().__getitem__(name)

        environ.__class__ = Watched
        return self

    def __exit__(self, *_: object) -> None:
        environ: Any = os.environ
        environ.__class__ = self._kind
