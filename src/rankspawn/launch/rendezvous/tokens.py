"""The secret that the nodes of a job share.

Who has it may take part; nobody else can read or write the embedded master. It comes from a
variable, or else from a file of the user's that is made when it is first needed: with a home that
all nodes share, and on one machine, nothing has to be set. A node that serves as master without
having been told its address makes a new one and shows it in the command for the others.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Mapping
from dataclasses import dataclass

from rankspawn.plan.environ import TOKEN_VARIABLES

_PLACE = os.path.join("rankspawn", "token")
# 128 bits cannot be guessed; a word can, by who records a connection and tries words at home.
_SHORTEST = 16


class TokenError(ValueError):
    """There is no token that could be trusted."""


@dataclass(frozen=True, slots=True)
class Token:
    """A secret, and where it comes from; neither is shown by ``repr``."""

    secret: str
    source: str
    is_new: bool = False

    def __repr__(self) -> str:
        return f"Token(from {self.source})"


def new_token() -> Token:
    """A new token, which nobody has yet."""
    return Token(secrets.token_urlsafe(16), "generated", is_new=True)


def given_token(environ: Mapping[str, str]) -> Token | None:
    """The token of the environment; None if it has none.

    Raises:
        TokenError: It is too short.
    """
    for name in TOKEN_VARIABLES:
        secret = environ.get(name)
        if secret:
            return Token(_checked(secret, name), name)
    return None


def find_token(environ: Mapping[str, str]) -> Token:
    """The user's token, made if there is none yet.

    Args:
        environ: The environment.

    Raises:
        TokenError: It is too short, others can read its file, or there is no place for one.
    """
    given = given_token(environ)
    if given is not None:
        return given
    path = _path(environ)
    with contextlib.suppress(FileNotFoundError):
        return _read(path)
    try:
        _write(path, new_token().secret)
    except OSError as error:
        raise TokenError(
            f"the nodes need a secret in common, and {path} cannot be written ({error.strerror}): "
            f"set {TOKEN_VARIABLES[0]} to the same secret on every node"
        ) from error
    return _read(path)


def _path(environ: Mapping[str, str]) -> str:
    state = environ.get("XDG_STATE_HOME")
    if state and os.path.isabs(state):
        return os.path.join(state, _PLACE)
    home = environ.get("HOME") or os.path.expanduser("~")
    return os.path.join(home, ".local", "state", _PLACE)


def _checked(secret: str, source: str) -> str:
    if len(secret) < _SHORTEST:
        raise TokenError(
            f"{source} has {len(secret)} characters, which could be guessed: give at least "
            f"{_SHORTEST} random ones, the same on every node"
        )
    return secret


def _read(path: str) -> Token:
    with open(path, encoding="utf-8") as file:
        status = os.fstat(file.fileno())
        # As ssh does with its keys.
        if status.st_uid != os.geteuid() or status.st_mode & (stat.S_IRWXG | stat.S_IRWXO):
            raise TokenError(
                f"others could read the job token in {path}: `chmod 600` it, or set "
                f"{TOKEN_VARIABLES[0]}"
            )
        return Token(_checked(file.read().strip(), path), path)


def _write(path: str, secret: str) -> None:
    """Make the file, whole, unless another launcher was faster."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    draft = f"{path}.{os.getpid()}.{secrets.token_hex(4)}"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with open(fd, "w", encoding="utf-8") as file:
            file.write(secret + "\n")
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        os.unlink(draft)
