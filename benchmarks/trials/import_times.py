"""What each module takes that the first spawn of one rank imports, beyond a bare interpreter's."""

if __name__ == "__main__":
    import re
    import subprocess
    import sys
    import tempfile
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    from benchmarks.trials import frame
    from benchmarks.trials.first_spawn import SCRIPT

    TRIES = 5

    def own_times(folder: str, name: str) -> dict[str, float]:
        """Seconds of each module by itself, of the parent alone."""
        command = [sys.executable, "-X", "importtime", name]
        done = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
        # The worker's interpreter writes no such lines: it does not get the option.
        found = re.findall(r"(?m)^import time: +(\d+) \| +\d+ \| +(\S+)$", done.stderr)
        return {module: int(micros) / 1e6 for micros, module in found}

    def measure(_: Mapping[str, Any]) -> dict[str, float]:
        """The least of some times of each module, which a loaded machine cannot make less."""
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "first.py").write_text(SCRIPT)
            Path(folder, "bare.py").touch()
            bare = own_times(folder, "bare.py")
            rounds = [own_times(folder, "first.py") for _ in range(TRIES)]
        modules = [module for module in rounds[0] if module not in bare]
        return {
            f"import of {module}": min(each.get(module, 1.0) for each in rounds)
            for module in modules
        }

    frame.run(measure)
