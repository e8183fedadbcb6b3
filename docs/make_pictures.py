"""Makes the pictures of the gallery: ``python docs/make_pictures.py [folder]``.

With ``--stale`` in place of a folder, it replaces those of the gallery that show something else
than the code does now, and says which.

Each shows what the code of a page prints, run in an empty folder, with what belongs to one
machine or moment replaced. Needs the extra ``docs``.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import live_view
import measured_pictures
import trace_picture
from rich.console import Console
from rich.table import Table
from rich.text import Text

import rankspawn
from rankspawn.doctor.facts import forecast_spawn
from rankspawn.doctor.findings import find_problems
from rankspawn.doctor.report_text import format_report

ROOT = Path(__file__).parent.parent
# Where rankspawn comes from, which need not be beside this file.
PACKAGES = Path(rankspawn.__file__).parent.parent
WIDTH = 100
DEADLOCK = 120.0
GIB = 2**30


def main(folder: Path) -> None:
    """Write all pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    readme = snippet_after("README.md", "## When a rank fails")
    draw(folder / "error.svg", "python train.py", run(readme, "train.py", []))
    test = snippet_after("docs/testing.md", "## When a rank fails")
    options = ["-m", "pytest", "--color=yes", "-p", "no:cacheprovider", "-p", "no:randomly"]
    draw(folder / "testing.svg", "pytest", run(test, "test_train.py", options))
    draw(folder / "doctor.svg", "rankspawn doctor", imagined_report())
    draw(folder / "live-view.svg", "rankspawn.spawn(..., progress=True)", live_view.record(WIDTH))
    measured_pictures.draw_all(folder)
    if not trace_picture.draw_trace(folder / "trace.png"):
        print("!!!!! NO PICTURE OF A TRACE: it needs Chromium (Debian: chromium) !!!!!")


def replace_stale() -> list[str]:
    """Make all pictures again, and keep those that tell something new."""
    kept = ROOT / "docs" / "pictures"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        main(folder)
        stale = [path for path in sorted(folder.iterdir()) if is_stale(kept / path.name, path)]
        for path in stale:
            shutil.copyfile(path, kept / path.name)
        return [path.name for path in stale]


def is_stale(kept: Path, made: Path) -> bool:
    """Whether a kept picture tells something else than the one that was made now."""
    if made.suffix == ".png":
        return trace_picture.is_stale(kept)
    if made.name in measured_pictures.NAMES:  # what they show is numbers and places
        return not kept.exists() or kept.read_text() != made.read_text()
    return not kept.exists() or words_of(kept) != words_of(made)


def words_of(picture: Path) -> set[str]:
    """What stands in it, without what is different each time."""
    text = re.sub(r"<style>.*?</style>|<[^>]*>|&#160;", " ", picture.read_text(), flags=re.DOTALL)
    return {word for word in text.split() if word.isalpha() and word not in {"B", "KiB", "MiB"}}


def snippet_after(page: str, heading: str) -> str:
    """The first Python block below a heading."""
    text = (ROOT / page).read_text().partition(f"\n{heading}\n")[2]
    return re.search(r"```python\n(.*?)```", text, re.DOTALL)[1]  # type: ignore[index]


