"""A session and its agent in one process, over a store that fails when it is told to."""

from __future__ import annotations

import select
import time
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from unittest.mock import Mock

import pytest

from rankspawn.launch.rendezvous.fence import Fence
from rankspawn.launch.rendezvous.job_state import JobTerms
from rankspawn.launch.rendezvous.keyvalues import KeyValues
from rankspawn.launch.rendezvous.master import Master
from rankspawn.launch.rendezvous.session import SharedSession
from rankspawn.launch.rendezvous.store import (
    StoreError,
    StoreRefusedError,
    StoreUnreachableError,
)
from rankspawn.launch.rendezvous.stores import OpenStore
from rankspawn.launch.session import (
    Instruction,
    JobOver,
    StartWorkers,
    StopWorkers,
    Waiting,
)
from tests.jobs import DEADLOCK
from tests.launch.rendezvous.fakes import FakeStore

ALONE = JobTerms(1, 1, lease_seconds=20.0)


@pytest.fixture
def store() -> FakeStore:
    return FakeStore()


Open = Callable[..., SharedSession]


@pytest.fixture
def join(store: FakeStore) -> Iterator[Open]:
    sessions: list[SharedSession] = []

    def join(
        terms: JobTerms = ALONE, ports: tuple[int, ...] = (6070,), master: Master | None = None
    ) -> SharedSession:
        opened = OpenStore(store, "fake", "127.0.0.1", master)
        sessions.append(SharedSession(opened, job_id="job", terms=terms, ports=ports))
        return sessions[-1]

    yield join
    for session in sessions:
        session.close(wait=False)


def wait_for(session: SharedSession, kind: type[Instruction]) -> Instruction:
    """The next instruction of this kind; those before it are passed over."""
    deadline = time.monotonic() + DEADLOCK
    seen: list[Instruction] = []
    while True:
        left = max(0.0, deadline - time.monotonic())
        assert select.select([session.fileno()], [], [], left)[0], f"no {kind}, only {seen}"
        # Not all at once: what comes after the wanted one is for the next question.
        taken = session.take()
        for index, instruction in enumerate(taken):
            seen.append(instruction)
            if isinstance(instruction, kind):
                for later in taken[index + 1 :]:
                    session._outbox.put(later)
                return instruction


def start(session: SharedSession) -> StartWorkers:
    instruction = wait_for(session, StartWorkers)
    assert isinstance(instruction, StartWorkers)
    return instruction


def over(session: SharedSession) -> JobOver:
    instruction = wait_for(session, JobOver)
    assert isinstance(instruction, JobOver)
    return instruction


def test_nothing_is_left_in_the_store(join: Open, store: FakeStore) -> None:
    session = join()
    session.done(start(session).generation)
    assert over(session).result.succeeded
    session.close()
    assert store.values.prefix("").entries == ()


def test_a_second_close_does_nothing(join: Open) -> None:
    session = join()
    session.close(wait=False)
    session.close()


def test_it_can_leave_before_it_has_found_the_store(join: Open, store: FakeStore) -> None:
    store.unreachable()
    session = join()
    waiting = wait_for(session, Waiting)
    assert isinstance(waiting, Waiting)
    assert "the store is gone" in waiting.text
    session.leave("Ctrl-C", exit_code=130)
    assert over(session).result.exit_code == 130


def test_it_can_leave_a_job_that_has_not_begun(join: Open) -> None:
    session = join(JobTerms(2, 2))
    wait_for(session, Waiting)
    session.leave("Ctrl-C", exit_code=130)
    assert over(session).result.exit_code == 130


def test_who_came_with_another_token_is_named(join: Open) -> None:
    master = Mock(sent_away=("10.0.0.2",))
    session = join(JobTerms(2, 2, join_timeout=0.1, lease_seconds=2.0), master=master)
    text = over(session).result.text
    assert "missing: 1 more node" in text
    assert "10.0.0.2 came with another token" in text


def test_it_leaves_also_if_nobody_takes_notice(join: Open, store: FakeStore) -> None:
    session = join(JobTerms(1, 1, lease_seconds=20.0, answer_seconds=0.2))
    generation = start(session).generation
    store.unreachable()
    session.leave("Ctrl-C", exit_code=130)
    wait_for(session, StopWorkers)
    session.stopped(generation)
    assert over(session).result.exit_code == 130


@pytest.mark.slow
def test_nothing_is_started_with_a_lost_lease(join: Open, store: FakeStore) -> None:
    session = join(JobTerms(1, 1, lease_seconds=2.0))
    begun = start(session)
    store.unreachable()
    wait_for(session, StopWorkers)
    assert not session.may_start(begun)
    assert "lost contact" in over(session).result.text


@pytest.mark.slow
def test_workers_of_a_lost_node_get_little_time(join: Open, store: FakeStore) -> None:
    """Where others go on without it."""
    session = join(JobTerms(1, 2, lease_seconds=2.0, elastic_timeout=0.2))
    begun = start(session)
    assert session.may_start(begun)
    store.unreachable()
    stop = wait_for(session, StopWorkers)
    assert isinstance(stop, StopWorkers)
    assert stop.grace is not None
    assert stop.grace < 0.5
    session.stopped(begun.generation)
    over(session)


