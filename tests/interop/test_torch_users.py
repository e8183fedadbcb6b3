"""Who calls ``torch.multiprocessing`` works over ``compat.torch``, the two functions replaced.

Lightning, ignite, accelerate, and torch's own ``elastic_launch``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

pytestmark = pytest.mark.interop

ROOT = Path(__file__).parent.parent.parent
DEADLOCK = 240.0
EXPECTED = {
    "accelerate": ["reduced", "failed in 1"],
    "ignite": ["reduced", "failed in 1"],
    "lightning": ["ddp_spawn True", "ddp_notebook True"],
    "elastic": [
        "sums [(0, 4.0), (1, 4.0)]",
        "forked [(0, 'rank 0'), (1, 'rank 1')]",
        "restarts [(0, '1'), (1, '1')]",
        "raise [(1, 1)]",
        "kill [(1, -9)]",
    ],
}
MODULES = {"elastic": "torch"}


@pytest.mark.parametrize("name", EXPECTED)
def test_user_of_torchs_functions(name: str, tmp_path: Path) -> None:
    # Not imported here: they change variables of their process.
    if find_spec(MODULES.get(name, name)) is None:
        pytest.skip(f"{name} is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "tests.interop.torch_users", name, "compat"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )

    lines = [line for line in done.stdout.splitlines() if line.startswith(_beginnings(name))]
    assert lines == EXPECTED[name], done.stderr[-3000:]
    assert done.returncode == 0


def _beginnings(name: str) -> tuple[str, ...]:
    """Those projects print more than that."""
    return tuple(line.split()[0] for line in EXPECTED[name])
