"""A torch that is none, whose store tells its process id, and ranks that ask it."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

from tests.jobs import DEADLOCK, sleep_for_ever

FAKE = """
import os, socket, threading

class TCPStore:
    def __init__(self, host, port, is_master, wait_for_workers, master_listen_fd):
        self._listening = socket.socket(fileno=master_listen_fd)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self):
        while True:
            line, _ = self._listening.accept()
            with line:
                line.sendall(b"%d" % os.getpid())
"""


def write_torch(folder: Path, *, before: str = "") -> None:
    """Make a torch in this folder; loading it begins with some code."""
    (folder / "torch").mkdir()
    (folder / "torch" / "__init__.py").write_text("")
    (folder / "torch" / "distributed.py").write_text(before + FAKE)


def call_store() -> socket.socket:
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    return socket.create_connection(address, DEADLOCK)


def ask_store() -> int:
    """The process id of whoever hosts the store that a rank is told of."""
    with call_store() as line:
        return int(line.recv(64))


def told() -> tuple[str | None, int, int, int]:
    """Of the environment, this process, the store's process, and its session."""
    store = ask_store()
    # As a scheduler does to all processes of a job, whose ranks then save something.
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        os.kill(store, number)
    assert ask_store() == store
    name = "TORCHELASTIC_USE_AGENT_STORE"
    return os.environ.get(name), os.getpid(), store, os.getsid(store)


def release_store(fifo: str) -> int:
    """Connect to a store that cannot have begun to serve, and only then let it."""
    with call_store() as line:
        Path(fifo).write_text("go on")
        return int(line.recv(64))


def kill_store() -> None:
    if os.environ["RANK"] == "1":
        os.kill(ask_store(), signal.SIGKILL)
    sleep_for_ever()


def kill_store_once(note: str) -> bool:
    """Whether the store of the second try is another one."""
    store = str(ask_store())
    if os.environ["TORCHELASTIC_RESTART_COUNT"] == "1":
        return store != Path(note).read_text()
    Path(note).write_text(store)
    os.kill(int(store), signal.SIGKILL)
    sleep_for_ever()
    return False
