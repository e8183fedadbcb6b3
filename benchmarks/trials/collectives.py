"""Collectives of ranks that talk, beside those of others, in turns in the same ranks.

So both meet the same load of the machine. Ranks of MPI have to be started by it: there whole
programs take turns. A metric is a task and a way of doing it, such as ``all-reduce 1 MiB: peer``.
"""

TASKS = {
    "barrier": (),
    "busy": (),
    "collectives": ("4 KiB", "1 MiB", "64 MiB"),
    "all sizes": ("4 KiB", "64 KiB", "1 MiB", "16 MiB", "256 MiB", "1 GiB"),
}
NBYTES = {
    "4 KiB": 4 << 10,
    "64 KiB": 64 << 10,
    "1 MiB": 1 << 20,
    "16 MiB": 16 << 20,
    "40 MB": 40_000_000,
    "64 MiB": 64 << 20,
    "256 MiB": 256 << 20,
    "1 GiB": 1 << 30,
    "broadcast 1 GiB": 1 << 30,
}
BROADCAST = "broadcast 1 GiB"
# How often a thing is done in a round, so that each round takes some milliseconds.
REPEATS = {"barrier": 200, "4 KiB": 100, "64 KiB": 50, "1 MiB": 10}
ROUNDS = {"64 MiB": 5, "40 MB": 5, "256 MiB": 3, "1 GiB": 2, BROADCAST: 3}
MOST_ROUNDS = 9
PROGRAMS = 3
# In a run of some minutes, for all alike.
QUICK_ROUNDS, QUICK_SHARE = 4, 5


def sizes_of(peer: str, task: str, nprocs: int) -> tuple[str, ...]:
    """What is summed, by a word of ``NBYTES``, or broadcast."""
    if task != "collectives" or peer == "torch":
        more = ("256 MiB", BROADCAST) if task == "collectives" and nprocs == 2 else ()
        return (*TASKS[task], *more)
    return ("4 KiB", "1 MiB", "40 MB")


