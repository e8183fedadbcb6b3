"""A launcher's whole time for an empty script in two workers, from the command to its end."""

if __name__ == "__main__":
    import subprocess
    import sys
    import tempfile
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.stopwatch import best_of, timed

    MODULES = {
        "rankrun": ["rankspawn.launch"],
        "torchrun": ["torch.distributed.run", "--standalone"],
        "Paddle launch": ["paddle.distributed.launch"],
    }
    # A short time is easily spoilt; the others take seconds.
    TRIES = {"rankrun": 5, "bare interpreters": 5}

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """Once untimed, so that all modules are compiled and in memory."""
        name, count = trial["contender"], trial["nprocs"]
        command, copies = [sys.executable, "empty.py"], count
        if name in MODULES:
            module, *flags = MODULES[name]
            command = [
                sys.executable,
                "-m",
                module,
                *flags,
                f"--nproc_per_node={count}",
                "empty.py",
            ]
            copies = 1
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "empty.py").touch()

            def run() -> None:
                nowhere = subprocess.DEVNULL
                running = [
                    subprocess.Popen(
                        command, cwd=folder, stdin=nowhere, stdout=nowhere, stderr=nowhere
                    )
                    for _ in range(copies)
                ]
                codes = [one.wait() for one in running]
                if any(codes):
                    raise RuntimeError(f"failed: {' '.join(command)}")

            run()
            return best_of(TRIES.get(name, 1), lambda: timed(run))

    frame.run(measure)
