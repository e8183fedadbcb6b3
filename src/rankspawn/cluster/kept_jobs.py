"""What is kept of a detached job: its task, its results, and how to find both by its number.

Task and results are files in a folder that all nodes see, with a random name, which only its owner
may enter. Each is signed with a key that is in none of them: the job gets it over the engine's
channel, and whoever attaches has it in a private file, the entry. So nobody is led to unpickle
what somebody else wrote.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from rankspawn.values import dataclass

# How the job is given the key; taken out of its environment before anything is started there.
KEY_VARIABLE = "RANKSPAWN_JOB_KEY"
TASK, RESULTS = "task", "results"
# In place of results, if Slurm has ended the job: it may be in the queue again.
ENDED = "ended"
_MAC_SIZE = hashlib.sha256().digest_size


@dataclass(frozen=True, slots=True)
class KeptJob:
    """One detached job.

    Attributes:
        number: The engine's number of it.
        folder: With its files.
        key: What they are signed with.
        asked: What was asked for, as far as whoever attaches has to know.
    """

    number: str
    folder: Path
    key: bytes
    asked: dict[str, Any]

    def save(self) -> None:
        """Make it known by its number; what an older job of this number left is removed."""
        with suppress(LookupError, PermissionError):
            load(self.number).forget()
        entry = {"folder": str(self.folder), "key": self.key.hex(), "asked": self.asked}
        _write_private(_entry_of(self.number), [json.dumps(entry).encode()])

    def forget(self) -> None:
        """Remove all that is kept of it."""
        shutil.rmtree(self.folder, ignore_errors=True)
        _entry_of(self.number).unlink(missing_ok=True)


def home() -> Path:
    """Where entries are, and folders as a rule: below the user's own, which nodes see."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state, "rankspawn", "jobs")


def new_folder(within: str | os.PathLike[str] | None) -> tuple[Path, bytes]:
    """A folder for one job, and a new key."""
    above = home() if within is None else Path(within)
    above.mkdir(mode=0o700, parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(prefix="job-", dir=above.absolute())), secrets.token_bytes(32)


def load(number: str) -> KeptJob:
    """What is known of the job of this number.

    Raises:
        LookupError: Nothing.
        PermissionError: Others may write to its entry.
    """
    path = _entry_of(number)
    try:
        entry = json.loads(_read_private(path))
    except FileNotFoundError:
        raise LookupError(
            f"nothing is kept of a job {number} in {path.parent}: it was not started with "
            "detach=, or by another user, or a driver has had its results already"
        ) from None
    return KeptJob(number, Path(entry["folder"]), bytes.fromhex(entry["key"]), entry["asked"])


def write_signed(folder: Path, name: str, key: bytes, pieces: Iterable[bytes | memoryview]) -> None:
    """Write one of a job's files; it is there as a whole or not at all."""
    parts = list(pieces)
    _write_private(folder / name, [_sign(name, key, parts), *parts])


def read_signed(folder: Path, name: str, key: bytes) -> bytes:
    """What is in it.

    Raises:
        FileNotFoundError: There is none yet.
        PermissionError: Somebody else could have written it, or has.
    """
    path = folder / name
    data = memoryview(_read_private(path))
    mac, rest = data[:_MAC_SIZE], data[_MAC_SIZE:]
    if not hmac.compare_digest(mac, _sign(name, key, [rest])):
        raise PermissionError(f"{path} was not written by this job: its signature is another one")
    return bytes(rest)


def _entry_of(number: str) -> Path:
    return home() / f"{number}.json"


def _sign(name: str, key: bytes, parts: Iterable[bytes | memoryview]) -> bytes:
    mac = hmac.new(key, name.encode() + b"\0", hashlib.sha256)
    for part in parts:
        mac.update(part)
    return mac.digest()


def _write_private(path: Path, parts: Iterable[bytes | memoryview]) -> None:
    fd, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    try:
        with open(fd, "wb") as file:
            file.writelines(parts)
            file.flush()
            os.fsync(fd)
        os.rename(new, path)
    except BaseException:
        os.unlink(new)
        raise


def _read_private(path: Path) -> bytes:
    with open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) & 0o022:
            raise PermissionError(f"{path} belongs to somebody else, or others may write to it")
        return file.read()
