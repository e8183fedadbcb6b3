"""Ranks that talk to each other: collectives without a framework, a port or a name.

``rankspawn.init_parallel_env()`` gives a rank its communicator. Nothing of this package is loaded
before that.
"""

from __future__ import annotations

from rankspawn.parallel.communicator import Communicator
from rankspawn.parallel.statistics import Statistics

__all__ = ["Communicator", "Statistics"]
