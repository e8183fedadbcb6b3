"""What a worker of the multi-node tests runs: it tells who it is, and does what it is told."""

import json
import os
import signal
import socket
import sys


def save(*_: object) -> None:
    """Save for a while, as the scheduler that ends the job comes to this node's launcher, too."""
    os.kill(os.getppid(), signal.SIGTERM)
    # The launcher has heard it by then.
    signal.sigtimedwait([], 0.5)
    with open("saved", "w"):
        sys.exit(0)


def main() -> None:
    if "stubborn" in sys.argv:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
    if "saves" in sys.argv:
        signal.signal(signal.SIGTERM, save)
    with socket.socket(socket.AF_UNIX) as line:
        # By a descriptor of its folder, whose path may be too long for a socket.
        place = os.open(os.environ["REPORT_TO"], os.O_PATH)
        line.connect(f"/proc/self/fd/{place}/line")
        os.close(place)
        told = {"pid": os.getpid(), "args": sys.argv[1:], "env": dict(os.environ)}
        line.sendall(f"{json.dumps(told)}\n".encode())
        print(f"rank {os.environ.get('RANK')} is up", flush=True)
        with line.makefile() as words:
            verb, _, rest = words.readline().strip().partition(" ")
    if verb == "raise":
        raise ValueError(rest)
    if verb == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.exit(int(rest or 0))


main()
