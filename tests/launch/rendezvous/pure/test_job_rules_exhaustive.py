"""Every order of events of small jobs: never two generations at once, and always an end."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import pytest

from rankspawn.launch.rendezvous.job_state import JobTerms, Phase
from tests.launch.rendezvous.pure.model import World, successors

# From a world to the one before it, and what happened.
Known = dict[World, tuple[World | None, str]]

# Fewest and most nodes, level, faults (a failed worker, a node that leaves, is cut off or
# killed), nodes that join in all.
QUICK = [
    (1, 1, -1, 1, 1),
    (1, 1, 1, 2, 1),
    *(
        pytest.param(*sizes, marks=pytest.mark.slow)
        for sizes in [(1, 1, 0, 1, 2), (2, 2, -1, 1, 2), (2, 2, 0, 1, 2), (2, 2, 1, 1, 2)]
    ),
]
THOROUGH = [
    (1, 2, 0, 1, 2),
    (1, 2, 1, 1, 2),
    (2, 2, -1, 2, 2),
    (2, 3, -1, 1, 3),
]
# More worlds than any quick test has; and how deep a thorough one goes.
LIMIT = 40_000
DEEP = 12_000


@pytest.mark.parametrize(("low", "high", "level", "faults", "joins"), QUICK)
def test_all_orders_of_events(low: int, high: int, level: int, faults: int, joins: int) -> None:
    known = explore(world_of(low, high, level, faults, joins), limit=LIMIT)

    assert len(known) < LIMIT, "not all orders were tried"
    check_ends(known, every=50)


@pytest.mark.slow
@pytest.mark.parametrize(("low", "high", "level", "faults", "joins"), THOROUGH)
def test_more_orders_of_events(low: int, high: int, level: int, faults: int, joins: int) -> None:
    known = explore(world_of(low, high, level, faults, joins), limit=DEEP)

    check_ends(known, every=500)


def world_of(low: int, high: int, level: int, faults: int, joins: int) -> World:
    return World(JobTerms(low, high, max_restart=1, elastic_level=level), faults, joins)


def explore(start: World, *, limit: int) -> Known:
    """All worlds that can come of one, nearest first; each is checked."""
    known: Known = {start: (None, "")}
    queue = deque([start])
    while queue and len(known) < limit:
        world = queue.popleft()
        assert len(world.running) <= 1, "two generations at once:\n" + story(known, world)
        if world.state is not None:
            assert world.state.used <= world.terms.max_restart, story(known, world)
        for what, following in successors(world):
            if following not in known:
                known[following] = (world, what)
                queue.append(following)
    return known


def check_ends(known: Known, *, every: int) -> None:
    """From anywhere, if nothing more goes wrong, the job ends or waits for nodes to come."""
    for world in list(known)[::every]:
        last, steps = run_on(world)
        assert is_at_rest(last), (
            f"stuck in {last}\n" + story(known, world) + "\n--- and then\n" + "\n".join(steps)
        )


def run_on(world: World) -> tuple[World, list[str]]:
    """Let everything happen that does, without faults or newcomers."""
    steps: list[str] = []
    while len(steps) < 200:
        following = next(_without_trouble(world), None)
        if following is None:
            break
        steps.append(following[0])
        world = following[1]
    return world, steps


def _without_trouble(world: World) -> Iterator[tuple[str, World]]:
    """What changes something; time passes, and work gets done, only when nothing else happens."""
    quiet = World(world.terms, 0, 0, world.nodes, world.state, world.read)
    options = [(what, following) for what, following in successors(quiet) if following != quiet]
    patient = ("leader decides after 1000", "work done")
    options.sort(key=lambda option: option[0].startswith(patient))
    yield from options


def is_at_rest(world: World) -> bool:
    if any(node.alive for node in world.nodes):
        return False
    minds = [node.node_state for node in world.nodes if node.node_state is not None]
    if all(node_state.over for node_state in minds):
        return True
    # The rest wait for their first generation, for which too few are there.
    return (
        world.state is not None and not world.state.group and (world.state.phase is Phase.GATHERING)
    )


def story(known: Known, world: World) -> str:
    steps: list[str] = []
    current: World | None = world
    while current is not None:
        current, what = known[current]
        steps.append(what)
    return "\n".join(reversed(steps))
