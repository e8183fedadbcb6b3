"""A job whose rank 0 ends first: the others use torch's store when it is gone."""

import os
import select

import torch.distributed as dist


def connect() -> dist.TCPStore:
    """A client of the store, without a process group."""
    return dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)


def outlive_rank_0() -> str:
    dist.init_process_group("gloo")
    store = connect()
    if dist.get_rank() == 0:
        store.set("rank 0", f"{os.getpid()}")
        # Not before the others hold on to this process.
        store.get("held")
        return "first"
    first = os.pidfd_open(int(store.get("rank 0")))
    store.set("held", "")
    assert select.select([first], [], [], 120)[0], "rank 0 never ended"
    os.close(first)
    again = connect()
    again.set("late", "still there")
    return store.get("late").decode()


def meet_without_group() -> int:
    return connect().add("ranks", 1)


if __name__ == "__main__":
    os.write(1, f"{outlive_rank_0()}\n".encode())
    # torch's destructors abort now and then on a loaded machine, under any launcher.
    os._exit(0)
