"""Two ranks fit a line together, on the CPU, with nothing but the standard library.

Each rank sees every second point. After each step they average their gradients through
shared memory, so both hold the same model, and it is the model of all points.
"""

import multiprocessing
import random

import rankspawn

STEPS = 400
LEARNING_RATE = 0.5


def make_points(count):
    """Points near the line y = 3 x - 2."""
    source = random.Random(7)
    xs = [source.uniform(-1, 1) for _ in range(count)]
    return [(x, 3 * x - 2 + source.gauss(0, 0.05)) for x in xs]


def gradient(points, weight, bias):
    """Mean squared error of ``weight * x + bias``, and its derivatives by both."""
    errors = [(weight * x + bias - y, x) for x, y in points]
    loss = sum(error * error for error, _ in errors) / len(points)
    by_weight = sum(2 * error * x for error, x in errors) / len(points)
    by_bias = sum(2 * error for error, _ in errors) / len(points)
    return loss, by_weight, by_bias


def train(points, shared, barrier):
    """Runs in every worker, each on its own share of the points."""
    rank, world_size = rankspawn.get_rank(), rankspawn.get_world_size()
    mine = points[rank::world_size]
    weight = bias = 0.0
    for step in range(STEPS):
        loss, by_weight, by_bias = gradient(mine, weight, bias)
        if step % 100 == 0:
            # The line end in the same write, or the lines of two ranks may run together.
            print(f"[rank {rank}] step {step:3d}  loss {loss:.4f}\n", end="", flush=True)

        # All-reduce by hand: write, wait for the others, read, wait until all have read.
        shared[2 * rank], shared[2 * rank + 1] = by_weight, by_bias
        barrier.wait()
        weight -= LEARNING_RATE * sum(shared[0::2]) / world_size
        bias -= LEARNING_RATE * sum(shared[1::2]) / world_size
        barrier.wait()
    return {"rank": rank, "points": len(mine), "loss": loss, "weight": weight, "bias": bias}


if __name__ == "__main__":
    nprocs = 2
    mp = multiprocessing.get_context("spawn")
    shared = mp.Array("d", 2 * nprocs, lock=False)
    barrier = mp.Barrier(nprocs)

    context = rankspawn.spawn(
        train, args=(make_points(1000), shared, barrier), nprocs=nprocs, backend="gloo"
    )

    for result in context.results():
        print(
            "rank {rank}: {points} points, loss {loss:.4f}, y = {weight:.3f} x {bias:+.3f}".format(
                **result
            )
        )
