"""Makes an environment with all peers that the benchmarks compare with.

    python benchmarks/install_peers.py
    .venv-bench/bin/python -m benchmarks --quick

A peer that cannot be installed is named and left out; the benchmarks run without it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Of pyproject.toml, which names the versions.
GROUPS = (
    *("measured-with", "torch", "paddle", "jax", "ray", "torch-engines", "pools"),
    "tests-of-torch",
)
# What Ray Train needs besides the ray that is there by then.
MORE = ("ray[train]",)


def packages() -> list[str]:
    """One after the other: torchrunx takes the torch that is there, not the newest one."""
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    return [*(" ".join(pinned[group]) for group in GROUPS), *MORE]


def main() -> int:
    """Install; the exit code is 1 if something is missing."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / ".venv-bench")
    folder: Path = parser.parse_args().folder
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    missing = [each for each in packages() if not install(python, each)]
    for each in missing:
        print(f"not installed: {each}", file=sys.stderr)
    print(f"now run: {python} -m benchmarks --quick")
    return 1 if missing else 0


def install(python: Path, names: str) -> bool:
    """Install some packages; True if that went well."""
    print(f"installing {names}", flush=True)
    command = [str(python), "-m", "pip", "install", "--quiet", *names.split()]
    return subprocess.run(command, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
