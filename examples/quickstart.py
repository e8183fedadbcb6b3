"""Two ranks train one model together, on the CPU, with nothing but rankspawn.

Each rank sees every second point, and fits a line to them. After each step the ranks average their
gradients, so both hold the same line all the time, and it is the one of all points.
"""

import random
from array import array

import rankspawn

STEPS = 400
LEARNING_RATE = 0.5


def make_points(count):
    """Points near the line y = 3 x - 2."""
    source = random.Random(7)
    xs = [source.uniform(-1, 1) for _ in range(count)]
    return [(x, 3 * x - 2 + source.gauss(0, 0.05)) for x in xs]


def loss_and_gradient(points, line):
    """Mean squared error of ``weight * x + bias``, and its derivatives by both."""
    weight, bias = line
    errors = [(weight * x + bias - y, x) for x, y in points]
    loss = sum(error * error for error, _ in errors) / len(points)
    by_weight = sum(2 * error * x for error, x in errors) / len(points)
    by_bias = sum(2 * error for error, _ in errors) / len(points)
    return loss, array("d", [by_weight, by_bias])


def train(points):
    """Runs in every rank, each on its own share of the points."""
    comm = rankspawn.init_parallel_env()  # the other ranks
    mine = points[comm.rank :: comm.size]
    line = array("d", [0.0, 0.0])
    for step in range(STEPS):
        loss, gradient = loss_and_gradient(mine, line)
        if step % 100 == 0:
            # The line end in the same write, or the lines of two ranks may run together.
            print(f"[rank {comm.rank}] step {step:3d}  loss {loss:.4f}\n", end="", flush=True)
        comm.all_reduce(gradient, "avg")  # in place: now it is that of all points
        for place, slope in enumerate(gradient):
            line[place] -= LEARNING_RATE * slope
    return {"rank": comm.rank, "points": len(mine), "loss": loss, "line": line.tolist()}


if __name__ == "__main__":
    context = rankspawn.spawn(train, args=(make_points(1000),), nprocs=2, backend="gloo")
    for result in context.results():
        weight, bias = result["line"]
        text = "rank {rank}: {points} points, loss {loss:.4f}, ".format(**result)
        print(f"{text}y = {weight:.3f} x {bias:+.3f}")
