"""What is shown of a node's programs beside the terminal's rank: by the view of ``spawn``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, cast

from rankspawn.descriptors import Owned
from rankspawn.supervise.group import RankOutput
from rankspawn.supervise.outcome import STATES
from rankspawn.view.request import DEFAULT_PREFIX, ShowRequest
from rankspawn.view.sources import Place
from rankspawn.view.viewer import View

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.supervise.group import Group
    from rankspawn.workers.group import WorkerGroup


class Shown:
    """The view of this node's programs, over all generations.

    Args:
        config: What was asked for.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self._config = config
        self._view = View(ShowRequest(False, "", config.progress, captures=False), ())
        self._stack = ExitStack()
        self._stack.enter_context(self._view.watched())

    def begin(
        self,
        group: WorkerGroup,
        specs: Sequence[ProgramSpec],
        logs: Sequence[str],
        starts: Sequence[int],
    ) -> None:
        """Show the programs that were just started.

        Args:
            group: They.
            specs: What they were told.
            logs: Where they print.
            starts: From where on in these.
        """
        config = self._config
        # With a view and nothing else said, the terminal's rank is shown as it is without one.
        asked = config.tee_all or config.ranks_filter is not None or config.prefix is not None
        self._view.request = ShowRequest(
            shown_ranks(config, specs),
            config.prefix if config.prefix is not None else DEFAULT_PREFIX if asked else "",
            config.progress,
            captures=False,
        )
        self._view.places = [place_of(spec) for spec in specs]
        self._view.restarts = int(specs[0].env.get("TORCHELASTIC_RESTART_COUNT") or 0)
        self._view.begin(cast("Group", Programs(group, logs, starts)))

    def finish(self, timeout: float | None = None) -> None:  # noqa: ARG002 - it has its own
        """Wait until all is shown, unless the terminal takes nothing."""
        self._view.finish()
        self._stack.close()


def shown_ranks(config: LaunchConfig, specs: Sequence[ProgramSpec]) -> bool | tuple[int, ...]:
    """The ranks whose lines are shown; True for all."""
    if config.ranks_filter is not None:
        return tuple(sorted(config.ranks_filter))
    if config.tee_all:
        return True
    return tuple(spec.rank for spec in specs if spec.on_terminal)


def place_of(spec: ProgramSpec) -> Place:
    """What the view calls a program, by what it was told."""

    def number(name: str) -> int:
        return int(spec.env.get(name) or 0)

    return Place(
        spec.rank,
        # Of the node's workers: with --virtual_local_rank each is told 0.
        number("PADDLE_LOCAL_RANK"),
        number("WORLD_SIZE"),
        _device(spec),
        node=number("GROUP_RANK"),
        host=os.uname().nodename,
    )


def _device(spec: ProgramSpec) -> str:
    found = [
        f"{name.removeprefix('FLAGS_selected_').removesuffix('s')} {value}"
        for name, value in spec.env.items()
        if name.startswith("FLAGS_selected_") and value is not None
    ]
    return found[0] if found else "cpu"


class _Program:
    """A program as the view has processes."""

    def __init__(self, popen: object) -> None:
        self.popen = popen


class Programs:
    """A group of programs as the view has groups: they print to logs."""

    def __init__(self, group: WorkerGroup, logs: Sequence[str], starts: Sequence[int]) -> None:
        self._group, self._logs, self._starts = group, logs, starts
        self.processes: list[_Program] = [_Program(worker.popen) for worker in group.workers]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._group, name)

    def open_output(self, index: int) -> RankOutput | None:
        """Its log, from where this start began."""
        try:
            file = Owned(os.open(self._logs[index], os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # somebody removed it already
            return None
        return RankOutput(file, self._starts[index])

    def state_of(self, index: int) -> str:
        """One word for what a program does, or how it ended."""
        outcome = self._group.outcomes.get(index)
        return "running" if outcome is None else STATES.get(outcome.end, "failed")
