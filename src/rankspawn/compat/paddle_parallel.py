"""``paddle.DataParallel`` and ``init_parallel_env`` by their names, over this package's own.

Loaded when one of them is first used.
"""

from __future__ import annotations

import sys
from typing import Any

from rankspawn.compat.peers import forward
from rankspawn.parallel import environment
from rankspawn.parallel.communicator import Communicator
from rankspawn.parallel.data_parallel import DataParallel as OurDataParallel

_OURS, _PADDLE = "rankspawn.compat.paddle", "paddle.distributed"


def init_parallel_env(backend: str, timeout: float | None) -> Any:
    """This rank's communicator; where there is none of ours, what Paddle has."""
    group = None
    if "paddle" in sys.modules:
        # For its own collectives and its own DataParallel, which a program may use as well.
        group = forward("init_parallel_env", module=_OURS, to=_PADDLE)()
    try:
        return environment.init_parallel_env(backend, timeout)
    except RuntimeError as error:
        # Ranks of several machines or of another launcher had Paddle's before, and still do.
        if group is None or type(error) is not RuntimeError:  # such as the loss of a rank
            raise
        return group


class DataParallel(OurDataParallel):
    """:class:`rankspawn.DataParallel` with the arguments of Paddle's.

    Args:
        layers: The layer.
        strategy: Of no use here, and neither are the next three: gradients go in few large
            messages anyway, and parameters that are not used are found.
        comm_buffer_size: See there.
        last_comm_buffer_size: See there.
        find_unused_parameters: See there.
        group: A communicator; None, or Paddle's group of all ranks, for all of the job.

    Raises:
        ValueError: The group is one of Paddle's for some of the ranks.
    """

    def __init__(
        self,
        layers: Any,
        strategy: Any = None,  # noqa: ARG002 - as Paddle has it
        comm_buffer_size: float = 25,  # noqa: ARG002
        last_comm_buffer_size: float = 1,  # noqa: ARG002
        find_unused_parameters: bool = False,  # noqa: ARG002
        group: Any = None,
    ) -> None:
        comm = group if isinstance(group, Communicator) else environment.init_parallel_env()
        ranks = getattr(group, "nranks", comm.size)
        if ranks != comm.size:
            raise ValueError(
                f"group={group!r} of {ranks} ranks is Paddle's: give the communicator that "
                "init_parallel_env().split(color) makes of the same ranks"
            )
        super().__init__(layers, comm)

    @property
    def _layers(self) -> Any:
        """The wrapped layer, as Paddle calls it."""
        return self.module
