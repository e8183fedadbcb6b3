"""What ranks say last with ``rankspawn.report``, as programs get it."""

from __future__ import annotations

import asyncio
import logging
from multiprocessing import get_context
from typing import Any

import pytest

import rankspawn
from rankspawn import ProcessRaisedException, Steps
from rankspawn.step_records import RECORD_SIZE, pack_steps, pack_values
from rankspawn.supervise.outcome import End
from rankspawn.supervise.reports import ReportTeller, unpack_steps
from rankspawn.supervise.supervisor import SupervisionPolicy
from tests.jobs import DEADLOCK
from tests.supervise.scripted_group import ScriptedEngine, ScriptedGroup, ScriptedReport
from tests.view import view_cases


class TestRecords:
    def test_a_record_comes_back(self) -> None:
        text = pack_values({"größe": 0.1, "epoch": 3, "phase": "warm  up", "best": float("inf")})
        steps = unpack_steps(pack_steps(7, 3, None, text) + bytes(100))
        assert steps == Steps(
            3, None, {"größe": 0.1, "epoch": 3, "phase": "warm up", "best": float("inf")}
        )

    def test_no_record(self) -> None:
        assert unpack_steps(bytes(RECORD_SIZE)) is None
        assert unpack_steps(b"") is None

    def test_a_record_that_is_being_written_does_not_count(self) -> None:
        old, new = pack_steps(1, 1, 2, "a=1"), pack_steps(2, 2, 2, "a=2")
        torn = new[:20] + old[20:]
        assert unpack_steps(torn) is None
        assert len(pack_steps(1, 1, 2, "x" * 10_000)) == RECORD_SIZE

    def test_too_many_values_lose_the_last_ones_whole(self) -> None:
        values: dict[str, float | str] = {f"value {number}": "x" * 500 for number in range(10)}
        steps = unpack_steps(pack_steps(1, 1, 2, pack_values(values)))
        assert steps is not None
        assert list(steps.values) == [f"value {number}" for number in range(4)]
        assert set(steps.values.values()) == {"x" * 200}

    def test_what_somebody_else_wrote_is_no_error(self) -> None:
        assert unpack_steps(pack_steps(1, 1, 2, "odd\x1ff\x1fnone\x1e\x1e")) == Steps(
            1, 2, {"odd": "none", "": ""}
        )


class SayingGroup(ScriptedGroup):
    """Ranks that report."""

    records: dict[int, bytes]

    def steps_of(self, index: int) -> bytes:
        return self.records.get(index, b"")


def saying(**records: float) -> SayingGroup:
    group = SayingGroup(len(records), first_rank=4)
    group.records = {
        index: pack_steps(int(number), number, 10, pack_values({"loss": 0.5}))
        for index, number in enumerate(records.values())
    }
    return group


class TestTeller:
    def test_each_report_is_told_once_and_the_last_one_only(self) -> None:
        told: list[tuple[int, Steps]] = []
        teller = ReportTeller(lambda rank, steps: told.append((rank, steps)))
        group = saying(a=1, b=2)
        teller.tell(group)
        teller.tell(group)
        assert told == [(4, Steps(1, 10, {"loss": 0.5})), (5, Steps(2, 10, {"loss": 0.5}))]

        told.clear()
        group.records[1] = pack_steps(9, 9, 10, "")
        teller.tell(group)
        assert told == [(5, Steps(9, 10))]

        told.clear()
        successor = saying(a=1)
        teller.tell(successor)
        assert [rank for rank, _ in told] == [4]
        for each in (group, successor):
            each.close()

    def test_what_is_told_may_wait_itself(self) -> None:
        group = saying(a=1)
        told = []

        def call(rank: int, _: Steps) -> None:
            told.append(rank)
            teller.tell(group)

        teller = ReportTeller(call)
        teller.tell(group)
        assert told == [4]
        group.close()

    def test_an_error_after_a_failure_is_told_beside_it(
        self, caplog: pytest.LogCaptureFixture
    ) -> None:
        engine = ScriptedEngine(lambda group: group.raises(0, ValueError("the job's own")))
        start = engine.start
        records = saying(a=1)

        def started(restarts: int) -> ScriptedGroup:
            group = start(restarts)
            group.steps_of = lambda index: (  # type: ignore[method-assign]
                records.records[0] if group.closed and index == 0 else b""
            )
            return group

        engine.start = started  # type: ignore[method-assign]

        def refuse(*_: object) -> None:
            raise RuntimeError("the callback's")

        policy = SupervisionPolicy(grace_period=DEADLOCK, on_report=refuse)
        with (
            engine.context(policy) as context,
            caplog.at_level(logging.ERROR),
            pytest.raises(ProcessRaisedException, match="the job's own"),
        ):
            context.join()
        assert "on_report raised after the ranks had failed" in caplog.text
        records.close()

    def test_without_one_nobody_looks(self) -> None:
        def all_return(group: ScriptedGroup) -> None:
            for index in range(2):
                group.ends(index, End.RETURNED, 0, ScriptedReport())

        looks: list[int] = []

        def look(index: int) -> bytes:
            looks.append(index)
            return b""

        engine = ScriptedEngine(all_return)
        with engine.context() as context:
            engine.groups[0].steps_of = look  # type: ignore[method-assign]
            context.join()
        assert looks == []


def test_a_context_has_what_ranks_said(run: Any) -> None:
    go = get_context("spawn").Event()
    context = run(view_cases.report_and_wait, args=(4, go), nprocs=2, join=False)
    while len(context.reports()) < 2:
        assert not context.join(timeout=0.01)
    assert context.reports() == {rank: Steps(4 + rank, 10, {"loss": 0.25}) for rank in range(2)}
    go.set()
    context.join()
    assert context.reports() == {rank: Steps(10, 10, {"loss": 0.125}) for rank in range(2)}


def test_a_callback_gets_reports_while_somebody_waits() -> None:
    go = get_context("spawn").Event()
    told: list[tuple[int, Steps]] = []

    def note(rank: int, steps: Steps) -> None:
        told.append((rank, steps))
        if {rank for rank, _ in told} == {0, 1}:
            go.set()

    context = rankspawn.spawn(
        view_cases.report_and_wait, (4, go), nprocs=2, backend="gloo", on_report=note
    )
    assert context.results() == [0, 1]
    for rank in range(2):
        own = [steps for who, steps in told if who == rank]
        assert own == [Steps(4 + rank, 10, {"loss": 0.25}), Steps(10, 10, {"loss": 0.125})]


@pytest.mark.parametrize("how", ["join", "await"])
def test_its_error_stops_the_ranks_and_is_raised(how: str) -> None:
    def refuse(rank: int, steps: Steps) -> None:
        raise LookupError(f"no run for rank {rank} at {steps.step}")

    def start(join: bool) -> Any:
        return rankspawn.spawn(
            view_cases.report_and_sleep, (4,), 1, join, backend="gloo", on_report=refuse
        )

    async def wait() -> None:
        await start(join=False)

    with pytest.raises(LookupError, match="no run for rank 0 at 4"):
        start(join=True) if how == "join" else asyncio.run(wait())
