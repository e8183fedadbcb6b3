"""Carries the bytes of whoever attaches to a job: runs beside its keeper, as a step of the job.

``python -m rankspawn.cluster.relay NAME``: standard input and output are the one end, the keeper's
socket is the other one. Such a socket has no file, so nothing is left of it, and the kernel says
who is at its other end.
"""

from __future__ import annotations

import os
import selectors
import socket
import struct
import sys
import time

# For the keeper to come up, on a machine that is very busy.
_PATIENCE = 120.0
_PAUSE = 0.05
_AT_ONCE = 1 << 18


def address_of(name: str) -> str:
    """The keeper's address: a name in the kernel's own space, not a file's."""
    return f"\0rankspawn-{name}"


def is_own(connection: socket.socket) -> bool:
    """Whether a process of this user is at the other end."""
    size = struct.calcsize("3i")
    told = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    uid: int = struct.unpack("3i", told)[1]
    return uid == os.geteuid()


def connect(name: str, patience: float = _PATIENCE) -> socket.socket:
    """A connection to the keeper, which may be just coming up.

    Raises:
        OSError: There is none, or it is another user's.
    """
    deadline = time.monotonic() + patience
    while True:
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.connect(address_of(name))
        except ConnectionRefusedError:
            connection.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(_PAUSE)
            continue
        if not is_own(connection):
            connection.close()
            raise PermissionError("another user listens where this job's keeper should")
        return connection


def carry(read: int, write: int, connection: socket.socket) -> None:
    """Until one of both ends."""
    pairs = {read: connection.fileno(), connection.fileno(): write}
    with selectors.DefaultSelector() as selector:
        for number in pairs:
            selector.register(number, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                data = memoryview(os.read(key.fd, _AT_ONCE))
                if not data:
                    return
                while data:
                    data = data[os.write(pairs[key.fd], data) :]


def main() -> None:
    """Connect, and carry."""
    try:
        with connect(sys.argv[1]) as connection:
            carry(0, 1, connection)
    except OSError as error:
        sys.exit(f"rankspawn: the keeper of this job cannot be reached: {error}")


if __name__ == "__main__":
    main()
