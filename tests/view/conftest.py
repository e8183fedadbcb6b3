"""What the tests of this folder share."""

from __future__ import annotations

import pytest


@pytest.fixture(
    params=["spawn", *(pytest.param(one, marks=pytest.mark.slow) for one in ("fork", "forkserver"))]
)
def start_method(request: pytest.FixtureRequest) -> str:
    """Each of them; all but the default among the slow tests, since little depends on it here."""
    return str(request.param)
