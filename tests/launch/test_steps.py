"""What programs say with ``rankspawn.report``, as those see it who look at them."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from rankspawn.inspect.finding import RunningJob, find_jobs
from rankspawn.inspect.tables import jobs_as_data
from tests.jobs import DEADLOCK
from tests.launch.running import COMMAND, environment, run_script, write_script
from tests.trace.test_recorder import read_page

CPU = ("--nproc_per_node", "2", "--device_type", "cpu")

REPORT_AND_END = """
    import rankspawn
    for step in (1, 2):
        rankspawn.report(step=step, total=2, loss=0.5)
"""

# A process that a rank starts has its variables as well.
REPORT_AND_WAIT = """
    import os, subprocess, sys, time
    import rankspawn
    rankspawn.report(step=int(os.environ["RANK"]) + 3, total=10, loss=0.5)
    subprocess.run([sys.executable, "-c", "import rankspawn; rankspawn.report(step=9)"], check=True)
    open("said." + os.environ["RANK"], "w").close()
    time.sleep(1000)
"""


def test_a_trace_has_them(tmp_path: Path) -> None:
    done = run_script(tmp_path, REPORT_AND_END, *CPU, "--trace", "run.html")
    assert done.code == 0, done.errors
    data = read_page(tmp_path / "run.html")
    assert [lane["curves"]["=loss"][1] for lane in data["ranks"]] == [[0.5], [0.5]]


def test_who_looks_at_the_job_sees_them(tmp_path: Path) -> None:
    write_script(tmp_path, REPORT_AND_WAIT)
    with subprocess.Popen(
        [*COMMAND, *CPU, "train.py"],
        cwd=tmp_path,
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as launcher:
        try:
            deadline = time.monotonic() + DEADLOCK
            while len(list(tmp_path.glob("said.*"))) < 2:
                assert time.monotonic() < deadline
                time.sleep(0.02)
            (data,) = jobs_as_data(_jobs_of(launcher.pid), {})
            steps = [(rank["step"], rank["total"], rank["values"]) for rank in data["ranks"]]
            assert steps == [(3.0, 10.0, {"loss": 0.5}), (4.0, 10.0, {"loss": 0.5})]
        finally:
            launcher.terminate()
            launcher.wait(DEADLOCK)


def _jobs_of(parent: int) -> list[RunningJob]:
    return [job for job in find_jobs() if job.parent == parent]
