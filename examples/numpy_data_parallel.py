"""Two ranks train a small network together, in NumPy, without a framework.

Each rank sees every second sample. After each step they average their gradients, so both hold the
same parameters all the time, and those are the ones of a single process that saw all samples.
"""

import numpy as np

import rankspawn

STEPS = 300
LEARNING_RATE = 0.2


def make_samples(count):
    """Points on a circle and whether they are in its upper half, a little noisy."""
    source = np.random.default_rng(7)
    angle = source.uniform(0, 2 * np.pi, count)
    points = np.stack([np.cos(angle), np.sin(angle)], 1) + source.normal(0, 0.05, (count, 2))
    return points, (np.sin(angle) > 0).astype(float)


def make_parameters(buffer):
    """Weights and biases of two layers, as parts of one array."""
    first, second = buffer[:48].reshape(3, 16), buffer[48:]
    return first, second


def loss_and_gradient(points, labels, parameters, gradient):
    """Mean squared error; its derivatives are written into ``gradient``."""
    first, second = make_parameters(parameters)
    by_first, by_second = make_parameters(gradient)
    inputs = np.column_stack([points, np.ones(len(points))])
    hidden = np.tanh(inputs @ first)
    error = hidden @ second - labels
    by_second[:] = 2 * hidden.T @ error / len(points)
    by_first[:] = 2 * inputs.T @ (np.outer(error, second) * (1 - hidden**2)) / len(points)
    return np.mean(error**2)


def train(points, labels):
    """Runs in every rank, and in a process of its own just as well."""
    comm = rankspawn.init_parallel_env()
    points, labels = points[comm.rank :: comm.size], labels[comm.rank :: comm.size]
    parameters = np.random.default_rng(comm.rank).normal(0, 0.5, 64)
    comm.broadcast(parameters)  # all begin with those of rank 0
    gradient = comm.empty(64, "float64")
    for _ in range(STEPS):
        loss = loss_and_gradient(points, labels, parameters, gradient)
        comm.all_reduce(gradient, "avg")
        parameters -= LEARNING_RATE * gradient
    return {"rank": comm.rank, "loss": float(loss), "parameters": parameters}


if __name__ == "__main__":
    samples = make_samples(1000)
    results = rankspawn.spawn(train, args=samples, nprocs=2, backend="gloo").results()
    for result in results:
        print("rank {rank}: loss {loss:.3f}".format(**result))
    first, second = (result["parameters"] for result in results)
    print("same parameters on both ranks:", np.array_equal(first, second))
    alone = train(*samples)["parameters"]
    print("same as in one process:", np.allclose(first, alone))
