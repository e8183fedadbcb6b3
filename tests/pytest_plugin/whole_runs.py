"""Whole runs of pytest whose tests have ranks."""

from __future__ import annotations

import pytest

# Most of these are about what the parent makes of its ranks, for which a fork is quick.
FORK = "import os, time, pytest\npytestmark = pytest.mark.ranks(2, start_method='fork')\n"


def run(pytester: pytest.Pytester, source: str, *args: str) -> pytest.RunResult:
    """The outcome of a file with tests of two forked ranks each."""
    pytester.makepyfile(test_it=FORK + source)
    return pytester.runpytest_inprocess("-p", "no:randomly", *args)
