"""Start workers, do something else meanwhile, take results as they come, handle a failure."""

import time

import rankspawn


def work(seconds):
    """A rank that takes its time."""
    time.sleep(seconds)
    return f"rank {rankspawn.get_rank()} worked for {seconds} s"


def work_or_fail(limit):
    """Rank 2 does not get through."""
    rank = rankspawn.get_rank()
    if rank == 2:
        raise ValueError(f"rank {rank} is over the limit of {limit}")
    time.sleep(60)  # the others would go on for long, and are stopped


def watch_a_group():
    """Rank 0 is done long before the last one; its result can be had at once."""
    context = rankspawn.spawn(
        work,
        nprocs=3,
        join=False,
        backend="gloo",
        rank_args=[(0.1,), (0.6,), (1.2,)],
    )
    print("first result:", context.return_queues[0].get())
    while not context.join(timeout=0.5):
        print("still running: ranks", sorted(context.sentinels.values()))
    print("all results:", context.results())


def survive_a_failure():
    """The failed rank's own exception arrives here, and nobody is left running."""
    with rankspawn.spawn(
        work_or_fail, args=(1,), nprocs=4, join=False, backend="gloo", grace_period=5
    ) as context:
        try:
            context.join()
        except rankspawn.ProcessRaisedException as error:
            print(f"rank {error.rank} failed: {error.exception!r}")
            print("ranks still running:", list(context.sentinels.values()))


if __name__ == "__main__":
    watch_a_group()
    survive_a_failure()
