"""The numbers of a rank's calls, and what others see of them. No processes in here."""

from __future__ import annotations

from rankspawn.parallel import Communicator, Statistics
from rankspawn.parallel.layout import COLLECTIVES, Layout
from rankspawn.parallel.statistics import Shown, Talk, Tally

NO_CALLS = {"statistics", "close"}


def test_every_collective_has_a_place_in_what_is_shown() -> None:
    methods = {name for name in vars(Communicator) if not name.startswith("_")} - NO_CALLS
    assert methods <= set(COLLECTIVES)


def test_what_is_shown_is_of_all_communicators_and_under_the_ranks_of_the_first() -> None:
    layout = Layout(5)
    controls = memoryview(bytearray(layout.controls_end))
    shown = Shown(controls, layout, 4)
    whole, part = Tally(range(5), shown), Tally([4, 2], shown)
    whole.called("barrier", 0, 0.5)
    part.called("all_reduce", 3, 0.25)
    whole.called("barrier", 0, 0.5)
    whole.waited(1, 0.125)
    part.waited(1, 0.0625)
    assert Shown(controls, layout, 4).read() == shown.read()
    assert shown.read() == Talk(
        {"barrier": 2, "all_reduce": 1},
        {"barrier": 1.0, "all_reduce": 0.25},
        3,
        {1: 0.125, 2: 0.0625},
    )
    assert Shown(controls, layout, 3).read() == Talk({}, {}, 0, {})
    assert part.read() == Statistics({"all_reduce": 1}, 3, 0.25, 0.0625, {1: 0.0625})
    shown.close()
    shown.close()


def test_what_is_shown_disturbs_nothing_beside_it() -> None:
    layout = Layout(300)
    for rank in (0, 299):
        assert layout.totals(rank) >= layout.waited(rank) + 8 * layout.size
        assert layout.totals(rank) + 8 + 16 * len(COLLECTIVES) <= layout.announcement(rank, 0)
