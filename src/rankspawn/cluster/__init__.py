"""One ``spawn`` on many machines: engines that start an agent on each node.

``spawn(..., cluster=ENGINE)`` sends the same call to where an engine can start something. What an
engine is, for whoever writes one, is in :mod:`rankspawn.cluster.engine`; nothing is loaded
before it is named.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.attaching import attach as attach
    from rankspawn.cluster.engine import AgentRequest as AgentRequest
    from rankspawn.cluster.engine import Channel as Channel
    from rankspawn.cluster.engine import Engine as Engine
    from rankspawn.cluster.engine import Node as Node
    from rankspawn.cluster.local import Local as Local
    from rankspawn.cluster.ray import Ray as Ray
    from rankspawn.cluster.slurm import Slurm as Slurm
    from rankspawn.cluster.ssh import Ssh as Ssh

__all__ = ["AgentRequest", "Channel", "Engine", "Local", "Node", "Ray", "Slurm", "Ssh", "attach"]

_HOMES = {
    "AgentRequest": "rankspawn.cluster.engine",
    "Channel": "rankspawn.cluster.engine",
    "Engine": "rankspawn.cluster.engine",
    "Local": "rankspawn.cluster.local",
    "Node": "rankspawn.cluster.engine",
    "Ray": "rankspawn.cluster.ray",
    "Slurm": "rankspawn.cluster.slurm",
    "Ssh": "rankspawn.cluster.ssh",
    "attach": "rankspawn.cluster.attaching",
}


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
