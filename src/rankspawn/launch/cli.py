"""``rankrun``: from the command line to an exit code."""

from __future__ import annotations

import os
import sys
from contextlib import closing, suppress

from rankspawn.descriptors import stdio_occupied
from rankspawn.interrupts import ImpatientError, Signals
from rankspawn.launch import console
from rankspawn.launch.config import read_config
from rankspawn.launch.flags import HelpRequest, UsageError, exit_code_of_error
from rankspawn.launch.schedulers import fill
from rankspawn.launch.scripts import settle_runner
from rankspawn.telling import attach_to_logging, get_logger, show_with

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Callable, Sequence

    from rankspawn.launch.agent import Agent
    from rankspawn.launch.breakpoints import LentTerminal
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.node import ThisNode
    from rankspawn.launch.session import JobResult, Session
    from rankspawn.launch.tracing import Traced
    from rankspawn.plan.devices import Machine

logger: logging.Logger = get_logger(__name__)

_INTERRUPTED = 130  # as shells have it
# Seconds that a terminal which takes nothing may hold up who was asked to end.
_LONGEST_GOODBYE = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job; the exit code is that of the failure that came first, or 0.

    To be followed by the end of the process: after a request to end, further ones are ignored.
    """
    console.set_up("INFO")
    try:
        # A closed standard stream would leave its number to a descriptor of ours.
        with stdio_occupied():
            words = sys.argv[1:] if argv is None else argv
            return _launch(_configure(words), words)
    except HelpRequest as request:
        with suppress(BrokenPipeError):  # `rankrun --help | head`
            os.write(1, f"{request.text}\n".encode())
        return 0
    except (UsageError, OSError) as error:
        return _complain(error)
    except KeyboardInterrupt:  # before anything was started
        return _INTERRUPTED
    finally:
        console.finish()
        show_with(None)


def _configure(argv: Sequence[str]) -> LaunchConfig:
    """What was asked for, completed by the scheduler that we run under, if any."""
    config = read_config(argv, os.environ)
    # What is started from here on other machines looks for these there.
    starts_here = not (config.hosts or config.ssh)
    if starts_here:
        config = settle_runner(fill(config, os.environ))
    if starts_here and config.env_file is not None:
        from rankspawn.launch.env_file import with_env_file

        config = with_env_file(config)
    console.set_up(config.log_level)
    for note in config.notes:
        logger.warning("%s", note)
    _check_nodes(config)
    return config


def _launch(config: LaunchConfig, argv: Sequence[str]) -> int:
    """Run the job and say how it went, or what is wrong, to the end; the exit code."""
    with Signals() as signals:
        try:
            run = _run_elsewhere if config.hosts or config.ssh else _run_job
            exit_code = run(config, argv, signals)
        except (UsageError, OSError) as error:
            exit_code = _complain(error)
        _wait_for_terminal(console.finish, signals)
        if signals.ending is not None:
            # Also who asked once more is told the whole of it, if somebody reads. Here, because
            # from the end of this block on the process cannot be asked to end any more.
            console.finish(_LONGEST_GOODBYE)
    return exit_code


def _run_elsewhere(config: LaunchConfig, argv: Sequence[str], signals: Signals) -> int:
    """Start a launcher on each host, and wait for them; the exit code."""
    from rankspawn.launch.over_ssh import run_over_ssh

    attach_to_logging()
    return run_over_ssh(config, argv, signals)


def _run_job(config: LaunchConfig, argv: Sequence[str], signals: Signals) -> int:
    """Start the workers, wait for them, and tell how it went; the exit code."""
    # Imported here, since a usage error needs none of them.
    from rankspawn.launch.agent import Agent
    from rankspawn.launch.node import ThisNode
    from rankspawn.machine import RealMachine
    from rankspawn.workers.follow import LogFollower

    lent = _lent_terminal(config, signals)
    traced = _traced(config)
    follower, shown = LogFollower(1), None
    result: JobResult | None = None
    try:
        if config.shows_ranks:
            from rankspawn.launch.showing import Shown

            shown = Shown(config)
        machine = RealMachine()
        others = _Others(config, machine, argv) if config.spans_machines else None
        try:
            _check_script(config)
            with closing(ThisNode(config, machine, follower, shown, traced)) as here:
                agent = Agent(here, signals)
                if lent is not None:
                    lent.begin(agent)
                result = agent.run(lambda: others.meet(here) if others else _be_alone(here))
        except (UsageError, OSError) as error:
            if others is not None:
                others.tell(error, signals)
            raise
    finally:
        _wait_for_terminal(follower.finish, signals)
        if shown is not None:
            _wait_for_terminal(shown.finish, signals)
        if traced is not None:
            traced.finish(result, signals.ending)
        if lent is not None:
            lent.finish()
    _say_goodbye(result, agent, signals.ending)
    return result.exit_code


def _lent_terminal(config: LaunchConfig, signals: Signals) -> LentTerminal | None:
    """The terminal, if one rank is to have it, after a look at what is asked of debuggers."""
    if config.debug is None and config.debugpy is None:
        return None
    from rankspawn.launch.breakpoints import LentTerminal, check_debuggers

    check_debuggers(config)
    return None if config.debug is None else LentTerminal(config.debug.rank, signals)


def _traced(config: LaunchConfig) -> Traced | None:
    """Who records what happens, if that is asked for."""
    if config.trace is None:
        return None
    from rankspawn.launch.tracing import Traced

    return Traced(config.trace, config)


def _be_alone(here: ThisNode) -> Session:
    """A job on this machine only."""
    from rankspawn.launch.programs import Node
    from rankspawn.launch.session import LocalSession

    ports = here.hold_ports()
    return LocalSession(here.config, Node(0, here.host, ports, name=os.urandom(3).hex()))


class _Others:
    """The way to the other nodes of the job; refuses what cannot be meant."""

    def __init__(self, config: LaunchConfig, machine: Machine, argv: Sequence[str]) -> None:
        from rankspawn.launch.joining import plan_join

        # Its modules have loggers of logging's own.
        attach_to_logging()
        self._config, self._machine, self._argv = config, machine, argv
        self._plan = plan_join(config, machine)

    def meet(self, here: ThisNode) -> Session:
        """Begin to take part."""
        from rankspawn.launch.joining import begin_session

        return begin_session(self._plan, here, self._argv)

    def tell(self, error: Exception, signals: Signals) -> None:
        """Have them know why this node cannot take part."""
        from rankspawn.launch.joining import tell_inability

        tell_inability(self._plan, self._config, self._machine, error, signals)


def _wait_for_terminal(finish: Callable[[float | None], None], signals: Signals) -> None:
    """Wait until everything was shown, unless somebody asked, or asks, us to end."""
    with suppress(ImpatientError), signals.impatient(at_first=True):
        finish(None if signals.ending is None else _LONGEST_GOODBYE)


def _check_nodes(config: LaunchConfig) -> None:
    if config.node_rank >= config.max_nodes:
        raise UsageError(f"--rank {config.node_rank} needs --nnodes, the number of nodes")


def _check_script(config: LaunchConfig) -> None:
    """Say in one line what each worker would say in its own log."""
    runs_python = config.runs_python or config.runner == "run_path"
    if runs_python and not os.path.exists(config.script):
        raise FileNotFoundError(f"there is no script {config.script}")
    main = os.path.join(config.script, "__main__.py")
    if runs_python and os.path.isdir(config.script) and not os.path.exists(main):
        raise FileNotFoundError(f"there is no __main__.py in the folder {config.script}")
    if not runs_python and not config.is_module:
        from rankspawn.workers.execution import check_program

        check_program(config.command(sys.executable))
    # Elsewhere the one start tells, and this would only cost time.
    elif config.spans_machines or config.elastic_level == 1:
        from rankspawn.launch.first_line import check_first_line

        check_first_line(config)


def _say_goodbye(result: JobResult, agent: Agent, ending: int | None) -> None:
    """The summary, then the root cause, at every level; nothing is printed after it."""
    from rankspawn.launch.summary import summarize
    from rankspawn.supervise.outcome import signal_name

    if agent.tries:
        host = os.uname().nodename
        logger.info("%s", summarize(agent.endings, host=host, tries=agent.tries))
    if result.text:
        logger.critical("%s", result.text)
    elif result.exit_code and ending is not None:
        logger.critical("ended by %s to the launcher", signal_name(ending))


def _complain(error: Exception) -> int:
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    logger.critical("%s%s", error, notes)
    return exit_code_of_error(error)
