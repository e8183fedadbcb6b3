"""The import of rankspawn and the first spawn of one rank, over a bare interpreter's start."""

SCRIPT = """
import rankspawn

def nothing():
    pass

if __name__ == "__main__":
    rankspawn.spawn(nothing, nprocs=1, backend="gloo")
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

    def measure(_: Mapping[str, Any]) -> dict[str, float]:
        """The best of each, in turns."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "first.py").write_text(SCRIPT)
            Path(folder, "bare.py").touch()

            def run(name: str) -> float:
                command = [sys.executable, name]
                return timed(lambda: subprocess.run(command, cwd=folder, check=True))

            pairs = [(run("first.py"), run("bare.py")) for _ in range(TRIES + 1)][1:]
        first, bare = (min(column) for column in zip(*pairs, strict=True))
        return {"seconds": first - bare, "seconds_whole": first, "seconds_bare": bare}

    frame.run(measure)
