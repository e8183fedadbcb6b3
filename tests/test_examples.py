"""Every file in ``examples/`` runs as it stands, and prints what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
DEADLOCK = 120.0

# What each one must print, in this order.
PRINTS = {
    "quickstart.py": ["rank 0: 500 points, loss 0.00", "rank 1: 500 points, loss 0.00"],
    "supervise.py": [
        "first result: rank 0 worked for 0.1 s",
        "still running: ranks [",
        "all results: ['rank 0 worked for 0.1 s', 'rank 1 worked for 0.6 s'",
        "rank 2 failed: ValueError('rank 2 is over the limit of 1')",
        "ranks still running: []",
    ],
    "asyncio_await.py": ["tick 1", "first group: [0, 1]", "second group: [0, 1, 4]"],
    "numpy_data_parallel.py": [
        "rank 0: loss 0.0",
        "rank 1: loss 0.0",
        "same parameters on both ranks: True",
        "same as in one process: True",
    ],
    "paddle_linear.py": ["rank 0 returned ", "rank 1 returned "],
    "paddle_data_parallel.py": ["parts of the loss: ", "same parameters on both ranks: True"],
    "torch_data_parallel.py": [
        "losses: ",
        "same parameters on both ranks: True",
        "same as in one process: True",
    ],
    "torch_ddp.py": ["losses: ", "same parameters on both ranks: True"],
    "torch_compat.py": ["sum 3", "done"],
}
PLAIN = sorted(name for name in PRINTS if not name.startswith(("torch_", "paddle_")))
WITH_FRAMEWORK = sorted(set(PRINTS) - set(PLAIN))


def test_no_example_is_forgotten() -> None:
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(PRINTS)


@pytest.mark.parametrize("name", PLAIN)
def test_example_runs_without_a_warning(name: str, tmp_path: Path) -> None:
    done = run(name, tmp_path, "-W", "error")

    assert done.stderr == ""
    assert_prints(name, done.stdout)


def test_the_quickstart_needs_nothing_but_this_package(tmp_path: Path) -> None:
    """The README's first command does not install NumPy."""
    (tmp_path / "numpy.py").write_text("raise ImportError")

    done = run("quickstart.py", tmp_path, "-W", "error", PYTHONPATH=str(tmp_path))

    assert done.stderr == ""
    assert_prints("quickstart.py", done.stdout)


@pytest.mark.interop
@pytest.mark.parametrize("name", WITH_FRAMEWORK)
def test_example_runs_with_its_framework(name: str, tmp_path: Path) -> None:
    framework = name.partition("_")[0]
    if find_spec(framework) is None:
        pytest.skip(f"{framework} is not installed")

    assert_prints(name, run(name, tmp_path).stdout)


def run(name: str, cwd: Path, *flags: str, **variables: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [sys.executable, *flags, str(EXAMPLES / name)],
        cwd=cwd,
        # Frameworks keep caches among the temporary files.
        env={**os.environ, "TMPDIR": str(cwd), **variables},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done


def assert_prints(name: str, output: str) -> None:
    at = 0
    for expected in PRINTS[name]:
        at = output.find(expected, at)
        assert at >= 0, f"{expected!r} is not printed, or not in this order:\n{output}"
