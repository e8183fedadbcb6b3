"""Has the kernel refuse system calls to this process and all that it starts, as sandboxes do."""

from __future__ import annotations

import ctypes
import platform
import struct

# Name to number; waitid is refused for pidfds only.
_NUMBERS = {
    "x86_64": {
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "waitid(P_PIDFD)": 247,
        "memfd_create": 319,
        "eventfd": 290,
        "close_range": 436,
    },
    "aarch64": {
        "pidfd_open": 434,
        "pidfd_send_signal": 424,
        "waitid(P_PIDFD)": 95,
        "memfd_create": 279,
        "eventfd": 19,
        "close_range": 436,
    },
}
_NUMBERS_HERE = _NUMBERS.get(platform.machine(), {})
CALLS = tuple(_NUMBERS_HERE)

_P_PIDFD = 3
# Of classic BPF: load a word of the call's description, compare, return. See seccomp(2).
_LOAD, _IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_AT_NUMBER, _AT_FIRST_ARGUMENT = 0, 16
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000
_SET_NO_NEW_PRIVILEGES, _SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def deny(names: list[str], error: int) -> None:
    """From now on these calls fail with this error number."""
    steps = [(_LOAD, 0, 0, _AT_NUMBER)]
    for name in names:
        number = _NUMBERS_HERE[name]
        if name.startswith("waitid"):
            steps += [
                (_IF_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, _AT_FIRST_ARGUMENT),
                (_IF_EQUAL, 0, 1, _P_PIDFD),
                (_RETURN, 0, 0, _ERROR | error),
                (_LOAD, 0, 0, _AT_NUMBER),
            ]
        else:
            steps += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | error)]
    steps.append((_RETURN, 0, 0, _ALLOW))
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
    program = _Program(len(steps), ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_SET_NO_NEW_PRIVILEGES, 1, 0, 0, 0),
        (_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0),
    ):
        if libc.prctl(*arguments):
            raise OSError(ctypes.get_errno(), "prctl")
