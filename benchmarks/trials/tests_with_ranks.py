"""A file of tests that do nothing on two ranks, run by pytest: seconds for each but the first."""

OURS = """
import pytest
{imports}

@pytest.mark.ranks({nprocs}, start_method={method!r})
@pytest.mark.parametrize("number", range({tests}))
def test_nothing(number, rank):
    pass
"""
TORCH = """
import pytest
import torch
from torch.testing._internal.common_distributed import MultiProcessTestCase


class TestNothing(MultiProcessTestCase):
    world_size = {nprocs}

    def setUp(self):
        super().setUp()
        self._spawn_processes()


for number in range({tests}):
    setattr(TestNothing, f"test_{{number}}", lambda self: None)
"""

if __name__ == "__main__":
    import os
    import tempfile
    import time
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Any

    import pytest

    from benchmarks.trials import frame

    # As many as 50 where they are quick; the figure is for each of them.
    QUICK, SLOW, SLOWEST = 50, 4, 2

    class Clock:
        """A plugin that notes when each test ended."""

        def __init__(self) -> None:
            self.ends: list[float] = []

        def pytest_runtest_logfinish(self) -> None:
            """Note it."""
            self.ends.append(time.monotonic())

    def measure(trial: Mapping[str, Any]) -> dict[str, float]:
        """Run the file once."""
        family, _, method = trial["contender"].partition(" ")
        method = method or "spawn"  # of the state before, which knew no other
        tests = QUICK if method == "warm" else SLOWEST if family == "torch" else SLOW
        imports = f"import {trial['kind']}" if trial["kind"] else ""
        source = (TORCH if family == "torch" else OURS).format(
            imports=imports, nprocs=trial["nprocs"], method=method, tests=tests
        )
        clock = Clock()
        # The library may be installed, or not: in either case one plugin, and the same for torch.
        os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder, "test_nothing.py")
            file.write_text(source)
            status = pytest.main(
                ["-q", f"--rootdir={folder}", "-p", "rankspawn.pytest_plugin", str(file)], [clock]
            )
        if status != 0 or len(clock.ends) < tests:
            raise RuntimeError("a test failed; what it took says nothing")
        return {"seconds": (clock.ends[-1] - clock.ends[0]) / (len(clock.ends) - 1)}

    frame.run(measure)
