"""Ports for programs that have to be told one."""

from __future__ import annotations

import random
import socket
from contextlib import ExitStack

# Below those that Linux gives to whoever asks for any (32768 on), so that nobody is given one
# between the moment in which it is found free and the one in which the program takes it.
_FIRST, _LAST = 15_000, 32_000
# Not the seeded one: two runs of the tests at once would choose the same.
_random = random.SystemRandom()


def free_port(host: str = "127.0.0.1", *, span: int = 1) -> int:
    """The first of ``span`` ports in a row that nobody uses."""
    while True:
        first = _random.randrange(_FIRST, _LAST - span)
        with ExitStack() as servers:
            try:
                for port in range(first, first + span):
                    servers.enter_context(socket.create_server((host, port)))
            except OSError:
                continue
        return first
