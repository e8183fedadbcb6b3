"""Programs in a terminal of their own, for tests of what people see and type."""

from __future__ import annotations

import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.jobs import DEADLOCK

ROOT = Path(__file__).parent.parent


class Terminal:
    """A program in a terminal of its own, as its foreground process group.

    Args:
        arguments: What Python is to run.
        cwd: The current folder.
        env: The environment.
    """

    def __init__(self, arguments: Sequence[str], *, cwd: Path, env: Mapping[str, str]) -> None:
        self.master, slave = pty.openpty()
        termios.tcsetwinsize(self.master, (40, 120))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.in_terminal", *arguments],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=env,
            cwd=cwd,
            start_new_session=True,
        )
        os.close(slave)
        self.output = ""

    def read_until(self, text: str, count: int = 1) -> None:
        """Read what the terminal shows until the text was there so often."""
        deadline = time.monotonic() + DEADLOCK
        while self.output.count(text) < count and self._read(deadline):
            pass
        assert self.output.count(text) >= count, self.output

    def read_for(self, seconds: float) -> None:
        """Read what the terminal shows in this time."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            ready, _, _ = select.select([self.master], [], [], left)
            if ready and not self._read(until + DEADLOCK):
                return

    def press_ctrl_c(self) -> None:
        os.write(self.master, b"\x03")

    def type_line(self, text: str) -> None:
        os.write(self.master, f"{text}\n".encode())

    def finish(self) -> int:
        deadline = time.monotonic() + DEADLOCK
        while self._read(deadline):
            pass
        return self.process.wait(DEADLOCK)

    def _read(self, deadline: float) -> str:
        left = max(0.0, deadline - time.monotonic())
        ready, _, _ = select.select([self.master], [], [], left)
        assert ready, f"nothing more came: {self.output}"
        try:
            text = os.read(self.master, 65536).decode(errors="replace")
        except OSError:  # everybody closed the terminal
            return ""
        self.output += text
        return text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal; a second call does nothing."""
        if self.master >= 0:
            os.close(self.master)
            self.master = -1


class Session(Terminal):
    """A script in a terminal of its own, two workers of which say ``ready`` and who they are."""

    def __init__(self, folder: Path, text: str, *arguments: str) -> None:
        program = folder / "program.py"
        program.write_text(text)
        environ = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"}
        super().__init__([str(program), *arguments], cwd=ROOT, env=environ)

    def pids(self) -> list[int]:
        deadline = time.monotonic() + DEADLOCK
        # With what follows: a terminal may give half of a number at first.
        while len(found := re.findall(r"\bready (\d+)\s", self.output)) < 2:
            assert self._read(deadline), self.output
        return [int(pid) for pid in found]
