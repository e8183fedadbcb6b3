"""Objects that can only be shared with a process while it is being started."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from multiprocessing.shared_memory import SharedMemory

import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.option_types import StartMethod
from tests import jobs
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]
mp = multiprocessing.get_context("spawn")


def test_queue(run: Run) -> None:
    queue = mp.Queue()
    run(jobs.put_rank, args=(queue,), nprocs=3)

    assert sorted(queue.get(timeout=DEADLOCK) for _ in range(3)) == [0, 1, 2]


def test_simple_queue(run: Run) -> None:
    queue = mp.SimpleQueue()
    run(jobs.put_rank, args=(queue,), nprocs=3)

    assert sorted(queue.get() for _ in range(3)) == [0, 1, 2]
    queue.close()


def test_barrier_event_and_lock(run: Run) -> None:
    context = run(jobs.meet, args=(mp.Barrier(3), mp.Event(), mp.Lock()), nprocs=3)

    assert context.results() == [True, True, True]


def test_a_pipe_end_for_each_rank_ends_with_that_rank(run: Run) -> None:
    """If rank 1 also had rank 0's end, the reader would never see the end of file."""
    pipes = [mp.Pipe(duplex=False) for _ in range(2)]
    context = run(jobs.send_rank, nprocs=2, join=False, rank_args=[(send,) for _, send in pipes])
    for _, send in pipes:
        send.close()

    for rank, (receive, _) in enumerate(pipes):
        assert receive.recv() == rank
        assert receive.poll(DEADLOCK)
        with pytest.raises(EOFError):
            receive.recv()
        receive.close()
    assert context.join()


def test_shared_memory(run: Run) -> None:
    shared = SharedMemory(create=True, size=16)
    try:
        run(jobs.write_shared, args=(shared,), nprocs=3)
        assert shared.buf is not None
        assert bytes(shared.buf[:3]) == b"\x01\x02\x03"
    finally:
        shared.close()
        shared.unlink()


def test_inside_a_closure(run: Run) -> None:
    """Also what cloudpickle pickles may inherit."""
    queue = mp.SimpleQueue()
    run(lambda: queue.put(jobs.rank()), nprocs=2)

    assert sorted(queue.get() for _ in range(2)) == [0, 1]
    queue.close()


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_a_lock_of_the_fork_context_is_refused_with_the_way_out(method: StartMethod) -> None:
    lock = multiprocessing.get_context("fork").Lock()
    if not hasattr(lock, "_is_fork_ctx"):
        pytest.skip("this Python (before 3.11.5) does not know which context a lock is of")

    with pytest.raises(TypeError, match=r'^args\[0\] cannot be sent .*get_context\("spawn"\)'):
        rankspawn.spawn(jobs.echo, args=(lock,), nprocs=1, backend="gloo", start_method=method)
