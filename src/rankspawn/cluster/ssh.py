"""Agents over ssh: one connection per host, by the ``ssh`` program and its configuration.

The connection is the channel. When it ends, by whichever end or in between, the agent finds its
input at an end and stops its ranks.
"""

from __future__ import annotations

import ipaddress
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from functools import partial

from rankspawn.cluster.engine import TIME_TO_KILL, AgentRequest, Node
from rankspawn.cluster.hosts import read_hosts
from rankspawn.cluster.programs import ProgramChannel, SharedDeadline, close_all

# A host that does not answer is given up after this; one whose network was cut after three times
# the interval, by both ends: sshd itself may not look for a client that is gone.
_CONNECT_TIMEOUT = 20
_ALIVE_INTERVAL = 5
_ALIVE_COUNT = 3
_OURS = {
    # There is nobody to answer a question.
    "BatchMode": "yes",
    "ConnectTimeout": str(_CONNECT_TIMEOUT),
    "ServerAliveInterval": str(_ALIVE_INTERVAL),
    "ServerAliveCountMax": str(_ALIVE_COUNT),
    # Of a channel that carries bytes, nothing else is wanted.
    "ForwardAgent": "no",
    "ForwardX11": "no",
    "ClearAllForwardings": "yes",
    "RequestTTY": "no",
    "RemoteCommand": "none",
}
# ssh's own code for what went wrong before the command, and the shell's.
_NO_CONNECTION = 255
_NO_PROGRAM = (126, 127)


class Ssh:
    """Hosts that ``ssh`` reaches without a question.

    Args:
        hosts: ``"gpu1,gpu2:4"``, a file with ``host slots=N`` in its lines, or a sequence of names.
            What ssh's own configuration calls a host is one, and ``user@host`` too.
        user: Who logs in; None for what ssh takes.
        port: Where sshd listens; None for what ssh takes.
        identity: The file with the private key; None for those that ssh takes.
        python: The interpreter there; None for the path that this one has here.
        options: More of ssh's: ``{"ProxyJump": "gate"}``, or words such as ``["-F", "config"]``.

    Raises:
        ValueError: One of them makes no sense.
    """

    name = "Ssh"
    start_timeout: float | None = 60.0
    lease: float | None = float(_ALIVE_INTERVAL * _ALIVE_COUNT)
    shares_files = False

    def __init__(
        self,
        hosts: str | os.PathLike[str] | Sequence[str],
        *,
        user: str | None = None,
        port: int | None = None,
        identity: str | os.PathLike[str] | None = None,
        python: str | os.PathLike[str] | None = None,
        options: Mapping[str, object] | Sequence[str] = (),
    ) -> None:
        self._nodes = read_hosts(hosts)
        self._python = os.fspath(python) if python is not None else sys.executable
        if port is not None and not 0 < port < 1 << 16:
            raise ValueError(f"port={port} is no port: it is from 1 to 65535")
        if user is not None and (not user or user.startswith("-")):
            raise ValueError(f"user={user!r} is no user's name")
        self._words = [
            *_option_words(options),  # the first one counts, and these are the user's
            *_option_words(_OURS),
            *(["-p", str(port)] if port is not None else []),
            *(["-l", user] if user is not None else []),
            *(["-i", os.fspath(identity)] if identity is not None else []),
        ]

    def __repr__(self) -> str:
        return f"Ssh({','.join(node.host for node in self._nodes)!r})"

    def nodes(self) -> Sequence[Node]:
        """The hosts, as they were given."""
        if shutil.which("ssh") is None:
            raise RuntimeError(
                "Ssh needs the program ssh, which is not on PATH: install OpenSSH's client"
            )
        return self._nodes

    def command(self, host: str, words: Sequence[str]) -> list[str]:
        """What runs these words on a host, without a shell between them and ssh there."""
        return ["ssh", *self._words, "--", host, f"exec {shlex.join(words)}"]

    def start(self, request: AgentRequest) -> Sequence[ProgramChannel]:
        """Connect to all hosts at once."""
        deadline = SharedDeadline(request.grace + TIME_TO_KILL)
        channels: list[ProgramChannel] = []
        try:
            for node in self._nodes:
                channels.append(
                    ProgramChannel(
                        node.host,
                        self.command(node.host, request.command(self._python)),
                        address=address_of(node.host),
                        deadline=deadline,
                        explain=partial(explain, node.host, self._python),
                    )
                )
        except BaseException:
            close_all(channels)
            raise
        return channels


def explain(host: str, python: str, code: int | None, said: str, *, is_engine: bool = True) -> str:
    """Why there is nobody of ours on this host: what to do about it, and ssh's own last words.

    Args:
        host: Its name.
        python: The interpreter there.
        code: What ssh ended with; None if it runs.
        said: Its last words.
        is_engine: Whoever reads this wrote ``Ssh(…)``, and not ``--ssh``.
    """
    key = "name it with identity=" if is_engine else "name it in ssh's configuration"
    user = "user= says" if is_engine else "user@host says"
    where = "say where Python is there with python="
    other = "or name another interpreter with python="
    if not is_engine:
        where = "Python has to be there under the same path as here"
        other = "in the environment under the same path"
    advice = ""
    if code == _NO_CONNECTION and "host key verification failed" in said.lower():
        advice = (
            f"this machine does not know the key of {host}, or it has changed: see what "
            f"`ssh {host}` says, and put its key into known_hosts"
        )
    elif code == _NO_CONNECTION and "permission denied" in said.lower():
        advice = (
            f"{host} lets nobody in without a password: put a key into authorized_keys there, and "
            f"{key} or load it into ssh-agent; {user} who logs in"
        )
    elif code == _NO_CONNECTION:
        advice = f"there is no connection to {host}, or it broke; try `ssh {host} true`"
    elif code in _NO_PROGRAM:
        advice = f"{host} has no {python}: {where}"
    elif "No module named" in said and "rankspawn" in said.rpartition("No module named")[2]:
        advice = (
            f"{python} on {host} has no rankspawn, or one without clusters: install the version "
            f"that is here, {other}"
        )
    elif code is not None and code != 0 and not said:
        advice = f"ssh ended with code {code}"
    return "; ssh said: ".join(filter(None, (advice, said)))


def address_of(host: str) -> str | None:
    """Where other nodes reach a host, if that was said; else its agent asks sshd."""
    name = host.rpartition("@")[2]
    try:
        return str(ipaddress.ip_address(name))
    except ValueError:
        return None


def _option_words(options: Mapping[str, object] | Sequence[str]) -> list[str]:
    if isinstance(options, Mapping):
        return [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    if isinstance(options, str) or not all(isinstance(word, str) for word in options):
        raise ValueError(
            f"options={options!r} are no options: give {{'ProxyJump': 'gate'}} or words of ssh's"
        )
    if any(word.startswith("-") for word in options):
        return list(options)
    return [word for option in options for word in ("-o", option)]
