"""What a worker of a job on several hosts does: tells that it is up, talks to its peers, saves.

It ends well once there is a file ``done``, and badly when it loses a peer. Of each start there are
files: ``up.<start>.<world size>.<rank>`` with its process id, and ``saved.`` and the same once it
was asked to end and took its time for that.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import socket
import sys
import time

START = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
RANK, SIZE = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
NAME = f"{START}.{SIZE}.{RANK}"


def save(*_: object) -> None:
    """Take a while, as a checkpoint does."""
    time.sleep(random.uniform(0.2, 1.5))
    write(f"saved.{NAME}")
    os._exit(0)


def write(name: str) -> None:
    """Have a file with our process id; whoever sees it sees all of it."""
    with open(f"{name}.new", "w") as file:
        file.write(str(os.getpid()))
    os.rename(f"{name}.new", name)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only was not reaped does not."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def look_for_older_ones() -> None:
    """Never two generations: none of an earlier start may be there, on any host."""
    for name in os.listdir():
        if name.startswith("up.") and not name.endswith(".new"):
            with open(name) as file:
                pid = int(file.read())
            if int(name.split(".")[1]) < START and is_alive(pid):
                write(f"violation.{NAME}.beside.{name}")


def peers() -> list[socket.socket]:
    """Connections to all others, as a collective has them; of rank 0 only, to keep it small."""
    host, _, port = os.environ["PADDLE_TRAINER_ENDPOINTS"].split(",")[0].rpartition(":")
    if RANK == 0:
        with socket.create_server((host, int(port)), backlog=SIZE) as server:
            found = []
            while len(found) < SIZE - 1:
                if select.select([server], [], [], 0.1)[0]:
                    found.append(server.accept()[0])
                end_if_done()
            return found
    while True:
        end_if_done()
        try:
            return [socket.create_connection((host, int(port)), 1.0)]
        except OSError:
            time.sleep(0.05)


def end_if_done() -> None:
    """End well, if all is done."""
    if os.path.exists("done"):
        os._exit(0)


def talk(connections: list[socket.socket]) -> None:
    """Hear from all others, and say something."""
    for connection in select.select(connections, [], [], 0.1)[0]:
        if not connection.recv(1024):
            raise ConnectionError("a peer is gone")
    for connection in connections:
        # What is sent into a cut link piles up.
        with contextlib.suppress(BlockingIOError):
            connection.send(b".")


def main() -> None:
    """Be up until all is done, a peer is lost, or somebody asks for the end."""
    signal.signal(signal.SIGTERM, save)
    look_for_older_ones()
    write(f"up.{NAME}")
    connections = peers() if sys.argv[1] == "talks" else []
    for connection in connections:
        connection.setblocking(False)
    while True:
        end_if_done()
        try:
            talk(connections)
        except OSError:
            # A peer that ended well is no loss.
            end_if_done()
            raise


if __name__ == "__main__":
    main()
