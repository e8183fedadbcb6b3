"""Multiprocessing's resource tracker, which workers share with their parent."""

from __future__ import annotations

import os
import threading
from multiprocessing import resource_tracker

from rankspawn.cpython import safe_path_for_tracker
from rankspawn.handlers import handlers_held

# Held while it is started, by one thread at a time.
_tracking = threading.Lock()


def _renew_lock() -> None:
    """Runs in a forked child: a thread of the parent may have held the old lock."""
    global _tracking  # noqa: PLW0603 - a lock cannot be reset, only replaced
    _tracking = threading.Lock()


os.register_at_fork(after_in_child=_renew_lock)


def tracker_fd() -> int:
    """Its descriptor; it is started if need be."""
    # Held firmly: it takes an OSError while it looks at the tracker, such as the TimeoutError of a
    # handler of SIGALRM, for the tracker's death, and the program would never hear of it.
    with handlers_held(firmly=True), _tracking, safe_path_for_tracker():
        fd = resource_tracker.getfd()
    assert fd is not None, "getfd() starts the tracker"
    return fd
