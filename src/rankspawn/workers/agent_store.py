"""torch's store in a process beside the ranks, as torchrun's agent hosts it.

Its socket listens before the first rank is started: who connects early waits in the system's
queue until that process has loaded torch, which takes about as long as it does in the ranks. So
nobody here has to wait for it, and no rank finds a port that nobody listens on.

It ends with its group; with a parent that died, which closes its standard input; and at the latest
by the mark that it carries. Signals that ask a job to end do not end it: a scheduler sends them to
all processes, and ranks that save something may need it to agree. Each start of a group has
a store of its own: nothing of an earlier try is in it.
"""

from __future__ import annotations

import errno
import json
import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from importlib import import_module
from typing import Any

from rankspawn.descriptors import Owned
from rankspawn.plan.environ import removed_env
from rankspawn.supervise.outcome import STATUS_LOST, End, Outcome, signal_name
from rankspawn.workers.logs import describe_capture, open_capture
from rankspawn.workers.marker import GONE_SECONDS, VARIABLE, variable_value
from rankspawn.workers.popen import WorkerPopen, adopt_child, command, whole_environment

_MODULE = "rankspawn.workers.agent_store"
# How many ranks may have connected before torch is loaded; the system has a limit of its own.
_BACKLOG = 4096


def check_torch() -> None:
    """Make sure that there is a torch to load, without loading it.

    Raises:
        ModuleNotFoundError: There is none.
    """
    if "torch" in sys.modules:
        return
    from importlib.util import find_spec

    spec = find_spec("torch")
    # A folder of that name somewhere on the path is no torch.
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError(
            "agent_store needs torch, which hosts the store, and this Python "
            f"({sys.executable}) has none: install it, or leave agent_store out",
            name="torch",
        )


class AgentStore:
    """A process that hosts the store, from :meth:`start` to :meth:`close`; it listens before.

    Args:
        host: The address that this node's ranks have ports on.
        port: The port that all ranks are told.
        is_shared: Ranks of other nodes use it as well, and reach it by whichever address.

    Attributes:
        is_shared: The same. Then it is needed also when all ranks of this node have ended.

    Raises:
        OSError: Somebody else listens on the port.
    """

    def __init__(self, host: str, port: int, *, is_shared: bool) -> None:
        self.is_shared: bool = is_shared
        self._popen: WorkerPopen | None = None
        self._lifeline: Owned | None = None
        self._printed: Owned | None = None
        self._socket = Owned(_listen(host, port, everywhere=is_shared).detach())

    @property
    def sentinel(self) -> int:
        """A descriptor that is readable once the process ended."""
        assert self._popen is not None, "it was started"
        return self._popen.sentinel

    def start(self, mark: str) -> int:
        """Start the process, which carries this mark; its id."""
        environ = whole_environment(
            {**removed_env(os.environ), VARIABLE: variable_value(mark)}, has_log=True
        )
        # The ranks' torch is the one that this process would import.
        path = json.dumps([os.path.abspath(entry) for entry in sys.path])
        target, self._printed = open_capture()
        read, write = os.pipe()
        self._lifeline = Owned(write)
        try:
            child = subprocess.Popen(
                command(_MODULE, ["rankspawn-store", self._socket.fileno(), path]),
                env=environ,
                stdin=read,
                stdout=target.fileno(),
                stderr=target.fileno(),
                pass_fds=(self._socket.fileno(),),
                # Ctrl-C in the terminal is not for it either.
                start_new_session=True,
            )
        finally:
            os.close(read)
            target.close()
        # It is reaped through WorkerPopen; this keeps subprocess from waiting for it as well.
        child.returncode = 0
        self._popen = adopt_child(child.pid)
        # Else ranks could connect to a port that nobody serves any more.
        self._socket.close()
        return child.pid

    def describe_loss(self, when_ns: int) -> Outcome:
        """What became of the process, which ended by itself: an outcome that is no rank's."""
        assert self._popen is not None, "it was started"
        code = self._popen.wait()
        code = STATUS_LOST if code is None else code
        outcome = Outcome(-1, self._popen.pid, End.DIED, code, when_ns, reached_function=True)
        how = f"signal {signal_name(-code)}" if code < 0 else f"exit code {code}"
        why = f"; {outcome.why_killed}" if outcome.why_killed else ""
        printed = "" if self._printed is None else describe_capture(self._printed)
        text = (
            f"the process that hosts torch's store (agent_store, pid {outcome.pid}) terminated "
            f"with {how} while ranks ran, which were stopped{why}\n{printed}"
        )
        return Outcome(-1, outcome.pid, End.DIED, code, when_ns, True, evidence=text.rstrip("\n"))

    def close(self) -> None:
        """End the process; a second call does nothing."""
        if self._popen is not None:
            # It has nothing to save. Where this process gave up the right to, the lifeline does it.
            with suppress(PermissionError):
                self._popen.kill()
        for owned in (self._lifeline, self._socket, self._printed):
            if owned is not None:
                owned.close()
        if self._popen is not None:
            self._popen.wait(GONE_SECONDS)
            self._popen.close()


def _listen(host: str, port: int, *, everywhere: bool) -> socket.socket:
    """A socket at this port, which a socket that does not listen holds already."""
    if not everywhere:
        # Who is not on this machine has no business with it: the store knows no password.
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            return socket.create_server((host, port), family=family, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:  # see HeldPorts
                raise
    if not socket.has_dualstack_ipv6():
        return socket.create_server(("", port), backlog=_BACKLOG)
    return socket.create_server(
        ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
    )


def main() -> None:
    """Host the store until the parent lets go of it, or dies. Runs in the store's process."""
    for signal_number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signal_number, signal.SIG_IGN)
    number, path = sys.argv[2:]
    sys.path[:] = json.loads(path)
    listening = socket.socket(fileno=int(number))
    host, port = listening.getsockname()[:2]
    if host in ("::", "0.0.0.0"):
        host = "127.0.0.1"
    store = _serve(host, port, listening.detach())
    while os.read(0, 1):
        pass
    assert store is not None, "it serves as long as somebody keeps it"
    os._exit(0)  # torch's destructors have nothing to do


def _serve(host: str, port: int, listening: int) -> object:
    """A store at a socket that listens."""
    # By name: the project's own checks run without torch.
    distributed: Any = import_module("torch.distributed")
    where = {"is_master": True, "wait_for_workers": False, "master_listen_fd": listening}
    try:
        return distributed.TCPStore(host, port, **where)
    except (RuntimeError, NotImplementedError):
        # Before torch 2.6 or so the newer of its two servers takes no socket.
        return distributed.TCPStore(host, port, **where, use_libuv=False)
