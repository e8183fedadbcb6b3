"""``rankrun`` as users start it: a process of its own, in a folder of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

from tests.jobs import DEADLOCK

ROOT = Path(__file__).parent.parent.parent
COMMAND = [sys.executable, "-m", "rankspawn.launch"]


@dataclass
class Done:
    """A launch that ended."""

    code: int
    output: str
    errors: str
    folder: Path

    def log(self, name: str) -> str:
        return (self.folder / "log" / name).read_text()

    @property
    def logs(self) -> list[str]:
        return sorted(path.name for path in (self.folder / "log").iterdir())


def environment(**variables: str) -> dict[str, str]:
    """The one of the tests, without what would say something about devices or nodes."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PADDLE_", "FLAGS_", "SLURM_", "RANKSPAWN_", "PET_"))
        and not name.endswith("_VISIBLE_DEVICES")
    }
    # The tests' own interpreter may be unbuffered or not; what the workers are is our matter.
    kept.pop("PYTHONUNBUFFERED", None)
    return kept | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"} | variables


def write_script(folder: Path, text: str, name: str = "train.py") -> Path:
    path = folder / name
    path.write_text(textwrap.dedent(text))
    return path


def rankrun(folder: Path, *arguments: str, given: str = "", **variables: str) -> Done:
    """Run it to its end, with ``given`` as its standard input."""
    done = subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        env=environment(**variables),
        input=given,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    return Done(done.returncode, done.stdout, done.stderr, folder)


def run_script(folder: Path, text: str, *flags: str, **variables: str) -> Done:
    """Run a script with two workers, unless flags say otherwise."""
    write_script(folder, text)
    return rankrun(folder, "--nproc_per_node", "2", *flags, "train.py", **variables)
