"""Values out of the variables of schedulers and other launchers, for ``schedulers``.

Pure.
"""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.option_values import HIGHEST_PORT
from rankspawn.plan.topology import is_loopback
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping

    from rankspawn.launch.config import LaunchConfig

# Below the ports that Linux gives out for outgoing connections (from 32768 on), above those
# that services use.
_FIRST_PORT = 20000
_PORTS = 10000

_FLAGS = {
    "max_nodes": "--nnodes",
    "node_rank": "--rank",
    "master": "--master",
    "job_id": "--job_id",
    "nproc_per_node": "--nproc_per_node",
    "device_type": "--device_type",
}


def port_of_job(number: int) -> int:
    """A port that all nodes of a job find by themselves, and that others have not got."""
    return _FIRST_PORT + number % _PORTS


def agrees(config: LaunchConfig, nodes: int) -> bool:
    """Whether the user said nothing of the number of nodes, or the same as others do."""
    return "nnodes" not in config.given or config.min_nodes <= nodes <= config.max_nodes


def with_note(
    config: LaunchConfig, filled: dict[str, object], source: str, *, alone: str = ""
) -> LaunchConfig:
    """The configuration with what was filled in, and a note that says so."""
    if not filled:
        return config
    parts = [f"{flag} {filled[name]}" for name, flag in _FLAGS.items() if name in filled]
    if filled.get("min_nodes") != filled.get("max_nodes"):
        parts[0] = f"--nnodes {filled['min_nodes']}:{filled['max_nodes']}"
    note = f"taken from the {source}: {' '.join(parts)}{alone}"
    return replace(config, **filled, notes=(*config.notes, note))  # type: ignore[arg-type]


def first_number(environ: Mapping[str, str], *names: str) -> int:
    """The first of these variables that is set; 0 without any."""
    return next((number_of(environ, name) for name in names if environ.get(name)), 0)


def number_of(environ: Mapping[str, str], name: str) -> int:
    """The number that a variable holds.

    Raises:
        UsageError: It holds none.
    """
    text = environ[name].strip()
    if not is_number(text):
        raise UsageError(
            f"{name}={shortened(environ[name])} is no number: give --nnodes, --rank and --master"
        )
    return int(text)


def port_of(environ: Mapping[str, str], name: str = "MASTER_PORT") -> int:
    """The port that a variable holds.

    Raises:
        UsageError: It holds none.
    """
    port = number_of(environ, name)
    if not 0 < port <= HIGHEST_PORT:
        raise UsageError(f"{name}={port} is no port: it must be from 1 to {HIGHEST_PORT}")
    return port


def is_number(text: str) -> bool:
    """Whether a text is a whole number, without a sign."""
    return text.isascii() and text.isdecimal()


def shortened(text: str) -> str:
    """A text for a message: a list of thousands of nodes must not fill the screen."""
    return repr(text if len(text) <= 80 else text[:77] + "...")


def outside_pod(master: str, rank: str, environ: Mapping[str, str]) -> str:
    """The master as other pods know it: in that of rank 0 Kubeflow may call it localhost."""
    in_pod = environ.get("KUBERNETES_SERVICE_HOST") and environ.get("HOSTNAME")
    if is_loopback(master) and in_pod and environ.get(rank) == "0":
        return environ["HOSTNAME"]
    return master
