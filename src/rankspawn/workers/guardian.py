"""Ends the workers of a parent that died without a chance to do it.

A tiny shell process per group, outside of all others, blocks on a pipe whose other end only the
parent has. A parent that ended the group itself ends the guardian, too. If the pipe closes, the
parent is gone, by whatever signal and from whatever thread, and the guardian does the teardown:
SIGTERM, grace, SIGKILL to all that carry the job's mark.

Rejected: ``PR_SET_PDEATHSIG`` fires when the *thread* that started the worker ends, does not
reach grandchildren, and means nothing under a fork server. A watching thread in each worker
needs the GIL, which a worker in C code may hold for ever.
"""

from __future__ import annotations

import logging
import os
import subprocess

from rankspawn.descriptors import Owned
from rankspawn.workers.marker import file_name

logger = logging.getLogger(__name__)

_SHELL = "/bin/sh"
_LONGEST_GRACE = 1e6
# $1: what is searched for in /proc/*/environ, $2: in /proc/*/maps, $3: hundredths of a second.
# The time is the system's, because looking at all processes takes long where there are many.
_SCRIPT = r"""
trap "" HUP INT TERM QUIT
read -r _
marked() {
    # In this order: what becomes another program meanwhile is found in one of them.
    { grep -lsF -e "$2" /proc/[0-9]*/maps; grep -lsF -e "$1" /proc/[0-9]*/environ; } |
        while IFS=/ read -r _ _ pid _; do echo "$pid"; done
}
now() {
    IFS=". " read -r seconds hundredths _ < /proc/uptime
    echo $((seconds * 100 + 1$hundredths - 100))  # 09 alone would be read as octal
}
end=$(($(now) + $3))
kill -TERM $(marked "$1" "$2") 2>/dev/null
kill -CONT $(marked "$1" "$2") 2>/dev/null
while [ "$(now)" -lt "$end" ] && [ -n "$(marked "$1" "$2")" ]; do
    sleep 0.1
done
# A process that was being started at that moment may carry the mark a little later.
tries=50
calm=0
while [ "$tries" -gt 0 ] && [ "$calm" -lt 3 ]; do
    pids=$(marked "$1" "$2")
    if [ -z "$pids" ]; then
        calm=$((calm + 1))
        sleep 0.1
    else
        calm=0
        kill -STOP $pids 2>/dev/null
        kill -KILL $(marked "$1" "$2") $pids 2>/dev/null
    fi
    tries=$((tries - 1))
done
"""


class _Shell(subprocess.Popen[bytes]):
    def __del__(self) -> None:
        """Say nothing: a copy of it that a forked process drops still runs, and shall."""


class Guardian:
    """Watches this process for one group; ``close`` once the group ended."""

    def __init__(self, mark: str, grace: float) -> None:
        read, write = os.pipe()
        self._lifeline = Owned(write)
        hundredths = str(int(min(max(0.0, grace), _LONGEST_GRACE) * 100))
        try:
            self._process: _Shell | None = _Shell(
                [_SHELL, "-c", _SCRIPT, "rankspawn-guardian", mark, file_name(mark), hundredths],
                stdin=read,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                # Not the job's own environment: the guardian must not carry the mark. And it
                # needs grep and sleep also if the program's PATH leads to neither.
                env={"PATH": os.environ.get("PATH", "") + os.pathsep + os.defpath},
                # A terminal that closes, or Ctrl-C in it, must not end the guardian.
                start_new_session=True,
            )
        except OSError as error:
            logger.warning(
                "workers would outlive a killed parent: %s cannot be started (%s)", _SHELL, error
            )
            self._process = None
        finally:
            os.close(read)

    def close(self) -> None:
        """End it; a second call does nothing."""
        if self._process is not None and not self._lifeline.closed:
            # It may not have come to its first line yet, so asking it to leave would take longer.
            self._process.kill()
            self._process.wait()
        self._lifeline.close()
