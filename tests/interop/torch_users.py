"""Programs over other projects that start ranks with torch, the two functions replaced.

Run as a script: which one, and ``compat`` or ``torch``.
"""

from __future__ import annotations

import os
import sys
import time
import warnings

import torch
import torch.multiprocessing as torch_mp


def use_compat() -> None:
    from rankspawn.compat import torch as compat

    torch_mp.spawn, torch_mp.start_processes = compat.spawn, compat.start_processes


def reduce_with_accelerate() -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    assert accelerator.num_processes == 2
    assert accelerator.reduce(torch.ones(1)).item() == 2.0


def fail_with_accelerate() -> None:
    from accelerate import Accelerator

    if Accelerator(cpu=True).process_index == 1:
        raise ValueError("on purpose")
    time.sleep(600)


def accelerate() -> None:
    from accelerate import debug_launcher

    debug_launcher(reduce_with_accelerate, num_processes=2)
    print("reduced")
    try:
        debug_launcher(fail_with_accelerate, num_processes=2)
    except torch_mp.ProcessRaisedException as error:
        print("failed in", error.error_index)


def reduce_with_ignite(local_rank: int, text: str) -> None:
    import ignite.distributed as idist

    assert (idist.get_world_size(), idist.get_rank(), text) == (2, local_rank, "text")
    assert idist.all_reduce(torch.ones(1)).item() == 2.0


def fail_with_ignite(local_rank: int) -> None:
    import ignite.distributed as idist

    if local_rank == 1:
        raise ValueError("on purpose")
    idist.barrier()


def ignite() -> None:
    import ignite.distributed as idist

    with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
        parallel.run(reduce_with_ignite, "text")
    print("reduced")
    try:
        with idist.Parallel(backend="gloo", nproc_per_node=2) as parallel:
            parallel.run(fail_with_ignite)
    except torch_mp.ProcessRaisedException as error:
        print("failed in", error.error_index)


def lightning() -> None:
    warnings.simplefilter("ignore")
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    for strategy in ("ddp_spawn", "ddp_notebook"):
        model = BoringModel()
        before = [parameter.detach().clone() for parameter in model.parameters()]
        trainer = Trainer(
            accelerator="cpu",
            devices=2,
            strategy=strategy,
            max_steps=2,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        trainer.fit(model)
        pairs = zip(before, model.parameters(), strict=True)
        print(strategy, any(not torch.equal(old, new) for old, new in pairs))


def return_sum(value: float) -> float:
    import torch.distributed as dist

    dist.init_process_group("gloo")
    total = torch.tensor([value])
    dist.all_reduce(total)
    dist.destroy_process_group()
    return total.item()


def fail_in_rank_1(how: str) -> None:
    if os.environ["RANK"] == "1":
        if how == "raise":
            raise ValueError("on purpose")
        os.kill(os.getpid(), 9)
    time.sleep(600)


def fail_at_first() -> str:
    count = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if count == "0":
        raise ValueError("on purpose")
    return count


def tell_rank(text: str) -> str:
    return text + os.environ["RANK"]


def elastic() -> None:
    """``elastic_launch``, which calls ``start_processes`` and waits with ``join(-1)``."""
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    def config(restarts: int = 0, start_method: str = "spawn") -> LaunchConfig:
        return LaunchConfig(
            min_nodes=1,
            max_nodes=1,
            nproc_per_node=2,
            rdzv_backend="c10d",
            rdzv_endpoint="localhost:0",
            run_id="test",
            max_restarts=restarts,
            monitor_interval=0.1,
            start_method=start_method,
        )

    print("sums", sorted(elastic_launch(config(), return_sum)(2.0).items()))
    # As accelerate's notebook_launcher does it.
    forked = elastic_launch(config(start_method="fork"), tell_rank)("rank ")
    print("forked", sorted(forked.items()))
    print("restarts", sorted(elastic_launch(config(1), fail_at_first)().items()))
    for how in ("raise", "kill"):
        try:
            elastic_launch(config(), fail_in_rank_1)(how)
        except ChildFailedError as error:
            print(how, [(rank, each.exitcode) for rank, each in error.failures.items()])


if __name__ == "__main__":
    if sys.argv[2] == "compat":
        use_compat()
    globals()[sys.argv[1]]()
