"""Large data of real libraries is mapped, not copied, and is each worker's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import rankspawn

pytestmark = pytest.mark.interop
ROWS = 400_000  # what is below a MiB comes back as a copy


def pandas_frame() -> Any:
    pandas = pytest.importorskip("pandas")
    return pandas.DataFrame({"a": range(ROWS), "b": [0.5] * ROWS})


def arrow_table() -> Any:
    pyarrow = pytest.importorskip("pyarrow")
    return pyarrow.table({"a": list(range(ROWS)), "b": [0.5] * ROWS})


def torch_tensor() -> Any:
    return pytest.importorskip("torch").arange(ROWS)


def describe(data: Any) -> tuple[Any, bool]:
    """The data itself, and whether its memory is the payload's."""
    return data, "rankspawn-payload" in Path("/proc/self/maps").read_text()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
@pytest.mark.parametrize("make", [pandas_frame, arrow_table, torch_tensor])
def test_it_is_mapped_on_its_way_there_and_back(make: Callable[[], Any], start_method: str) -> None:
    data = make()

    context = rankspawn.spawn(
        describe, args=(data,), nprocs=2, backend="gloo", start_method=start_method
    )

    results = context.results()
    assert "rankspawn-outcome" in Path("/proc/self/maps").read_text()
    for got, is_mapped in results:
        assert is_mapped
        same = got.equals(data) if hasattr(got, "equals") else bool((got == data).all())
        assert same