def run(code: str, name: str, options: list[str]) -> str:
    """What a script prints, without what belongs to this machine."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, name).write_text(code)
        # Nothing else of this environment: CI or NO_COLOR, say, change what tools print.
        variables = {
            "PATH": os.environ.get("PATH", os.defpath),
            "PYTHONPATH": str(PACKAGES),
            "COLUMNS": str(WIDTH),
            "TMPDIR": folder,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        done = subprocess.run(
            [sys.executable, *options, name],
            cwd=folder,
            env=variables,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=DEADLOCK,
            check=False,
        )
        return scrub(done.stdout, folder)


def scrub(text: str, folder: str) -> str:
    """The same without paths, versions and times."""
    text = text.replace(f"{folder}/", "").replace(folder, ".")
    text = text.replace(f"{PACKAGES}/", "").replace(f"{sys.prefix}/", "")
    text = re.sub(r"(?m)^platform .*\n|^rootdir: .*\n|^plugins: .*\n", "", text)
    text = re.sub(r"0x[0-9a-f]{6,}", "0x…", text)
    text = re.sub(r" in [0-9.]+s", " in 1.9s", text)
    return re.sub(r"pid [0-9]+", "pid 4711", text)


class ImaginedMachine:
    """Four GPUs and eight CPUs."""

    def device_count(self, device_type: str) -> int:
        """Four GPUs, nothing else."""
        return 4 if device_type == "gpu" else 0

    def gpu_vendor(self) -> str | None:
        """Of one vendor."""
        return "nvidia"

    def cpus(self) -> int:
        """Eight."""
        return 8

    def addresses(self) -> frozenset[str]:
        """Loopback."""
        return frozenset({"127.0.0.1"})

    def resolve(self, host: str) -> frozenset[str]:
        """Addresses only."""
        return frozenset({host})


# What the doctor finds there; a mask shows two of the GPUs.
FACTS: dict[str, Any] = {
    "software": {
        "rankspawn": rankspawn.__version__,
        "python": "cpython 3.13",
        "system": "Linux 6.8 x86_64",
        "in_worker": False,
    },
    "devices": [
        {
            "type": "gpu",
            "vendor": "nvidia",
            "found": 4,
            "masks": {"CUDA_VISIBLE_DEVICES": "2,3"},
            "visible": ["2", "3"],
        }
    ],
    "cpus": {
        "machine": 64,
        "affinity": 64,
        "cgroup_quota": 8.0,
        "usable": 8,
        "CPU_NUM": None,
    },
    "limits": {
        "open_files": {"soft": 1024, "hard": 524288},
        "processes": {"soft": None, "hard": None},
        "cgroup_processes": {"limit": None, "used": None},
        "memory": {"total": 512 * GIB, "available": 480 * GIB},
        "cgroup_memory": {"limit": 64 * GIB, "used": 2 * GIB},
        "shared_memory": {
            "path": "/dev/shm",
            "total": GIB // 16,
            "free": GIB // 16,
            "writable": True,
        },
        "temporary": {"path": "/tmp", "total": 900 * GIB, "free": 600 * GIB, "writable": True},
    },
    "start_methods": {"available": ["spawn", "fork", "forkserver"], "default": "spawn"},
    "system": {
        "platform": "linux",
        "pidfd": True,
        "memfd": True,
        "missing_calls": [],
        "portable_forced": False,
        "sh": True,
        "proc": True,
        "sigint_ignored": False,
        "sigchld_ignored": False,
        "ptrace_scope": 1,
    },
    "packages": {
        "torch": "2.13.0",
        "numpy": "2.4.6",
        "cloudpickle": "3.1.2",
        "psutil": "7.2.2",
    },
    "variables": {"OMP_NUM_THREADS": "8"},
}


def imagined_report() -> str:
    """The doctor on a machine that everybody may see."""
    environ = {"CUDA_VISIBLE_DEVICES": "2,3", "OMP_NUM_THREADS": "8"}
    forecast = forecast_spawn(environ, ImaginedMachine())
    return format_report(FACTS, forecast, find_problems(FACTS, forecast))


def draw(path: Path, title: str, what: str | Table) -> None:
    """A terminal that shows this."""
    with open(os.devnull, "w") as nowhere:
        console = Console(
            record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        shown = Text.from_ansi(what.rstrip()) if isinstance(what, str) else what
        console.print(shown, soft_wrap=False)
        svg = console.export_svg(title=title, unique_id=path.stem)
    # No page should load fonts from elsewhere; the terminal's own will do.
    svg = re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL)
    # Some viewers drop the spaces that a line begins with, unbreakable ones too.
    svg = svg.replace("<svg ", '<svg xml:space="preserve" ', 1)
    path.write_text(svg.replace("Fira Code, monospace", "monospace") + "\n")


if __name__ == "__main__":
    if sys.argv[1:] == ["--stale"]:
        replaced = replace_stale()
        print(f"stale, made again: {', '.join(replaced)}" if replaced else "no picture is stale")
    else:
        main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs" / "pictures")
