"""Tests of pure code."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _nothing_is_left() -> None:
    """They have nothing to leave behind, and looking for it would take longer than they do."""
