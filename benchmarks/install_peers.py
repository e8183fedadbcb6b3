"""Makes an environment with all peers that the benchmarks compare with.

    python benchmarks/install_peers.py
    .venv-bench/bin/python -m benchmarks

A peer that cannot be installed is named and left out; the benchmarks run without it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# One after the other: torchrunx takes the torch that is there, not the newest one.
PACKAGES = (
    "cloudpickle psutil",
    "numpy",
    "pandas pyarrow",
    "matplotlib",
    "torch==2.13.0",
    "paddlepaddle==3.3.1 setuptools",
    "loky",
    "torchrunx",
    "pytest expecttest hypothesis",
)


def main() -> int:
    """Install; the exit code is 1 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".venv-bench")
    folder: Path = parser.parse_args().folder
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    missing = [packages for packages in PACKAGES if not install(python, packages)]
    for packages in missing:
        print(f"not installed: {packages}", file=sys.stderr)
    print(f"now run: {python} -m benchmarks")
    return 1 if missing else 0


def install(python: Path, packages: str) -> bool:
    """Install some packages; True if that went well."""
    print(f"installing {packages}", flush=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *packages.split()]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
