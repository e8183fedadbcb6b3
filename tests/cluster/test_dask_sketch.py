"""The engine of one's own in docs/cluster.md: an engine for Dask."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.jobs import DEADLOCK

ROOT = Path(__file__).parents[2]
USE = """
import sys
import rankspawn
from sketch import Dask
from tests.cluster import cluster_cases as cases
from tests.cluster.one_thread_actors import Client

def tell(*words):
    with open(sys.argv[2] + ".txt", "a") as file:
        print(*words, file=file)

def use(client):
    engine = Dask(client)
    settings = {"nprocs": 2, "cluster": engine, "backend": "gloo"}
    results = rankspawn.spawn(cases.speak, (1 << 20,), **settings).results()
    tell([len(result) for result in results])
    try:
        rankspawn.spawn(cases.fail, (2, "raise"), **settings)
    except rankspawn.ProcessRaisedException as error:
        tell(error.rank, repr(error.exception))
    try:
        rankspawn.spawn(cases.fail, (2, "agent"), **settings)
    except rankspawn.NodeLostError as error:
        tell(error.rank, error.host == engine.hosts[1])

if __name__ == "__main__":
    if sys.argv[1] == "double":
        use(Client(2))
    else:
        import distributed
        words = {"threads_per_worker": 1, "dashboard_address": None}
        with distributed.LocalCluster(2, **words) as cluster:
            with distributed.Client(cluster) as client:
                use(client)
"""


def read_sketch() -> str:
    page = (ROOT / "docs/cluster.md").read_text()
    (code,) = re.findall(r"^<!-- engine: dask -->\n```py\n(.*?)^```$", page, re.S | re.M)
    return str(code)


def test_it_is_short() -> None:
    assert len([line for line in read_sketch().splitlines() if line.strip()]) <= 40


def is_missing(name: str) -> bool:
    return find_spec(name) is None


# The double has one thread for all methods that are not async, as a worker of Dask's has.
@pytest.mark.parametrize(
    "client",
    [
        "double",
        pytest.param(
            "real",
            marks=[
                pytest.mark.interop,
                pytest.mark.skipif(is_missing("distributed"), reason="dask is not installed"),
            ],
        ),
    ],
)
def test_it_runs_a_job_and_names_what_is_lost(client: str, tmp_path: Path) -> None:
    (tmp_path / "sketch.py").write_text(read_sketch())
    script = tmp_path / "use.py"
    script.write_text(USE)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        [sys.executable, script, client, tmp_path / "told"],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "DASK_CONFIG": str(tmp_path / "config"),
            "DASK_TEMPORARY_DIRECTORY": str(tmp_path),
        },
        capture_output=True,
        text=True,
        timeout=2 * DEADLOCK,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert (tmp_path / "told.txt").read_text().splitlines() == [
        f"{[1 << 20] * 4}",
        "2 ValueError('on purpose')",
        "2 True",
    ]
