"""A launcher on another host, at the other end of a program that carries its streams."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import suppress

from rankspawn.cluster.programs import end
from rankspawn.cluster.ssh import explain
from rankspawn.launch.host_jobs import Greeting, read_farewell, read_greeting
from rankspawn.workers.lines import LineAssembler

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import IO, Any

# How long a program may take to go after its last word.
_TO_GO = 5.0
_LAST_BYTES = 8192


class HostConnection:
    """The program, and what the host said.

    Attributes:
        name: The host's.
        greeting: Who is there; None until that is known.
        code: The launcher's exit code; None until it has said that, and if it never did.
        has_ended: Nothing more comes.
    """

    def __init__(self, name: str, command: Sequence[str]) -> None:
        self.name: str = name
        self.greeting: Greeting | None = None
        self.code: int | None = None
        self.has_ended: bool = False
        self._key = ""
        self._closing_at: float | None = None
        self._said = b""
        self._lines: list[tuple[int, bytes]] = []
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
            # Ctrl-C in the terminal is for this launcher, which tells those on the hosts.
            start_new_session=True,
        )
        self._streams: dict[int, tuple[int, LineAssembler]] = {}
        for shown_on, stream in ((1, self._process.stdout), (2, self._process.stderr)):
            fd = _number(stream)
            os.set_blocking(fd, False)
            self._streams[fd] = (shown_on, LineAssembler())

    @property
    def is_ending(self) -> bool:
        """It said its last word, or there is nobody to say one."""
        return self._closing_at is not None

    def to_read(self) -> list[tuple[int, int]]:
        """The descriptors with what it says, and where each of them is shown."""
        return [(fd, shown_on) for fd, (shown_on, _) in self._streams.items()]

    def begin(self, key: str, job: dict[str, Any]) -> None:
        """Give it its job."""
        self._key = key
        self.say(json.dumps(job).encode() + b"\n")

    def say(self, line: bytes) -> None:
        """Say something, if anybody is there."""
        if self._process.stdin is not None and not self.is_ending:
            with suppress(OSError):
                self._process.stdin.write(line)

    def read(self, fd: int) -> bool:
        """Take what there is; False if there was nothing."""
        shown_on, lines = self._streams[fd]
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return False
        if not data:
            self._finish(fd)
            return False
        if shown_on == 2 and self.greeting is None:
            self._said = (self._said + data)[-_LAST_BYTES:]
        for line in lines.feed(data):
            self._take(shown_on, line)
        return True

    def take_lines(self) -> list[tuple[int, bytes]]:
        """What is to be shown, and where, since the last call."""
        taken, self._lines = self._lines, []
        return taken

    def look_for_end(self) -> None:
        """Notice that the program is gone, and take its last words."""
        if self.has_ended:
            return
        now = time.monotonic()
        if self.code is not None or not any(on == 1 for on, _ in self._streams.values()):
            self._closing_at = self._closing_at or now
        if self._process.poll() is None:
            if self._closing_at is not None and now - self._closing_at > _TO_GO:
                self._process.kill()
            return
        # Another ssh, which shares its connection, may have these open for ever.
        for fd in list(self._streams):
            while fd in self._streams and self.read(fd):
                pass
            if fd in self._streams:
                self._finish(fd)
        self._closing_at, self.has_ended = now, True

    def why_lost(self) -> str:
        """What to do about it, and what ssh said, if nobody else has spoken yet."""
        said = "" if self.greeting is not None else self._said.decode(errors="replace").strip()
        return explain(self.name, sys.executable, self._process.poll(), said, is_engine=False)

    def kill(self) -> None:
        """Cut the connection, by which the launcher there knows that it has to end."""
        if self._process.poll() is None:
            self._process.kill()

    def close(self) -> None:
        """Let go of it all."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._streams = {}
        end(self._process, _TO_GO)

    def _finish(self, fd: int) -> None:
        shown_on, lines = self._streams.pop(fd)
        for line in lines.finish():
            self._take(shown_on, line)

    def _take(self, shown_on: int, line: bytes) -> None:
        if shown_on == 1 and self.greeting is None:
            self.greeting = read_greeting(line)
            if self.greeting is not None:
                return
        if shown_on == 1 and self._key and (last := read_farewell(self._key, line)):
            line, self.code = last
            if not line:
                return
        self._lines.append((shown_on, b"[%s] %s\n" % (self.name.encode(), line)))


def _number(stream: IO[bytes] | None) -> int:
    assert stream is not None
    return stream.fileno()
