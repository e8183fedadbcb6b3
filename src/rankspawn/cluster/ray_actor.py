"""The actor that starts an agent in a Ray cluster. Runs in a worker of Ray.

It goes there by value, so it refers to nothing but the standard library.
"""

from __future__ import annotations

from typing import Any


def actor_class(ray: Any) -> Any:
    """A Ray actor class; its methods of one kind are called one at a time, in order."""

    @ray.remote(concurrency_groups={"there": 1, "back": 1, "end": 2}, max_restarts=0)
    class Carrier:
        """Carries bytes to and from a program that it starts."""

        def __init__(self) -> None:
            import threading

            self.is_open = threading.Event()

        @ray.method(concurrency_group="there")
        def open(self, words: list[str], environ: dict[str, str]) -> None:
            """Start Python with these words, or the first word if that is a path."""
            import os
            import subprocess
            import sys
            import tempfile

            kept = dict(os.environ)
            # Ray's own idea for a worker of one thread; each rank has its share of the node.
            kept.pop("OMP_NUM_THREADS", None)
            command = words if words[0] != "-m" else [sys.executable, *words]
            self.said = tempfile.TemporaryFile()  # noqa: SIM115 - as long as the actor
            self.program: Any = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self.said,
                env=environ | kept,
                bufsize=0,
            )
            self.is_open.set()

        @ray.method(concurrency_group="there")
        def write(self, data: bytes) -> None:
            """Give it this; what it does not take any more is lost, as in any broken pipe."""
            import contextlib

            rest = memoryview(data)
            with contextlib.suppress(OSError):
                while rest:
                    rest = rest[self.program.stdin.write(rest) :]

        @ray.method(concurrency_group="back")
        def read(self) -> bytes:
            """What it says next; nothing at the end."""
            import os

            self.is_open.wait()
            return os.read(self.program.stdout.fileno(), 1 << 20)

        @ray.method(concurrency_group="there")
        def close_input(self) -> None:
            """Tell it that nobody is here any more."""
            self.program.stdin.close()

        @ray.method(concurrency_group="end")
        def finish(self, seconds: float) -> None:
            """Wait for its end; after these seconds kill it."""
            import subprocess

            try:
                self.program.wait(seconds)
            except subprocess.TimeoutExpired:
                self.program.kill()
                self.program.wait()

        @ray.method(concurrency_group="end")
        def why(self) -> str:
            """How it ended, and its last words."""
            import subprocess

            try:
                code = f"the agent ended with code {self.program.wait(1.0)}"
            except subprocess.TimeoutExpired:
                code = "the agent has closed its output, and runs on"
            self.said.seek(0, 2)
            self.said.seek(max(0, self.said.tell() - 8192))
            said = self.said.read().decode(errors="replace").strip()
            return f"{code}: {said}" if said else code

    return Carrier
