"""Wait for workers in a coroutine: the event loop stays free, and nothing polls."""

import asyncio
import time

import rankspawn


def work(seconds):
    """Runs in every worker."""
    time.sleep(seconds)
    return rankspawn.get_rank() ** 2


async def tick():
    """Something else that the loop has to do."""
    count = 0
    while True:
        await asyncio.sleep(0.1)
        count += 1
        print("tick", count)


async def main():
    """Two groups at once, and a ticking clock beside them."""
    clock = asyncio.create_task(tick())
    first = rankspawn.spawn(work, args=(0.3,), nprocs=2, join=False, backend="gloo")
    second = rankspawn.spawn(work, args=(0.5,), nprocs=3, join=False, backend="gloo")
    await asyncio.gather(first, second)
    clock.cancel()
    print("first group:", first.results())
    print("second group:", second.results())


if __name__ == "__main__":
    asyncio.run(main())
