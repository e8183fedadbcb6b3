"""torch over the agents of a cluster: its own DDP, and our DataParallel."""

from importlib.util import find_spec

import pytest

import rankspawn
from rankspawn.cluster import Local
from tests.interop import cluster_cases as cases

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("kind", ["ddp", "DataParallel"])
def test_ranks_of_two_agents_average_their_gradients(kind):
    if find_spec("torch") is None:
        pytest.skip("torch is not installed")
    found = rankspawn.spawn(
        cases.gradients, (kind,), nprocs=2, cluster=Local(nodes=2), backend="gloo"
    ).results()

    # Two rows of ones to fours, of which the mean over ranks is five.
    assert found == [("torch:gloo", [[5.0] * 4])] * 4
