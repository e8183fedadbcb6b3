"""What a rank with torch's threads running starts itself: pools and DataLoader workers."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

import rankspawn  # noqa: E402
from tests.interop import torch_children as cases  # noqa: E402  # only where torch is installed

pytestmark = pytest.mark.interop

# The bound of a deadlock, as the group's own time limit: it then says where each rank hangs.
DEADLOCK = 120.0


@pytest.mark.parametrize(
    ("case", "start_method"),
    [
        (cases.use_pool, "spawn"),
        (cases.use_pool, "forkserver"),
        (cases.use_executor, "spawn"),
        (cases.use_data_loader, "spawn"),
    ],
)
def test_children_do_not_hang_beside_threads_of_the_rank(case: Any, start_method: Any) -> None:
    # Not under fork, where they hang under torch's own spawn too.
    context = rankspawn.spawn(
        case,
        nprocs=1,
        backend="gloo",
        start_method=start_method,
        threads_per_rank=2,
        timeout=DEADLOCK,
    )

    assert context.results() == [cases.SIZE**2 * float(cases.SIZE)]
