"""``--debug`` and ``--debugpy``: one rank has the terminal, or some are reached by editors."""

from __future__ import annotations

import os

from rankspawn.launch.flags import UsageError
from rankspawn.plan.environ import DEBUG_VARIABLE, HOOK_VARIABLE, has_own_breakpoints
from rankspawn.telling import get_logger
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from rankspawn.descriptors import Closable
    from rankspawn.interrupts import Signals
    from rankspawn.launch.agent import Agent
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.option_values import DebugpyRequest, DebugRequest

logger: logging.Logger = get_logger(__name__)


def check_debuggers(config: LaunchConfig) -> None:
    """Refuse what cannot be debugged, as far as that can be said before there is a plan.

    Raises:
        UsageError: There is no terminal, or no debugpy, or two want the terminal.
    """
    try:
        if config.debug is not None:
            _check_terminal(config, f"--debug {config.debug}")
        if config.debugpy is not None:
            from rankspawn.plan.debuggers import check_debugpy

            asked = f"--debugpy {config.debugpy}"
            check_debugpy(asked, other="" if config.debug is None else f"--debug {config.debug}")
    except (ValueError, ImportError) as error:
        raise UsageError(str(error)) from error
    if config.debugpy is not None and not config.is_python:
        raise UsageError(
            f"--debugpy {config.debugpy} is for Python, and {config.script} is another program"
        )


def _check_terminal(config: LaunchConfig, asked: str) -> None:
    from rankspawn.view.terminal import check_terminal

    if config.spans_machines:
        raise ValueError(
            f"{asked} lends this terminal to one rank, and those of this job are on several "
            "machines: debug it on one, or give --debugpy"
        )
    if config.progress or config.streams is not None:
        other = "--progress" if config.progress else "torchrun's words for streams"
        raise ValueError(f"{asked} and {other} both want the terminal: leave one out")
    check_terminal(asked, in_notebook=False)


class LentTerminal:
    """The terminal, and Ctrl-C, while one rank has them.

    Args:
        rank: The rank that has them.
        signals: What the launcher receives.
    """

    def __init__(self, rank: int, signals: Signals) -> None:
        from rankspawn.view.terminal import LentInterrupts, TerminalModes

        self._rank = rank
        self._agent: Agent | None = None
        self._modes = TerminalModes()
        signals.takes_interrupt = LentInterrupts(self._runs).take

    def begin(self, agent: Agent) -> None:
        """This agent has its program."""
        self._agent = agent

    def finish(self) -> None:
        """Bring the terminal back to what it was."""
        self._modes.restore()

    def _runs(self) -> bool:
        return self._agent is not None and self._rank in self._agent.running


def with_debuggers(
    config: LaunchConfig, specs: Sequence[ProgramSpec], resources: list[Closable]
) -> list[ProgramSpec]:
    """These programs, told who is debugged.

    Args:
        config: What was asked for.
        specs: The programs of this node.
        resources: Gets what has to be closed with the programs.

    Raises:
        UsageError: There is no such rank.
    """
    ranks = [spec.rank for spec in specs]
    if config.debug is not None:
        _check_rank(f"--debug {config.debug}", config.debug.rank, ranks)
        return [_lent(spec, config.debug) for spec in specs]
    assert config.debugpy is not None, "one of them is asked for"
    if not config.spans_machines:
        _check_rank(f"--debugpy {config.debugpy}", config.debugpy.rank, ranks)
    return _reached_by_editors(config.debugpy, specs, resources)


def _lent(spec: ProgramSpec, request: DebugRequest) -> ProgramSpec:
    changes = {**spec.env, DEBUG_VARIABLE: str(request)}
    return replace(spec, env=changes, on_terminal=False, debugged=spec.rank == request.rank)


def _reached_by_editors(
    request: DebugpyRequest, specs: Sequence[ProgramSpec], resources: list[Closable]
) -> list[ProgramSpec]:
    from rankspawn.plan.debuggers import hold_debug_ports

    held, told = hold_debug_ports(request, [spec.rank for spec in specs])
    resources.append(held)
    return [_reached(spec, words) for spec, words in zip(specs, told, strict=True)]


def _reached(spec: ProgramSpec, words: str) -> ProgramSpec:
    """A program under debugpy; one that nobody chose passes its breakpoints."""
    own = has_own_breakpoints(os.environ)
    if not words:
        return spec if own else _told(spec, {HOOK_VARIABLE: "0"})
    port, waits = words.partition(",")[:2]
    verb = "waits for" if waits else "listens for"
    # At every level: it was asked for.
    logger.critical("rank %d %s a debugger at 127.0.0.1:%s", spec.rank, verb, port)
    python, unbuffered, *rest = spec.command
    listen = ("-m", "debugpy", "--listen", f"127.0.0.1:{port}")
    waiting = ("--wait-for-client",) if waits else ()
    changes: dict[str, str | None] = {} if own else {HOOK_VARIABLE: "debugpy.breakpoint"}
    # It would say how to start Python so that its own modules can be stepped through.
    changes["PYDEVD_DISABLE_FILE_VALIDATION"] = "1"
    return replace(_told(spec, changes), command=(python, unbuffered, *listen, *waiting, *rest))


def _told(spec: ProgramSpec, changes: dict[str, str | None]) -> ProgramSpec:
    return replace(spec, env={**spec.env, **changes})


def _check_rank(asked: str, rank: int | None, ranks: Sequence[int]) -> None:
    from rankspawn.plan.debuggers import check_debugged_rank

    try:
        check_debugged_rank(asked, rank, len(ranks))
    except ValueError as error:
        raise UsageError(str(error)) from error