def rounds_of(task: str, quick: bool) -> tuple[int, int]:
    """How many rounds, and how often in each."""
    rounds, repeats = ROUNDS.get(task, MOST_ROUNDS), REPEATS.get(task, 1)
    if quick:
        return min(rounds, QUICK_ROUNDS), max(1, repeats // QUICK_SHARE)
    return rounds, repeats


def time_all(meet: object, ways: dict, name: str, quick: bool) -> dict:  # type: ignore[type-arg]
    """Runs in every rank: metrics of one size."""
    from benchmarks.trials.turns import in_turns

    found = in_turns(meet, ways, *rounds_of(name, quick))  # type: ignore[arg-type]
    task = name if name == BROADCAST else f"all-reduce {name}"
    return {f"{task}: {way}": each for way, each in found.items()}


def ways_of(comm, peer, name) -> dict:  # type: ignore[no-untyped-def, type-arg]
    """Runs in every rank: the ways to do a task, each a call that takes nothing."""
    import numpy as np

    array = np.ones(NBYTES[name] // 4, "float32")
    copy = np.empty_like(array)
    is_broadcast = name == BROADCAST

    def copy_in_all() -> None:
        # As much as all ranks have to read and to write, if nothing is moved twice. Until all have
        # done it: who has a CPU meanwhile knows nothing of those who wait for one.
        if not is_broadcast or comm.rank != 0:
            np.copyto(copy, array)
        comm.barrier()

    if is_broadcast:
        ways = {"rankspawn": lambda: comm.broadcast(array), "copy": copy_in_all}
        return ways if peer is None else {**ways, "peer": peer.broadcast(array)}
    shared = comm.empty(array.size, "float32")
    shared.fill(1)
    ways = {
        "rankspawn": lambda: comm.all_reduce(array, "max"),
        "shared": lambda: comm.all_reduce(shared, "max"),
        "copy": copy_in_all,
    }
    if peer is not None:
        ways["peer"] = peer.all_reduce(np.ones(array.size, "float32"))
    return ways


def compare(barrier, peer_name, sizes, cpu, quick) -> dict:  # type: ignore[no-untyped-def, type-arg]
    """Runs in every rank: the seconds of each round of each way of each task."""
    import os

    import rankspawn
    from benchmarks.trials import peers_of_collectives as peers
    from benchmarks.trials.turns import in_turns

    if cpu is not None:
        os.sched_setaffinity(0, [cpu])
    comm = rankspawn.init_parallel_env()
    ways = {"rankspawn": comm.barrier}
    if barrier is not None:
        ways["peer"] = barrier.wait
    repeats = 50 if cpu is not None else REPEATS["barrier"]
    times = in_turns(comm.barrier, ways, MOST_ROUNDS, repeats)
    found = {f"barrier: {way}": each for way, each in times.items()}
    peer = peers.open_peer(peer_name)
    for name in sizes:
        ways = ways_of(comm, peer, name)
        found |= time_all(comm.barrier, ways, name, quick)
    if peer is not None:
        peer.close()
    return found


def loop(cpu: int) -> None:
    """Runs in a process of its own, until it is ended."""
    import os

    os.sched_setaffinity(0, [cpu])
    while True:
        pass


if __name__ == "__main__":
    import json
    import multiprocessing
    import os
    import subprocess
    import sys
    from collections.abc import Mapping
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame

    Figures = dict[str, list[float]]
    LOOPS = 3

    def in_mpi(quick: bool, sizes: list[str]) -> None:
        """Runs in every rank of MPI; the first one prints what it found."""
        import numpy as np

        from benchmarks.trials import peers_of_collectives as peers

        peer = peers.Mpi()
        found: Figures = {}
        for name in sizes:
            array = np.ones(NBYTES[name] // 4, "float32")
            ways = {"peer": peer.all_reduce(array)}
            found |= time_all(peer.barrier, ways, name, quick)
        if peer.rank == 0:
            print(json.dumps(found))

    def beside_mpi(nprocs: int, sizes: tuple[str, ...], quick: bool) -> Figures:
        """Programs in turns."""
        # Without a CPU for each rank, MPI has to be told to let others run.
        mpirun = ["mpirun", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
        options = ["--allow-run-as-root"] if os.geteuid() == 0 else []
        this = [sys.executable, __file__, "--in-mpi", "quick" if quick else "", *sizes]
        line = [*mpirun, *options, "-n", str(nprocs), *this]
        found: Figures = {}
        for _ in range(1 if quick else PROGRAMS):
            each = ours(None, "none", sizes, nprocs, quick)
            done = subprocess.run(line, check=True, capture_output=True, text=True)
            for metric, rounds in (each | json.loads(done.stdout)).items():
                found.setdefault(metric, []).extend(rounds)
        return found

    def ours(
        barrier: Any,
        peer: str,
        sizes: tuple[str, ...],
        nprocs: int,
        quick: bool,
        cpu: int | None = None,
    ) -> Figures:
        """What rank 0 found."""
        arguments = (barrier, peer, sizes, cpu, quick)
        context = rankspawn.spawn(compare, args=arguments, nprocs=nprocs, backend="gloo")
        found: Figures = context.results()[0]
        return found

    def busy(barrier: Any, nprocs: int, quick: bool) -> Figures:
        """All on one CPU, beside busy loops: who waits awake there waits for the others' turns."""
        cpu = min(os.sched_getaffinity(0))
        context = multiprocessing.get_context("spawn")
        loops = [context.Process(target=loop, args=(cpu,), daemon=True) for _ in range(LOOPS)]
        for one in loops:
            one.start()
        try:
            return ours(barrier, "none", (), nprocs, quick, cpu)
        finally:
            for one in loops:
                one.kill()

    def measure(trial: Mapping[str, Any]) -> Figures:
        """All tasks of one peer."""
        peer, nprocs, task = trial["contender"], trial["nprocs"], trial["kind"]
        quick = trial["quick"]
        sizes = sizes_of(peer, task, nprocs)
        if peer == "MPI":
            return beside_mpi(nprocs, sizes, quick)
        barrier = multiprocessing.get_context("spawn").Barrier(nprocs)
        if task == "busy":
            return busy(barrier, nprocs, quick)
        return ours(barrier, peer.lower(), sizes, nprocs, quick)

    if sys.argv[1] == "--in-mpi":
        in_mpi(bool(sys.argv[2]), sys.argv[3:])
    else:
        frame.run(measure)
