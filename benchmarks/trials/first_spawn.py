"""A first spawn of one rank with the import it needs, over a bare interpreter's start."""

SCRIPT = """
import rankspawn

def nothing():
    pass

if __name__ == "__main__":
    rankspawn.spawn(nothing, nprocs=1, backend="gloo")
"""

# The same by the standard library alone.
PLAIN = """
import multiprocessing

def nothing():
    pass

if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=nothing)
    process.start()
    process.join()
"""

if __name__ == "__main__":
    import subprocess
    import sys
    import tempfile
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.stopwatch import timed

    TRIES = 7

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """The best of each, in turns."""
        with tempfile.TemporaryDirectory() as folder:
            plain = trial["contender"] == "multiprocessing spawn"
            Path(folder, "first.py").write_text(PLAIN if plain else SCRIPT)
            Path(folder, "bare.py").touch()

            def run(name: str) -> float:
                command = [sys.executable, name]
                return timed(lambda: subprocess.run(command, cwd=folder, check=True))

            pairs = [(run("first.py"), run("bare.py")) for _ in range(TRIES + 1)][1:]
        first, bare = (min(column) for column in zip(*pairs, strict=True))
        return {"seconds": first - bare, "seconds_whole": first, "seconds_bare": bare}

    frame.run(measure)
