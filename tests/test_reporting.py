"""``rankspawn.report`` where nobody looks; what is seen of it is in ``view/test_sources.py``."""

from __future__ import annotations

import sys

import rankspawn


def test_a_call_costs_next_to_nothing_while_nobody_looks() -> None:
    rankspawn.report(step=1, total=2)  # the first one finds out
    calls = []
    before = sys.getprofile()
    sys.setprofile(lambda _, event, what: calls.append((event, what)))
    try:
        rankspawn.report(step=1, total=2, loss=0.5)
    finally:
        sys.setprofile(before)
    # Itself, and a look into a dict: 0.2 microseconds. (The other one ends the counting.)
    assert [event for event, _ in calls if event.endswith("call")] == ["call", "c_call", "c_call"]
