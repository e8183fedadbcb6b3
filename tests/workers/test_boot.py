"""The boot record: what the parent writes is what the worker reads."""

from __future__ import annotations

import pytest

from rankspawn.workers.child import Boot

EXECUTED = Boot(
    rank=3,
    parent=4711,
    setting=80,
    task=160,
    own=0,
    outcome_file=5,
    failure_event=6,
    payload=7,
    tracker=8,
)
FORKED = Boot(
    rank=3,
    parent=4711,
    setting=80,
    task=160,
    own=240,
    environ=320,
    outcome_file=5,
    failure_event=6,
    payload=7,
    tracker=8,
    mark=(9,),
    streams=(0, 1, 2),
    brought=(10, 11),
)


def fields(boot: Boot) -> dict[str, object]:
    values = {name: getattr(boot, name) for name in Boot.__slots__}
    return {name: value if isinstance(value, int) else [*value] for name, value in values.items()}


@pytest.mark.parametrize("boot", [EXECUTED, FORKED])
def test_a_command_line_has_all_of_it(boot: Boot) -> None:
    assert fields(Boot.from_argv(boot.to_argv())) == fields(boot)


@pytest.mark.parametrize("boot", [EXECUTED, FORKED])
def test_descriptors_may_get_other_numbers_on_the_way(boot: Boot) -> None:
    arrived = [fd + 100 for fd in boot.descriptors()]

    received = Boot.read(boot.numbers(), arrived)

    assert received.numbers() == boot.numbers()
    assert received.descriptors() == arrived
    assert received.outcome_file == 105
    assert [*received.streams] == [fd + 100 for fd in boot.streams]
    assert [*received.brought] == [fd + 100 for fd in boot.brought]
