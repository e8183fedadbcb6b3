"""``rankrun``: from the command line to an exit code."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress

from rankspawn.descriptors import stdio_occupied
from rankspawn.launch import console
from rankspawn.launch.config import read_config
from rankspawn.launch.flags import HelpRequest, UsageError
from rankspawn.launch.schedulers import fill
from rankspawn.launch.signals import ImpatientError

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankspawn.launch.agent import Result
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.signals import Signals
    from rankspawn.workers.follow import LogFollower

__all__ = ["main"]

logger = logging.getLogger(__name__)

# As shells have it.
_WRONG_USAGE = 2
_CANNOT_EXECUTE = 126
_NOT_FOUND = 127
_INTERRUPTED = 130
# Seconds that a terminal which takes nothing may hold up who was asked to end.
_LONGEST_GOODBYE = 2.0


def main(argv: Sequence[str] | None = None) -> int:
    """Run a job; the exit code is that of the failure that came first, or 0."""
    console.set_up()
    try:
        # A closed standard stream would leave its number to a descriptor of ours.
        with stdio_occupied():
            words = sys.argv[1:] if argv is None else argv
            return _launch(_configure(words), words)
    except HelpRequest as request:
        with suppress(BrokenPipeError):  # `rankrun --help | head`
            os.write(1, f"{request.text}\n".encode())
        return 0
    except UsageError as error:
        return _complain(error, _WRONG_USAGE)
    except FileNotFoundError as error:
        return _complain(error, _NOT_FOUND)
    except OSError as error:
        return _complain(error, _CANNOT_EXECUTE)
    except KeyboardInterrupt:  # before anything was started
        return _INTERRUPTED
    finally:
        console.tear_down()


def _configure(argv: Sequence[str]) -> LaunchConfig:
    """What was asked for, completed by the scheduler that we run under, if any."""
    config = fill(read_config(argv, os.environ), os.environ)
    console.set_level(config.log_level)
    for note in config.notes:
        logger.warning("%s", note)
    _check_nodes(config)
    _check_script(config)
    return config


def _launch(config: LaunchConfig, argv: Sequence[str]) -> int:
    """Start the workers, wait for them, and tell how it went."""
    # Imported here, since a usage error needs none of them.
    from rankspawn.launch.signals import Signals
    from rankspawn.workers.follow import LogFollower

    with Signals() as signals:
        follower = LogFollower(1)
        try:
            if config.spans_machines:
                result = _run_as_member(config, argv, follower, signals)
            else:
                result = _run_alone(config, follower, signals)
        finally:
            _wait_for_terminal(follower.finish, signals)
        _say_goodbye(result, signals.ending)
        _wait_for_terminal(console.tear_down, signals)
    return result.exit_code


def _run_alone(config: LaunchConfig, follower: LogFollower, signals: Signals) -> Result:
    from rankspawn.launch.agent import Agent
    from rankspawn.launch.one_machine import OneMachine

    here = OneMachine(config, follower)
    return Agent(config, here.start, signals).run()


def _run_as_member(
    config: LaunchConfig, argv: Sequence[str], follower: LogFollower, signals: Signals
) -> Result:
    """Take part in a job of several nodes."""
    from rankspawn.launch.agent import Result
    from rankspawn.launch.many_machines import ManyMachines
    from rankspawn.launch.member_agent import MemberAgent

    here = ManyMachines(config, follower)
    try:
        with signals.impatient():
            session = here.meet(argv)
        return MemberAgent(here, session, signals).run()
    except ImpatientError:  # before it met anybody
        assert signals.ending is not None, "it was raised by one"
        return Result(128 + signals.ending, [], None, 0)
    finally:
        here.close()


def _wait_for_terminal(finish: Callable[[float | None], None], signals: Signals) -> None:
    """Wait until everything was shown, unless somebody asked, or asks, us to end."""
    with suppress(ImpatientError), signals.impatient():
        finish(None if signals.ending is None else _LONGEST_GOODBYE)


def _check_nodes(config: LaunchConfig) -> None:
    if config.node_rank >= config.max_nodes:
        raise UsageError(f"--rank {config.node_rank} needs --nnodes, the number of nodes")


def _check_script(config: LaunchConfig) -> None:
    """Say in one line what each worker would say in its own log."""
    if config.is_module:
        return
    if config.script.endswith(".py"):
        if not os.path.exists(config.script):
            raise FileNotFoundError(f"there is no script {config.script}")
        return
    from rankspawn.workers.execution import check_program

    check_program(config.command(sys.executable))


def _say_goodbye(result: Result, ending: int | None) -> None:
    """The summary, then the root cause, at every level; nothing is printed after it."""
    from rankspawn.launch.words import LINES_READ, describe_cause, signal_name, summarize
    from rankspawn.workers.logs import read_tail

    host = os.uname().nodename
    if result.tries:
        logger.info("%s", summarize(result.endings, host=host, tries=result.tries))
    if result.text:
        logger.critical("%s", result.text)
    elif result.cause is not None:
        lines = read_tail(result.cause.log, start=result.cause.log_start, lines=LINES_READ)
        logger.critical("%s", describe_cause(result.cause, lines, host=host))
    elif result.exit_code and ending is not None:
        logger.critical("ended by %s to the launcher", signal_name(ending))


def _complain(error: Exception, exit_code: int) -> int:
    notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
    logger.critical("%s%s", error, notes)
    return exit_code
