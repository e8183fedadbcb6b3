"""What a fork server imports: what it said about it, ``preload="main"`` and ``"auto"``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rankspawn.caller import warn_caller

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from rankspawn.workers.forkserver import ForkServer

    # Gives the running server with these modules, some of which nobody has named.
    GetServer = Callable[[tuple[str, ...], frozenset[str]], ForkServer]

# All that the main module imports; and that with what ranks of earlier calls imported.
MAIN, AUTO = "main", "auto"
# Modules that nobody has named and that this program's servers do without.
_left_out: set[str] = set()


class UnfitModuleError(Exception):
    """Modules that a server better does without, which has ended; ``stories`` says why."""

    def __init__(self, stories: Mapping[str, str]) -> None:
        super().__init__(stories)
        self.stories = stories


def judge(hello: Mapping[str, Any], dispensable: frozenset[str]) -> None:
    """Say what a server said about its modules, as an error or as warnings.

    Raises:
        ImportError: One cannot be imported; its traceback is in the message.
        UnfitModuleError: Some that are dispensable stand in the way.
    """
    stories: dict[str, str] = {module: told[0] for module, told in hello["stories"].items()}
    dispensable = dispensable.union(hello["learned"])
    unfit = {module: story for module, story in stories.items() if module in dispensable}
    if hello["error"]:
        module, text = hello["error"]
        if module not in dispensable:
            raise ImportError(f"preload={module!r} failed in the fork server:\n{text}")
        unfit[module] = f"cannot be imported there ({text.strip().splitlines()[-1]})"
    if unfit:
        raise UnfitModuleError(unfit)
    for module, story in stories.items():
        warn_caller(
            f"preload={module!r} {story}: workers are copies of the fork server, in which that "
            "does not work. Leave this module out of preload, or have it start nothing when it "
            "is imported.",
            RuntimeWarning,
        )


def with_main(preload: Sequence[str], get_server: GetServer) -> ForkServer:
    """The server for these modules; ``main`` stands for all that the main module imports.

    What of that, or of what was learned (``auto``), cannot be preloaded is named, once, and left
    out.
    """
    from rankspawn.workers.main_imports import BREAK_IN_A_FORK, modules_of_main

    option = AUTO if AUTO in preload else MAIN
    named = tuple(name for name in preload if name not in (MAIN, AUTO))
    learning = (AUTO,) if AUTO in preload else ()
    while True:
        found = tuple(name for name in modules_of_main() if name not in named)
        for name in found:
            if name.partition(".")[0] in BREAK_IN_A_FORK:
                _leave_out(option, name, "does not work in a fork")
        chosen = tuple(name for name in found if name not in _left_out)
        try:
            return get_server((*named, *chosen, *learning), frozenset(chosen))
        except UnfitModuleError as error:
            for name, story in error.stories.items():
                _leave_out(option, name, story)


def left_out() -> list[str]:
    """What the servers of this program do without."""
    return sorted(_left_out)


def _leave_out(option: str, name: str, story: str) -> None:
    if name not in _left_out:
        _left_out.add(name)
        warn_caller(
            f"preload={option!r} leaves out {name}, which {story}: each rank imports it itself",
            RuntimeWarning,
        )
