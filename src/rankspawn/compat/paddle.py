"""``paddle.distributed``, with a ``spawn`` of our own; Paddle itself is not imported for that.

The names that this package implements are its own: ``spawn``, ``get_rank``, ``get_world_size``,
``ParallelEnv``, ``launch``, and for ranks that talk ``init_parallel_env``, ``DataParallel`` and
``all_reduce_gradients``. All others (``all_reduce``, …) are Paddle's, which is imported when the
first of them is used.
"""

from __future__ import annotations

# A worker runs the script once more, and imports this module with it: so nothing more is loaded.
from rankspawn import spawn

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from rankspawn.compat.paddle_parallel import DataParallel as DataParallel
    from rankspawn.parallel.gradients import all_reduce_gradients as all_reduce_gradients
    from rankspawn.parallel_env import ParallelEnv as ParallelEnv

__all__ = [
    "DataParallel",
    "ParallelEnv",
    "all_reduce_gradients",
    "get_rank",
    "get_world_size",
    "init_parallel_env",
    "launch",
    "spawn",
]

_PADDLE = "paddle.distributed"
_HOMES = {
    "DataParallel": "rankspawn.compat.paddle_parallel",
    "ParallelEnv": "rankspawn.parallel_env",
    "all_reduce_gradients": "rankspawn.parallel.gradients",
}


def get_rank(group: Any = None) -> int:
    """The number of this process among all ranks, or in a group of Paddle's."""
    if group is not None:
        return int(_of_paddle("get_rank")(group))
    from rankspawn import parallel_env

    return parallel_env.get_rank()


def get_world_size(group: Any = None) -> int:
    """The number of all ranks, or of those in a group of Paddle's."""
    if group is not None:
        return int(_of_paddle("get_world_size")(group))
    from rankspawn import parallel_env

    return parallel_env.get_world_size()


def init_parallel_env(backend: str = "auto", timeout: float | None = None) -> Any:
    """This rank's communicator; where Paddle is loaded its own is set up, too, for its names.

    See :func:`rankspawn.init_parallel_env`, which leaves Paddle alone.
    """
    from rankspawn.compat import paddle_parallel

    return paddle_parallel.init_parallel_env(backend, timeout)


def launch() -> None:
    """What ``rankrun`` does with the arguments of this program; ends it with the job's code."""
    import sys

    from rankspawn.launch.cli import main

    sys.exit(main())


def _of_paddle(name: str) -> Any:
    from rankspawn.compat.peers import forward

    return forward(name, module=__name__, to=_PADDLE)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    return _of_paddle(name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
