"""``rankrun --hosts a,b --ssh``: a launcher on each host, started and watched from here.

Each is at the other end of an ``ssh`` program, whose standard streams carry all that is said.
"""

from __future__ import annotations

import os
import secrets
import select
import selectors
import signal
import sys
import time
from contextlib import suppress

from rankspawn.cluster.engine import TIME_TO_KILL
from rankspawn.cluster.ssh import Ssh, address_of
from rankspawn.interrupts import ImpatientError
from rankspawn.launch import host_jobs
from rankspawn.launch.flags import UsageError
from rankspawn.launch.host_connection import HostConnection
from rankspawn.launch.other_nodes import words_for_others
from rankspawn.launch.rendezvous.tokens import TokenError, given_token, new_token
from rankspawn.supervise.outcome import signal_name
from rankspawn.telling import get_logger

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from rankspawn.interrupts import Signals
    from rankspawn.launch.config import LaunchConfig

logger: logging.Logger = get_logger(__name__)

_LOST = 1  # the exit code of a job that lost a host
# What a pipe takes without making us wait, and how much may wait for a terminal.
_PIECE, _MOST_WAITING = 4096, 1 << 20
# How often ends are looked for that no descriptor tells.
_LOOK_UP_SECONDS, _LOOK_UP_AT_END = 1.0, 0.05
# After a failure the launchers tell each other; one that was not there is told from here.
_TO_TELL_EACH_OTHER = 5.0
_LONGEST_GOODBYE = 2.0


def run_over_ssh(config: LaunchConfig, argv: Sequence[str], signals: Signals) -> int:
    """Run the job on all hosts; the exit code.

    Raises:
        UsageError: The hosts make no sense.
        OSError: A host cannot take part; then nothing was started on any.
    """
    nodes = host_jobs.check_hosts(config)
    engine = Ssh([node.host for node in nodes])
    try:
        engine.nodes()
        token = given_token(os.environ) or new_token()
    except RuntimeError as error:  # there is no ssh
        raise OSError(str(error)) from error
    except TokenError as error:
        raise UsageError(str(error)) from error
    words = [sys.executable, "-m", host_jobs.MODULE]
    hosts: list[HostConnection] = []
    try:
        for node in nodes:
            hosts.append(HostConnection(node.host, engine.command(node.host, words)))
        job = _Job(config, hosts, signals)
        if not job.meet(engine.start_timeout):
            return job.end_by_signal(None)
        first = hosts[0].greeting
        assert first is not None
        address = address_of(nodes[0].host) or first.address
        key = secrets.token_hex(16)
        jobs = host_jobs.make_jobs(
            nodes,
            same=words_for_others(argv, os.environ, config.given),
            master=host_jobs.master_at(config.master, address, first.port, len(nodes)),
            folder=os.getcwd(),
            token=token.secret,
            key=key,
        )
        for host, told in zip(hosts, jobs, strict=True):
            host.begin(key, told | {"grace": config.grace_period})
        return job.watch()
    finally:
        for host in hosts:
            host.kill()
        for host in hosts:
            host.close()


