"""What the user of a test may do, and having one who may less than root."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
import subprocess

_UID = 54321
_PR_SET_DUMPABLE, _PR_SET_KEEPCAPS, _PR_CAP_AMBIENT, _RAISE = 4, 8, 47, 2
_CAP_DAC_OVERRIDE = 1
_CAPABILITY_VERSION_3 = 0x20080522


def can_mount() -> bool:
    """Whether this process may mount something for itself."""
    tool = shutil.which("unshare")
    return (
        tool is not None
        and not subprocess.run(
            [tool, "-m", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False
        ).returncode
    )


def drop() -> None:
    """Be another user from now on, who may read root's files, and nothing else that root may.

    Python itself may be in root's home. Nothing happens if this process is not root's.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    _check(libc.prctl(_PR_SET_KEEPCAPS, 1, 0, 0, 0))
    os.setresgid(_UID, _UID, _UID)
    os.setresuid(_UID, _UID, _UID)
    bit = 1 << _CAP_DAC_OVERRIDE
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _check(libc.capset(header, struct.pack("=6I", bit, bit, bit, 0, 0, 0)))
    # What is executed keeps it.
    _check(libc.prctl(_PR_CAP_AMBIENT, _RAISE, _CAP_DAC_OVERRIDE, 0, 0))
    # As one that was executed by this user would be.
    _check(libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0))


def _check(result: int) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
