"""Ranks that die, leave, call something else or do not come: the others are told, none hangs."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn import (
    CollectiveMismatchError,
    CollectiveTimeoutError,
    MultiprocessContext,
    RankLostError,
)
from rankspawn.parallel import Communicator, environment
from rankspawn.parallel.peers import BROKEN
from tests.parallel import cases, supervised
from tests.parallel.crew import run_crew, values

Run = Callable[..., MultiprocessContext]
# Who is killed, in which meeting, before it has counted or after.
DEATHS = [
    (victim, meeting, moment)
    for victim in (0, 2)
    for meeting in (0, 1, 2, 3, 5)
    for moment in ("before", "after")
]


@pytest.mark.parametrize("job", cases.JOBS)
def test_a_rank_that_is_killed_in_a_collective_is_named(job: str) -> None:
    for death in [(0, 1, "after"), (2, 1, "before")]:
        check_death(job, *death)


@pytest.mark.slow
@pytest.mark.parametrize("death", DEATHS)
@pytest.mark.parametrize("job", cases.JOBS)
def test_a_rank_that_is_killed_anywhere_is_named(job: str, death: tuple[int, int, str]) -> None:
    check_death(job, *death)


def check_death(job: str, victim: int, meeting: int, moment: str) -> None:
    ends = run_crew(3, cases.lose_a_rank, job, victim, meeting, moment)

    assert ends.pop(victim).signal == signal.SIGKILL
    assert [end.error for end in ends] == [None, None]
    assert [end.value[:2] for end in ends] == [("RankLostError", victim)] * 2


def leave_early(how: str) -> str:
    comm = cases.connect(timeout=None)
    comm.barrier()
    if comm.rank == 1:
        if how == "raises":
            raise ValueError("of rank 1")
        if how == "closes":
            comm.close()
        return "left"
    try:
        comm.all_reduce(np.ones(3))
    except RankLostError as error:
        return f"{error.rank} {error.collective}: {error}"
    return "went on"


@pytest.mark.parametrize("how", ["returns", "raises", "closes"])
def test_a_rank_that_leaves_is_named(how: str) -> None:
    ends = run_crew(3, leave_early, how)

    for end in (ends[0], ends[2]):
        assert re.match(r"1 all_reduce: rank 1 has left \(process \d+\); this rank ", end.value)


def never_join() -> str:
    if rankspawn.get_rank() == 1:
        return "never"
    try:
        cases.connect(timeout=None)
    except RankLostError as error:
        return str(error)
    return "went on"


def test_a_rank_that_ends_without_joining_is_named() -> None:
    first, second, third = values(run_crew(3, never_join))

    assert second == "never"
    for story in (first, third):
        assert re.match(r"rank 1 \(process \d+\) ended before it called init_parallel_env", story)


def test_the_parent_blames_the_rank_that_failed(run: Run) -> None:
    with pytest.raises(rankspawn.ProcessRaisedException, match="ValueError: of rank 1") as raised:
        run(supervised.raise_in_one_rank, args=("raises",), nprocs=3)
    assert raised.value.rank == 1
    with pytest.raises(rankspawn.ProcessExitedException, match="SIGKILL") as exited:
        run(supervised.raise_in_one_rank, args=("killed",), nprocs=3)
    assert exited.value.rank == 1


def test_a_loss_that_a_hook_of_paddles_has_wrapped_is_a_consequence_too() -> None:
    options: Any = {"nprocs": 1, "backend": "gloo", "start_method": "fork", "join": False}
    context = rankspawn.spawn(supervised.raise_as_paddle_does, **options)
    with pytest.raises(rankspawn.ProcessRaisedException, match="SystemError: of Paddle"):
        context.join()

    assert context._group.outcomes[0].follows


def test_the_parent_raises_the_loss_of_a_rank_that_returned(run: Run) -> None:
    with pytest.raises(rankspawn.ProcessRaisedException, match="rank 1 has left") as raised:
        run(supervised.return_in_one_rank, nprocs=2)

    assert isinstance(raised.value.exception, RankLostError)
    assert raised.value.exception.rank == 1
    assert raised.value.exception.collective == "barrier"


@pytest.mark.parametrize("thread_goes_on", [False, True])
def test_nobody_waits_while_a_rank_writes_its_result(
    run: Run, tmp_path: Path, thread_goes_on: bool
) -> None:
    """Its result takes until the other rank was told, or was served by a thread of it."""
    served = tmp_path / "served"
    context = run(supervised.return_slowly, args=(str(served), thread_goes_on), nprocs=2)

    story = "2.0" if thread_goes_on else "rank 1 has left"
    assert story in context.results()[0]


MISMATCHES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "collective": (lambda c: c.barrier(), lambda c: c.all_reduce(np.ones(2)), "barrier at "),
    "size": (
        lambda c: c.all_reduce(np.ones(9000)),
        lambda c: c.all_reduce(np.ones(2)),
        r"all_reduce of float64\[9000\] op=sum at ",
    ),
    "shape": (
        lambda c: c.all_reduce(np.ones((2, 3))),
        lambda c: c.all_reduce(np.ones((3, 2))),
        r"float64\[2, 3\]",
    ),
    "type": (
        lambda c: c.all_gather(np.ones(3)),
        lambda c: c.all_gather(np.ones(3, "f4")),
        r"float64\[3\]",
    ),
    "operation": (
        lambda c: c.all_reduce(np.ones(2), "max"),
        lambda c: c.all_reduce(np.ones(2), "min"),
        "op=max",
    ),
    "root": (lambda c: c.broadcast(np.ones(2), 0), lambda c: c.broadcast(np.ones(2), 1), "src=0"),
    "target": (lambda c: c.reduce(np.ones(2), 0), lambda c: c.reduce(np.ones(2), 1), "dst=0"),
    "shared array": (lambda c: c.empty(3), lambda c: c.empty(4), r"empty of float32\[3\]"),
    "root of an object": (
        lambda c: c.broadcast_object(1, 0),
        lambda c: c.broadcast_object(1, 1),
        "broadcast_object src=0",
    ),
}


def call_different_things(kind: str, odd: int) -> str:
    comm = cases.connect()
    cases.one_of_each(comm, 20)
    usual, other, _ = MISMATCHES[kind]
    try:
        (other if comm.rank == odd else usual)(comm)
    except CollectiveMismatchError as error:
        found = error
    with pytest.raises(RuntimeError, match="failed before, with CollectiveMismatchError"):
        comm.barrier()
    assert odd in found.ranks
    assert found.ranks[0] == comm.rank
    assert all("test_losses.py:" in call for call in found.calls)
    return str(found)


@pytest.mark.parametrize("kind", MISMATCHES)
def test_ranks_that_call_different_things_are_told_what(kind: str) -> None:
    for odd in (0, 1, 2):
        stories = values(run_crew(3, call_different_things, kind, odd))

        for rank, story in enumerate(stories):
            assert re.match(rf"ranks {rank} and \d called different things: rank {rank} ", story)
            assert re.search(MISMATCHES[kind][2], story)


def mix_messages_and_collectives(odd: int, how: str, with_third: bool) -> tuple[str, str]:
    comm = cases.connect(timeout=None)
    comm.barrier()
    partner = (odd + 1) % comm.size
    if comm.rank == partner and how == "after a message":
        comm.send(np.ones(3), odd)
    try:
        if comm.rank == odd and how == "send":
            comm.send(np.ones(100_000), partner)  # more than the two pieces that are not waited for
        elif comm.rank == odd:
            if how == "after a message":
                comm.recv(np.empty(3), partner)
            comm.recv(np.empty(3), partner, tag=7)
        elif comm.rank == partner or with_third:
            comm.all_reduce(np.ones(3))
        else:
            comm.recv(np.empty(3), odd, tag=8)
    except (CollectiveMismatchError, RankLostError) as error:
        return type(error).__name__, str(error)
    return "went on", ""


def come_while_the_other_looks(waits: str, go: str) -> str:
    """One waits; in its look the other comes, finds that they do not fit, and breaks off."""
    comm = cases.connect(timeout=None)
    comm.barrier()
    step: Any = comm._step  # type: ignore[attr-defined]
    find = step.losses.find

    def find_late(rank: int, name: str) -> Exception | None:
        Path(go).touch()
        while step.peers.state(rank) != BROKEN:
            time.sleep(0.001)
        error: Exception | None = find(rank, name)
        return error

    if comm.rank:
        while not Path(go).exists():
            time.sleep(0.001)
    else:
        step.losses.find = find_late
    try:
        if (comm.rank == 0) == (waits == "recv"):
            comm.recv(np.empty(3), 1 - comm.rank)
        else:
            comm.all_reduce(np.ones(3))
    except (CollectiveMismatchError, RankLostError) as error:
        return type(error).__name__
    return "went on"


@pytest.mark.parametrize("waits", ["recv", "all_reduce"])
def test_a_mismatch_is_told_to_one_that_looks_meanwhile(waits: str, tmp_path: Path) -> None:
    ends = values(run_crew(2, come_while_the_other_looks, waits, str(tmp_path / "go")))
    assert ends == ["CollectiveMismatchError"] * 2


def call_through_a_framework() -> str:
    comm = cases.connect()
    code = "def backward():\n    comm.barrier()"
    names: dict[str, Any] = {"__name__": "torch.autograd.graph", "comm": comm}
    exec(compile(code, "graph.py", "exec"), names)
    call = comm.split if comm.rank else names["backward"]
    with pytest.raises(rankspawn.CollectiveMismatchError) as caught:
        call(*[0] * comm.rank)
    return str(caught.value)


def test_the_line_is_the_users_not_one_of_a_framework_that_calls_for_it() -> None:
    for story in values(run_crew(2, call_through_a_framework)):
        assert story.count(f"at {__file__}:") == 2, story


@pytest.mark.parametrize("how", ["recv", "send", "after a message"])
@pytest.mark.parametrize("odd", [0, 1])
def test_a_message_that_waits_for_a_collective_is_a_mismatch(odd: int, how: str) -> None:
    other = 1 - odd
    ends = values(run_crew(2, mix_messages_and_collectives, odd, how, True))

    word = "send" if how == "send" else "recv"
    told = {odd: rf"{word} of float64\[\d+\] .*", other: r"all_reduce of float64\[3\] op=sum"}
    for rank, (kind, text) in enumerate(ends):
        assert kind == "CollectiveMismatchError"
        assert re.match(
            rf"ranks {rank} and {1 - rank} called different things: "
            rf"rank {rank} called {told[rank]} at .*test_losses.py:\d+, "
            rf"rank {1 - rank} {told[1 - rank]} at .*test_losses.py:\d+$",
            text,
        ), text


def test_ranks_that_wait_beside_it_are_told_too() -> None:
    ends = values(run_crew(3, mix_messages_and_collectives, 0, "recv", True))
    assert [kind for kind, _ in ends] == ["CollectiveMismatchError"] * 3
    ends = values(run_crew(3, mix_messages_and_collectives, 0, "recv", False))
    assert [kind for kind, _ in ends] == ["CollectiveMismatchError"] * 2 + ["RankLostError"]


def miss_a_meeting(by_default: bool) -> str:
    comm = cases.connect(timeout=None)
    step = cases.step_of(comm)
    limit: float | None = 0.1 if comm.rank == 0 else None
    if comm.rank == 0:
        # Only one is missing then: the other has counted.
        while not step.has_come(2, step.phase + 1):
            time.sleep(0.001)
    if comm.rank == 1:
        while step.peers.state(0) != BROKEN:  # it has given up
            time.sleep(0.001)
    if by_default:
        comm._timeout, limit = limit, None  # type: ignore[attr-defined]
    try:
        comm.all_reduce(np.ones(2), timeout=limit)
    except CollectiveTimeoutError as error:
        return f"{error.missing} {error.collective} {isinstance(error, TimeoutError)}: {error}"
    except RankLostError as error:
        return f"lost {error.rank}: {error}"
    return "went on"


@pytest.mark.parametrize("by_default", [False, True])
def test_who_has_not_come_in_time_is_named(by_default: bool) -> None:
    first, second, third = values(run_crew(3, miss_a_meeting, by_default))

    assert first == "(1,) all_reduce True: rank 1 did not come to all_reduce in 0.1 s"
    assert third == "(1,) all_reduce True: rank 1 did not come to all_reduce before rank 0 gave up"
    assert second.startswith("lost 0: rank 0 gave up waiting for rank 1, its timeout was over")


def tell_when_waiting(comm: Communicator, writer: int) -> None:
    """Write to a pipe whenever this rank is about to sleep."""
    sleeper = cases.step_of(comm).sleeper
    wait = sleeper.wait

    def tell_and_wait(address: int, value: int, seconds: float) -> None:
        os.write(writer, b"x")
        wait(address, value, seconds)

    sleeper.wait = tell_and_wait


def be_interrupted(reader: int, writer: int, number: int) -> str:
    comm = cases.connect(timeout=None)
    if comm.rank == 1:
        os.read(reader, 1)
        os.kill(cases.step_of(comm).peers.pid(0), number)
        try:
            comm.barrier()
            comm.barrier()
        except RankLostError as error:
            return str(error)
        return "went on"
    signal.signal(number, signal.default_int_handler)
    tell_when_waiting(comm, writer)
    try:
        comm.barrier()
    except KeyboardInterrupt:
        return "interrupted"
    return "went on"


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends, which forks have too."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_waiting_rank_can_be_interrupted(pipe: tuple[int, int], number: int) -> None:
    first, second = values(run_crew(2, be_interrupted, *pipe, number))

    assert first == "interrupted"
    assert second.startswith("rank 0 left a collective in the middle because of an exception")


def wait_without_a_cpu() -> float:
    comm = cases.connect(timeout=None)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.5)  # what the other takes of a CPU meanwhile is what this is about
    used = time.process_time()
    comm.barrier()
    return time.process_time() - used


def test_a_rank_that_waits_takes_no_cpu() -> None:
    assert values(run_crew(2, wait_without_a_cpu))[0] < 0.2


def lose_a_partner(how: str) -> str:
    comm = cases.connect(timeout=None)
    comm.barrier()
    if comm.rank == 1:
        comm.send(np.ones(3), 0, tag=1)
        if how == "in the middle":
            cases.die_after_pieces(comm, 3)
            comm.send(np.ones(9000), 0, tag=2)
        cases._die()
    comm.recv(np.empty(3), 1, tag=1)  # what was sent is there, whoever died
    try:
        comm.recv(np.empty(9000), 1, tag=2)
    except RankLostError as error:
        return f"{error.rank} {error.collective}"
    return "went on"


@pytest.mark.parametrize("how", ["between", "in the middle"])
def test_a_rank_whose_message_does_not_come_is_named(how: str) -> None:
    first, second = run_crew(2, lose_a_partner, how)

    assert (first.value, second.signal) == ("1 recv", signal.SIGKILL)


def receive_something_else() -> str:
    comm = cases.connect()
    if comm.rank == 1:
        comm.send(np.ones(9000), 0)
        comm.send(np.ones(3), 0)
        return "sent"
    with pytest.raises(CollectiveMismatchError) as caught:
        comm.recv(np.empty(9000, "float32"), 1)
    assert comm.recv(np.empty(3), 1).tolist() == [1, 1, 1]
    return str(caught.value)


def test_a_message_of_another_type_is_refused_and_the_next_is_whole() -> None:
    assert values(run_crew(2, receive_something_else))[0] == (
        "ranks 0 and 1 called different things: rank 0 called recv of float32[9000] src=1 tag=0, "
        "rank 1 send of float64[9000] dst=0 tag=0"
    )


def find_no_room(what: str) -> str:
    comm = cases.connect()
    if comm.rank == 0:

        def refuse(*_: object) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        os.posix_fallocate = refuse
    try:
        if what == "empty":
            comm.empty(10)
        else:
            comm.all_reduce(np.ones(5000))
    except (MemoryError, RankLostError) as error:
        return f"{type(error).__name__}: {error}"
    return "went on"


def test_no_room_is_an_error_and_no_bus_error() -> None:
    story = "MemoryError: no room for {} bytes of memory that ranks share: No space left on device"

    assert values(run_crew(2, find_no_room, "empty")) == [story.format("8,192")] * 2
    first, second = values(run_crew(2, find_no_room, "all_reduce"))
    assert first.startswith("MemoryError: no room for ")
    assert second.startswith("RankLostError: rank 0 left a collective in the middle")


def wait_for_a_straggler(reader: int, writer: int) -> tuple[dict[str, int], int, int | None]:
    comm = cases.connect()
    if comm.rank == 1:
        os.read(reader, 1)
    else:
        tell_when_waiting(comm, writer)
    comm.all_reduce(np.ones(100))
    comm.broadcast(np.ones(50))
    found = comm.statistics()
    assert found.seconds >= found.waited == sum(found.waited_for.values())
    return found.calls, found.bytes, found.straggler


def test_statistics_tell_what_was_exchanged_and_who_was_waited_for(pipe: tuple[int, int]) -> None:
    first, second = values(run_crew(2, wait_for_a_straggler, *pipe))

    assert first == ({"init_parallel_env": 1, "all_reduce": 1, "broadcast": 1}, 1200, 1)
    assert second[:2] == first[:2]


def use_in_a_fork() -> str:
    comm = cases.connect()
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            comm.barrier()
        except RuntimeError as error:
            os.write(write, str(error).encode())
        comm.close()  # which is not the fork's to close
        os._exit(0)
    os.waitpid(pid, 0)
    story = os.read(read, 1000).decode()
    os.close(read)
    os.close(write)
    comm.barrier()
    return story


def test_a_fork_of_a_rank_is_no_rank() -> None:
    for story in values(run_crew(2, use_in_a_fork)):
        assert re.match(r"barrier was called in process \d+, a fork of rank \d", story)


def join_twice() -> str:
    comm = cases.connect()
    environment._current = None  # as in a program that the rank has started
    try:
        rankspawn.init_parallel_env()
    except RuntimeError as error:
        comm.barrier()
        comm.close()
        return str(error)
    return "joined"


def test_only_one_process_is_a_rank() -> None:
    for story in values(run_crew(2, join_twice)):
        assert re.match(r"rank \d of this job is process \d+, which has joined already", story)


def use_threads() -> list[float]:
    comm = cases.connect()
    found: list[float] = []

    def add() -> None:
        for _ in range(20):
            found.append(float(comm.all_reduce(np.ones(1))[0]))

    threads = [threading.Thread(target=add) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_take_turns() -> None:
    assert values(run_crew(2, use_threads)) == [[2.0] * 60] * 2


def call_in_a_handler(reader: int, writer: int) -> str:
    comm = cases.connect()
    stories = []

    def handle(*_: object) -> None:
        try:
            comm.barrier()
        except RuntimeError as error:
            stories.append(str(error))

    if comm.rank == 1:
        os.read(reader, 1)
        os.kill(cases.step_of(comm).peers.pid(0), signal.SIGUSR1)
        comm.barrier()
        return "sent"
    signal.signal(signal.SIGUSR1, handle)
    tell_when_waiting(comm, writer)
    comm.barrier()
    return stories[0]


def test_a_handler_cannot_call_in_the_middle_of_a_collective(pipe: tuple[int, int]) -> None:
    assert values(run_crew(2, call_in_a_handler, *pipe))[0] == (
        "barrier was called in the middle of another collective"
    )
