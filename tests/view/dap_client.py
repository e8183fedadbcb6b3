"""The part of an editor that talks to debugpy: the Debug Adapter Protocol over a socket."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable
from typing import Any

from tests.jobs import DEADLOCK

Message = dict[str, Any]


class Editor:
    """A client that is attached to a process.

    Args:
        port: Where it listens, on this machine.
    """

    def __init__(self, port: int) -> None:
        self._socket = _connect(port)
        self._file = self._socket.makefile("rb")
        self._sent = 0
        self._unread: list[Message] = []

    def attach(self) -> None:
        """As an editor does with the button for it."""
        self.ask("initialize", adapterID="tests", pathFormat="path")
        attached = self.send("attach", justMyCode=False)
        self.event("initialized")
        self.ask("configurationDone")
        self._answer_to(attached)

    def ask(self, command: str, **arguments: Any) -> Message:
        """Send a request and wait for its answer."""
        return self._answer_to(self.send(command, **arguments))

    def send(self, command: str, **arguments: Any) -> int:
        """Send a request; its number."""
        self._sent += 1
        message = {"seq": self._sent, "type": "request", "command": command}
        data = json.dumps({**message, "arguments": arguments}).encode()
        self._socket.sendall(b"Content-Length: %d\r\n\r\n%s" % (len(data), data))
        return self._sent

    def event(self, name: str) -> Message:
        """Wait for an event of this name."""
        return self._find(lambda message: message.get("event") == name)

    def close(self) -> None:
        """Go away."""
        self._file.close()
        self._socket.close()

    def _answer_to(self, number: int) -> Message:
        answer = self._find(lambda message: message.get("request_seq") == number)
        assert answer["success"], answer
        return answer

    def _find(self, fits: Callable[[Message], bool]) -> Message:
        for message in self._unread:
            if fits(message):
                self._unread.remove(message)
                return message
        while True:
            message = self._read()
            if fits(message):
                return message
            self._unread.append(message)

    def _read(self) -> Message:
        length = 0
        while line := self._file.readline().strip():
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        assert length, "it was closed"
        message: Message = json.loads(self._file.read(length))
        return message


def _connect(port: int) -> socket.socket:
    """A connection, once somebody listens: what says where it will may not do so yet."""
    deadline = time.monotonic() + DEADLOCK
    while True:
        try:
            return socket.create_connection(("127.0.0.1", port), timeout=DEADLOCK)
        except ConnectionRefusedError:
            assert time.monotonic() < deadline, f"nobody listens at port {port}"
            time.sleep(0.05)
