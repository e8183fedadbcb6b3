"""How long bare processes take to meet, with nothing but the kernel's own means between them.

The least that a barrier of sleeping processes can cost: all but one write to an eventfd and sleep
at another one; who collects lets all go on. No number is checked, nobody is looked after, and
nobody spins.
"""

if __name__ == "__main__":
    import os
    import time
    from collections.abc import Mapping
    from typing import Any

    from benchmarks.trials import frame

    ROUNDS, REPEATS = 9, 200

    def measure(trial: Mapping[str, Any]) -> dict[str, list[float]]:
        """The rounds of the process that collects."""
        others = trial["nprocs"] - 1
        arrived = os.eventfd(0)
        # Two in turn: or who is early would take what is meant for somebody who still sleeps.
        gates = [os.eventfd(0, os.EFD_SEMAPHORE) for _ in range(2)]
        pids = []
        for _ in range(others):
            pid = os.fork()
            if pid == 0:
                for number in range((ROUNDS + 1) * REPEATS):
                    os.eventfd_write(arrived, 1)
                    os.eventfd_read(gates[number % 2])
                os._exit(0)
            pids.append(pid)

        seconds = []
        for begin in range(0, (ROUNDS + 1) * REPEATS, REPEATS):
            began = time.perf_counter()
            for number in range(begin, begin + REPEATS):
                there = 0
                while there < others:
                    there += os.eventfd_read(arrived)
                os.eventfd_write(gates[number % 2], others)
            seconds.append((time.perf_counter() - began) / REPEATS)
        for pid in pids:
            os.waitpid(pid, 0)
        return {"seconds": seconds[1:]}

    frame.run(measure)
