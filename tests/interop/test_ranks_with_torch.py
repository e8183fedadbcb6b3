"""A test with ranks that uses a real process group: no set-up but the mark."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.interop
pytest_plugins = ["pytester"]

DEADLOCK = 240.0


def test_collectives_in_a_test_and_a_rank_that_fails_before_one(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it="""
        import pytest
        import torch
        import torch.distributed as dist

        @pytest.fixture
        def group():
            dist.init_process_group("gloo")
            yield dist.group.WORLD
            dist.destroy_process_group()

        @pytest.mark.ranks(2)
        def test_sum(rank, world_size, group):
            tensor = torch.tensor([rank + 1.0])
            dist.all_reduce(tensor)
            assert tensor.item() == 3.0

        @pytest.mark.ranks(2)
        def test_one_fails(rank, group):
            assert rank == 0, "this one does not come"
            dist.all_reduce(torch.zeros(1))
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:randomly", timeout=DEADLOCK)

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["E*this one does not come", "FAILED *test_one_fails - rank 1: *"])
