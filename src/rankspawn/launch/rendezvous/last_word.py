"""What is left to say of a node whose launcher died: that nobody of it is left; runs in the fence.

A closed connection alone tells the others nothing: a launcher whose link was cut for a moment,
or that was killed, may have workers that run on, and two generations must never run at once. So the
lease of a dead launcher ends early only by the word of the fence, which

* knows that the launcher is dead: its pipe closed without the word that one says before it closes
  it. Whoever was being started then holds a copy of the pipe until it is executed, and carries its
  mark from then on;
* has looked for all that carry the marks, and found nobody, nor anybody of this user who hides.

Where it cannot say so, e.g. since it was killed, too, or the network is down, the lease ends by
itself.
"""

from __future__ import annotations

import os

from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.store import LeaseExpiredError, StoreError
from rankspawn.workers.marker import (
    find_marked,
    hides_mark,
    kill_marked,
    list_processes,
    ticks_since_boot,
    when_started,
)

# For the answer of the master, which the others may be asking at this very moment.
_ANSWER_SECONDS = 2.0


def words_of(store: MasterStore, lease: int) -> str:
    """A lease of a store, as one line for :func:`give_back`."""
    host, port, key = store.place
    return f"{host} {port} {key.hex()} {lease}"


def give_back(words: str) -> bool:
    """End the lease; False if nobody can be told."""
    host, port, key, lease = words.split()
    store = MasterStore(host, int(port), bytes.fromhex(key), answer_within=_ANSWER_SECONDS)
    try:
        store.revoke(int(lease))
    except LeaseExpiredError:
        return True  # it has ended by itself
    except (StoreError, OSError):
        return False
    finally:
        store.close()
    return True


def nobody_is_left(marks: set[str]) -> bool:
    """Whether no process carries one of the marks, as far as this user may know."""
    if any(True for mark in marks for _ in find_marked(mark)) or _somebody_hides(marks):
        return False
    # It looks again where the first look may have missed somebody, and leaves nobody.
    stragglers = [pid for mark in marks for pid in kill_marked(mark)]
    return not stragglers


def _somebody_hides(marks: set[str]) -> bool:
    """Whether a process of this user that may be of the job does not let us look at it."""
    oldest = min((int(mark[:12], 16) for mark in marks), default=ticks_since_boot())
    return any(
        when_started(pid) >= oldest and hides_mark(pid) and _owner(pid) in (None, os.getuid())
        for pid in list_processes()
        if pid != os.getpid()
    )


def _owner(pid: int) -> int | None:
    """The real user of a process; None if that is not known."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            lines = file.read().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith(b"Uid:")]
    return int(found[0]) if found else None