class _Job:
    """All hosts of a job, from here."""

    def __init__(
        self, config: LaunchConfig, hosts: Sequence[HostConnection], signals: Signals
    ) -> None:
        self._config, self._hosts, self._signals = config, hosts, signals
        self._shown: dict[int, bytearray | None] = {1: bytearray(), 2: bytearray()}
        self._told_signal = False
        self._alive_at = 0.0
        # When hosts that still run are told to end, and when they are given up.
        self._end_at: float | None = None
        self._kill_at: float | None = None
        self._failed: HostConnection | None = None

    def meet(self, seconds: float | None) -> bool:
        """Wait until all hosts are there; False if somebody wants an end.

        Raises:
            OSError: One does not come, and why.
        """
        import rankspawn

        deadline = None if seconds is None else time.monotonic() + seconds
        python = sys.version.split()[0]
        while not all(host.greeting for host in self._hosts):
            self._turn()
            if self._signals.ending is not None:
                self._finish_showing()
                return False
            for host in self._hosts:
                if host.greeting is not None:
                    host_jobs.check_greeting(
                        host.name, host.greeting, version=rankspawn.__version__, python=python
                    )
                elif host.has_ended or (deadline is not None and time.monotonic() > deadline):
                    self._finish_showing()
                    why = host.why_lost() or f"it said nothing in {seconds:g} s"
                    raise OSError(f"nothing was started, as {host.name} cannot take part: {why}")
        return True

    def watch(self) -> int:
        """Wait for the end of all; the exit code of the failure that came first."""
        while any(not host.has_ended for host in self._hosts):
            self._turn()
            self._keep_alive()
            self._obey_signals()
            self._look_for_failures()
            self._end_in_time()
        self._finish_showing()
        return self._say_goodbye()

    def end_by_signal(self, failed: HostConnection | None) -> int:
        """Say that somebody wanted this end; the exit code."""
        number = self._signals.ending or signal.SIGTERM
        logger.critical("ended by %s to the launcher", signal_name(number))
        return (failed.code if failed is not None else None) or 128 + number

    def _turn(self) -> None:
        """Wait for something, and take what hosts said."""
        selector = selectors.PollSelector()  # epoll takes no files, and our output may be one
        selector.register(self._signals.fileno(), selectors.EVENT_READ)
        for fd, text in self._shown.items():
            if text:
                selector.register(fd, selectors.EVENT_WRITE)
        for host in self._hosts:
            for fd, shown_on in host.to_read():
                waiting = self._shown[shown_on]
                # Who wants an end wants the last words, too, which come after the others.
                is_full = waiting is not None and len(waiting) >= _MOST_WAITING
                if not is_full or self._signals.ending is not None:
                    selector.register(fd, selectors.EVENT_READ, host)
        is_ending = any(host.is_ending and not host.has_ended for host in self._hosts)
        seconds = _LOOK_UP_AT_END if is_ending else _LOOK_UP_SECONDS
        events = []
        try:
            with self._signals.impatient():
                events = selector.select(seconds)
        except ImpatientError:
            self._told_signal = False
        self._signals.clear()
        for event, _ in events:
            if isinstance(event.data, HostConnection):
                event.data.read(event.fd)
            elif event.fd in self._shown:
                self._write(event.fd)
        for host in self._hosts:
            host.look_for_end()
            for fd, lines in host.take_lines():
                waiting = self._shown[fd]
                if waiting is not None:
                    waiting += lines

    def _write(self, fd: int) -> None:
        text = self._shown[fd]
        if text:
            try:
                del text[: os.write(fd, text[:_PIECE])]
            except BlockingIOError:
                pass
            except OSError:  # the reader of a pipe left, the terminal was closed
                self._shown[fd] = None

    def _keep_alive(self) -> None:
        now = time.monotonic()
        if now - self._alive_at >= host_jobs.ALIVE_SECONDS:
            self._alive_at = now
            for host in self._hosts:
                host.say(b"\n")

    def _obey_signals(self) -> None:
        for number in self._signals.take_to_pass_on():
            self._tell(number)
        if self._signals.ending is not None and not self._told_signal:
            self._told_signal = True
            self._tell(self._signals.ending)
            self._give_up_later()

    def _look_for_failures(self) -> None:
        ended = [host for host in self._hosts if host.has_ended]
        if self._failed is None:
            self._failed = next((host for host in ended if host.code != 0), None)
        if self._end_at is not None or self._config.may_go_on:
            return
        if any(host.code is None for host in ended):
            self._end_at = time.monotonic()
        elif self._failed is not None:
            grace = self._config.grace_period + TIME_TO_KILL
            self._end_at = time.monotonic() + grace + _TO_TELL_EACH_OTHER

    def _end_in_time(self) -> None:
        now = time.monotonic()
        if self._end_at is not None and self._kill_at is None and now >= self._end_at:
            self._tell(signal.SIGTERM)
            self._give_up_later()
        if self._kill_at is not None and now >= self._kill_at:
            for host in self._hosts:
                host.kill()

    def _give_up_later(self) -> None:
        grace = self._config.grace_period + TIME_TO_KILL
        self._kill_at = self._kill_at or time.monotonic() + grace + _TO_TELL_EACH_OTHER

    def _tell(self, number: int) -> None:
        for host in self._hosts:
            host.say(host_jobs.signal_line(number))

    def _finish_showing(self) -> None:
        """Wait until all is written, but not long once somebody wants an end."""
        deadline: float | None = None
        while any(self._shown.values()):
            if self._signals.ending is not None:
                deadline = deadline or time.monotonic() + _LONGEST_GOODBYE
                if time.monotonic() > deadline:
                    return
            poller = select.poll()
            for fd, text in self._shown.items():
                if text:
                    poller.register(fd, select.POLLOUT)
            with suppress(ImpatientError), self._signals.impatient(at_first=True):
                for fd, _ in poller.poll(200):
                    self._write(fd)

    def _say_goodbye(self) -> int:
        lost = [host for host in self._hosts if host.code is None]
        failed = self._failed or next((host for host in self._hosts if host.code != 0), None)
        # A launcher that lost us ends as by SIGTERM, and the others with it, maybe before ssh
        # has noticed anything here.
        if lost and failed is not None and failed.code == 128 + signal.SIGTERM:
            failed = lost[0]
        for host in lost:
            if host is not failed:
                logger.error("the connection to %s was lost: %s", host.name, host.why_lost())
        if failed is None:
            return 0
        if self._signals.ending is not None:
            return self.end_by_signal(failed)
        if failed.code is None:
            why = failed.why_lost() or "ssh was ended"
            logger.critical(
                "the connection to %s was lost, and its workers are ended: %s", failed.name, why
            )
            return _LOST
        logger.critical("the first to fail was %s, with exit code %d", failed.name, failed.code)
        return failed.code
