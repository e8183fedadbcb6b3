"""Bytes to and from an agent in a Ray cluster, through the methods of its actor."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import deque
from typing import Any

from rankspawn.cluster.engine import TIME_TO_KILL
from rankspawn.cluster.programs import SharedDeadline
from rankspawn.descriptors import Owned

# What goes in one call. Ray keeps more than 100 KiB in its object store, and passes that fast.
_PIECE = 1 << 20
# Calls on their way, so that a slow node fills neither the store nor our memory.
_ON_THE_WAY = 8
_TO_SAY_WHY = 2.0
# The first lines of Ray's words name the actor, its node and the cause; a page of advice follows.
_LINES = 8


class RayChannel:
    """Bytes to and from an agent, through the methods of its actor; two threads carry them."""

    def __init__(self, actor: Any, host: str, address: str, shared: Shared) -> None:
        self.host: str = host
        self.address: str | None = address
        self._ray, self._actor, self._shared = shared.ray, actor, shared
        self._lock = threading.Lock()
        self._is_closed = False
        self._why = ""
        ours, self._theirs = socket.socketpair()
        self._socket = Owned(ours.detach())
        self._threads = [
            threading.Thread(target=carry, name="rankspawn-ray", daemon=True)
            for carry in (self._carry_there, self._carry_back)
        ]
        for thread in self._threads:
            thread.start()

    def read_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def write_fileno(self) -> int:
        """The socket."""
        return self._socket.fileno()

    def why_lost(self) -> str:
        """What Ray says of the actor, or the last words of the agent."""
        if not self._why:
            try:
                self._why = self._ray.get(self._actor.why.remote(), timeout=_TO_SAY_WHY)
            except Exception as error:
                self._note(error)
        return self._why

    def kill(self) -> None:
        """End the actor; the agent finds its input at an end."""
        self._ray.kill(self._actor)

    def close(self) -> None:
        """Let the agent end, then the actor; the last one gives the place back."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
        self._socket.close()
        self._threads[0].join()  # it has read the end, so all that was written is on its way
        try:
            self._actor.close_input.remote()
            seconds = self._shared.deadline.seconds_left()
            self._ray.get(self._actor.finish.remote(seconds), timeout=seconds + TIME_TO_KILL)
        except Exception as error:
            self._note(error)
        self._ray.kill(self._actor)
        self._threads[1].join()
        self._theirs.close()
        self._shared.leave()

    def _note(self, error: Exception) -> None:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        self._why = self._why or "\n".join([type(error).__name__, *lines[:_LINES]])

    def _carry_there(self) -> None:
        """Runs in a thread."""
        calls: deque[Any] = deque()
        try:
            while data := self._theirs.recv(_PIECE):
                calls.append(self._actor.write.remote(data))
                if len(calls) > _ON_THE_WAY:
                    self._ray.get(calls.popleft())
        except Exception as error:
            self._note(error)

    def _carry_back(self) -> None:
        """Runs in a thread."""
        try:
            while data := self._ray.get(self._actor.read.remote()):
                self._theirs.sendall(data)
        except Exception as error:
            self._note(error)
        with contextlib.suppress(OSError):
            self._theirs.shutdown(socket.SHUT_WR)


class Shared:
    """What all channels of a group hold together: the place, and maybe the connection."""

    def __init__(
        self, ray: Any, users: int, deadline: SharedDeadline, held: contextlib.ExitStack
    ) -> None:
        self.ray: Any = ray
        self.deadline: SharedDeadline = deadline
        self._users, self._held = users, held
        self._lock = threading.Lock()

    def leave(self) -> None:
        """Called once for each; the last one gives it back."""
        with self._lock:
            self._users -= 1
            if self._users:
                return
        self._held.close()
