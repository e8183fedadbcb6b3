"""A training step on all ranks: ``rankspawn.DataParallel`` beside torch's, by its best options.

One model of 10 million parameters for each way, in the same ranks; steps take turns.
"""

WIDTH, BATCH, ROUNDS, QUICK_ROUNDS = 1826, 64, 9, 5
OPTIONS = {
    "plain": {},
    "bucket view": {"gradient_as_bucket_view": True},
    "static graph": {"gradient_as_bucket_view": True, "static_graph": True},
}


def compare(rounds: int) -> dict:  # type: ignore[type-arg]
    """Runs in every rank: the seconds of each step of each way."""
    from importlib import import_module

    import rankspawn
    from benchmarks.trials.turns import in_turns

    torch, dist, parallel = map(import_module, ("torch", "torch.distributed", "torch.nn.parallel"))
    torch.set_num_threads(1)
    comm = rankspawn.init_parallel_env()
    dist.init_process_group("gloo")

    def model():  # type: ignore[no-untyped-def]
        torch.manual_seed(1)
        first, second, third = (torch.nn.Linear(WIDTH, WIDTH) for _ in range(3))
        return torch.nn.Sequential(first, torch.nn.ReLU(), second, torch.nn.ReLU(), third)

    def step_of(model):  # type: ignore[no-untyped-def]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        inputs, targets = torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH)

        def step() -> None:
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()

        return step

    steps = {
        "no exchange": step_of(model()),
        "rankspawn": step_of(rankspawn.DataParallel(model())),
    }
    for name, options in OPTIONS.items():
        steps[name] = step_of(parallel.DistributedDataParallel(model(), **options))
    # torch's finds its buckets in the first ones.
    found = in_turns(comm.barrier, steps, rounds, warm_up=3)
    dist.destroy_process_group()
    return found


if __name__ == "__main__":
    import statistics
    from collections.abc import Mapping
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame

    def measure(trial: Mapping[str, Any]) -> dict[str, list[float]]:
        """Under ``DDP`` those of torch's options that are the fastest in the middle."""
        rounds = QUICK_ROUNDS if trial["quick"] else ROUNDS
        context = rankspawn.spawn(compare, args=(rounds,), nprocs=trial["nprocs"], backend="gloo")
        found: dict[str, list[float]] = context.results()[0]
        best = min(OPTIONS, key=lambda name: statistics.median(found[name]))
        return {**found, "DDP": found[best]}

    frame.run(measure)