@pytest.mark.slow
def test_workers_of_a_lost_node_have_their_grace_period_in_a_job_of_fixed_size(
    join: Open, store: FakeStore
) -> None:
    session = join(JobTerms(1, 1, lease_seconds=2.0))
    begun = start(session)
    assert begun.mark is None, "nobody has to kill them"
    assert session.may_start(begun)
    store.unreachable()
    stop = wait_for(session, StopWorkers)
    assert isinstance(stop, StopWorkers)
    assert stop.grace is None
    session.stopped(begun.generation)
    assert "lost contact" in over(session).result.text


def test_workers_of_a_job_that_ends_are_fenced_no_longer(
    join: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they have to save may take longer than the node with the master is there."""
    released: SimpleQueue[str] = SimpleQueue()

    def release(fence: Fence, mark: str, real: Callable[..., None] = Fence.release) -> None:
        real(fence, mark)
        released.put(mark)

    monkeypatch.setattr(Fence, "release", release)
    terms = JobTerms(1, 2, lease_seconds=20.0)
    first, second = join(terms, master=Mock(sent_away=())), join(terms)
    start(first)
    begun = start(second)
    assert second.may_start(begun)
    first.leave("Ctrl-C", exit_code=130)
    wait_for(second, StopWorkers)
    assert released.get(timeout=DEADLOCK) == begun.mark
    second.stopped(begun.generation)
    assert over(second).result.exit_code == 130


@pytest.mark.slow
def test_an_elastic_node_gives_up_when_the_store_stays_away(join: Open, store: FakeStore) -> None:
    session = join(JobTerms(1, 2, lease_seconds=2.0, elastic_timeout=0.5))
    begun = start(session)
    store.unreachable()
    wait_for(session, StopWorkers)
    session.stopped(begun.generation)
    text = over(session).result.text
    assert "the store is gone; given up after 0.5 s" in text


@pytest.mark.slow
def test_an_elastic_node_comes_back(join: Open, store: FakeStore) -> None:
    session = join(JobTerms(1, 2, lease_seconds=2.0, elastic_timeout=1.0))
    begun = start(session)
    # As if others had it: the lease is lost, the store is not.
    store.failing = lambda call, _key: (
        StoreUnreachableError("no answer") if call == "renew" else None
    )
    wait_for(session, StopWorkers)
    session.stopped(begun.generation)
    store.failing = lambda _call, _key: None
    again = start(session)
    assert again.generation > begun.generation
    assert again.nodes[0].name != begun.nodes[0].name


@pytest.mark.slow
def test_a_store_that_forgets_everything_forgets_neither_count_nor_ranks(
    join: Open, store: FakeStore
) -> None:
    terms = JobTerms(2, 2, elastic_level=1, lease_seconds=2.0)
    nodes = [join(terms) for _ in range(2)]
    begun = [start(node) for node in nodes]
    ranks = [instruction.node_rank for instruction in begun]
    store.values = KeyValues(1000)
    for node in reversed(nodes):
        wait_for(node, StopWorkers)
        node.stopped(1)
    again = [start(node) for node in nodes]
    assert [instruction.restarts for instruction in again] == [1, 1]
    assert [instruction.node_rank for instruction in again] == ranks


def test_a_node_has_other_ports_in_the_next_generation(join: Open) -> None:
    flags = JobTerms(1, 1, elastic_level=1, lease_seconds=20.0)
    session = join(flags, ports=(1, 2))
    begun = start(session)
    assert begun.nodes[0].ports == (1, 2)
    session.failed(begun.generation, exit_code=1, text="failed")
    wait_for(session, StopWorkers)
    session.stopped(begun.generation, fresh_ports=lambda: (3, 4))
    again = start(session)
    assert (again.nodes[0].ports, again.restarts) == ((3, 4), 1)


def test_servers_run_until_all_are_done(join: Open) -> None:
    nodes = [join(JobTerms(2, 2, lease_seconds=20.0)) for _ in range(2)]
    generation = start(nodes[0]).generation
    start(nodes[1])
    nodes[0].done(generation, gone=False)
    nodes[1].done(generation)
    stop = wait_for(nodes[0], StopWorkers)
    assert isinstance(stop, StopWorkers)
    nodes[0].stopped(generation)
    for node in nodes:
        assert over(node).result.succeeded


def test_a_start_that_is_called_off_before_it_was_told(join: Open, store: FakeStore) -> None:
    """The nodes' addresses cannot be read yet when another node already fails."""
    store.failing = _groups_unreadable
    nodes = [join(JobTerms(2, 2, lease_seconds=20.0, answer_seconds=20.0)) for _ in range(2)]
    while store.values.get("rankspawn/job/job/state") is None or (
        '"running"' not in store.values.prefix("rankspawn/job/job/state").entries[0].value
    ):
        time.sleep(0.01)  # nobody tells: that is the point
    nodes[0].leave("Ctrl-C", exit_code=130)
    for node in nodes:
        assert over(node).result.exit_code == 130


def _groups_unreadable(call: str, key: str) -> StoreError | None:
    return StoreUnreachableError("no") if call == "get" and "/groups/" in key else None


def test_a_store_that_refuses_ends_the_job_with_its_words(join: Open, store: FakeStore) -> None:
    store.failing = lambda call, _key: (
        StoreRefusedError("the store is full") if call == "put" else None
    )
    session = join()
    assert "the store is full" in over(session).result.text
