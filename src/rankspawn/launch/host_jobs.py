"""What ``rankrun --hosts`` and the launchers that it starts say to each other.

Pure. On the standard output of a launcher on a host there is first a line with who it is, then
what its workers print, and last a line with its exit code; on its standard input a line with its
job, and then lines with signals, or with nothing, which shows that somebody is there.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from rankspawn.cluster.engine import Node
from rankspawn.cluster.hosts import read_hosts
from rankspawn.launch.config import LaunchConfig
from rankspawn.launch.flags import UsageError
from rankspawn.launch.merging import COLLECTIVE
from rankspawn.plan.topology import join
from rankspawn.values import dataclass

MODULE = "rankspawn.launch.on_host"
# A line this often shows that somebody is there; without any for so long nobody is.
ALIVE_SECONDS, LOST_SECONDS = 5.0, 15.0
_GREETING = b"rankspawn-host "
# What --hosts itself says of each node, with the flag that would say something else.
_OF_HOSTS = {"nnodes": "--nnodes", "node_rank": "--rank", "host": "--host", "ips": "--ips"}


@dataclass(frozen=True, slots=True)
class Greeting:
    """Who a launcher on a host is, before it has a job.

    Attributes:
        version: Of this package.
        python: Of the interpreter.
        address: The host's, as far as it can know.
        port: One that it holds, to serve as master there.
    """

    version: str
    python: str
    address: str
    port: int

    def line(self) -> bytes:
        """As it travels."""
        told = {name: getattr(self, name) for name in ("version", "python", "address", "port")}
        return _GREETING + json.dumps(told).encode() + b"\n"


def read_greeting(line: bytes) -> Greeting | None:
    """The greeting in a line; None for other words, such as a login shell's."""
    if not line.startswith(_GREETING):
        return None
    try:
        told = json.loads(line.removeprefix(_GREETING))
        return Greeting(
            str(told["version"]), str(told["python"]), str(told["address"]), int(told["port"])
        )
    except (ValueError, KeyError, TypeError):
        return None


def check_greeting(host: str, greeting: Greeting, *, version: str, python: str) -> None:
    """Refuse a host with another version of this package.

    Raises:
        OSError: It names both.
    """
    if greeting.version != version:
        raise OSError(
            f"{host} has rankspawn {greeting.version} (Python {greeting.python}), and this machine "
            f"rankspawn {version} (Python {python}): install the same version on both"
        )


def farewell(key: str, code: int) -> bytes:
    """The last line of a launcher; nobody else has its key."""
    return f"{key} ended with {code}\n".encode()


def read_farewell(key: str, line: bytes) -> tuple[bytes, int] | None:
    """What a worker left unfinished before a farewell, and the exit code; None if it is none."""
    match = re.fullmatch(rb"(.*)%s ended with (\d+)" % re.escape(key.encode()), line, re.DOTALL)
    return None if match is None else (match[1], int(match[2]))


def signal_line(number: int) -> bytes:
    """Tells the launcher on a host to take this signal."""
    return b"%d\n" % number


def check_hosts(config: LaunchConfig) -> list[Node]:
    """The hosts of the job.

    Raises:
        UsageError: They make no sense, or other flags contradict them.
        OSError: The file with them cannot be read.
    """
    if config.hosts is None:
        raise UsageError("--ssh needs --hosts, the machines to start on: --hosts a,b:2 --ssh")
    if not config.ssh:
        raise UsageError("--hosts needs --ssh, by which the launchers are started there")
    for name, flag in _OF_HOSTS.items():
        if name in config.given:
            raise UsageError(f"--hosts says which nodes there are: leave {flag} out")
    if config.run_mode != COLLECTIVE:
        raise UsageError(
            f"--hosts starts collective jobs: with --run_mode {config.run_mode} start a launcher "
            "on each node"
        )
    about_one = {
        "--progress": config.progress or None,
        "--trace": config.trace,
        "--debug": config.debug,
    }
    for flag, asked in about_one.items():
        if asked is not None:
            raise UsageError(f"{flag} is about one node, and cannot be given with --hosts")
    try:
        return read_hosts(config.hosts)
    except ValueError as error:
        raise UsageError(f"--hosts: {error}") from error


def make_jobs(
    nodes: Sequence[Node],
    *,
    same: tuple[Sequence[str], Sequence[str]],
    master: str | None,
    folder: str,
    token: str,
    key: str,
) -> list[dict[str, Any]]:
    """What each host is told.

    Args:
        nodes: The hosts by rank.
        same: The flags that hold on every node, and the script with its arguments.
        master: Where they meet; None for the only node.
        folder: Where they run.
        token: The job's.
        key: What farewells begin with.
    """
    flags, words = same
    jobs = []
    for rank, node in enumerate(nodes):
        own: list[str] = []
        if master is not None:
            own += ["--nnodes", str(len(nodes)), "--master", master, "--rank", str(rank)]
        own += flags
        if node.slots is not None:
            own += ["--nproc_per_node", str(node.slots)]
        argv = [*own, *words]
        jobs.append({"argv": argv, "folder": folder, "token": token, "key": key})
    return jobs


def master_at(given: str | None, address: str, port: int, count: int) -> str | None:
    """Where the nodes meet: as was said, else at the first host's address; None if it is alone."""
    return None if count == 1 else given or join(address, port)
