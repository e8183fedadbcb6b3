"""The common tests and the example of the docs over a real Ray of two nodes, and its words."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rankspawn.cluster.engine import AgentRequest
from rankspawn.cluster.ray import Ray
from tests.cluster.engines import RAY_ADDRESS
from tests.jobs import DEADLOCK

ROOT = Path(__file__).parents[2]
# Ray takes 127.0.0.1 for a mistake and another address for it; these two it takes as they are.
UP = """
import json, sys
from ray.cluster_utils import Cluster

common = {"num_cpus": 4, "num_gpus": 2, "object_store_memory": 100 << 20}
head = {"node_ip_address": "127.0.0.2", "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={**common, **head})
try:
    cluster.add_node(node_ip_address="127.0.0.3", **common)
    print("up", cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
"""
# GPUs that only Ray believes in, which is enough for masks and numbers of ranks.
DEVICES = """
import os
import ray
import rankspawn
from rankspawn.cluster import Ray

def see():
    return os.environ.get("CUDA_VISIBLE_DEVICES") or None, os.environ.get("FLAGS_selected_gpus")

if __name__ == "__main__":
    ray.init(address=os.environ["RAY_ADDRESS"], _node_ip_address="127.0.0.2", log_to_driver=False)
    for nprocs, options in ((-1, {}), (1, {"backend": "nccl"}), (1, {"device_type": "cpu"})):
        print(rankspawn.spawn(see, nprocs=nprocs, cluster=Ray(nodes=2), **options).results())
"""
# A driver that is killed: at first as a task, which Ray starts again, and then as a program.
KILLED = """
import os, signal, sys
import ray
import rankspawn
from rankspawn.cluster import Ray
from tests.cluster import cluster_cases as cases

marks = sys.argv[1]

def be_killed():
    engine, words = Ray(nodes=2), {"nprocs": 1, "backend": "gloo", "join": False}
    context = rankspawn.spawn(cases.sleep_for_ever, cluster=engine, **words)
    with open(marks, "a") as file:
        print(*context.pids(), file=file)
    os.kill(os.getpid(), signal.SIGKILL)

@ray.remote(num_cpus=0, max_retries=1)
def drive():
    if not os.path.exists(marks):
        be_killed()
    engine = Ray(nodes=2)
    return rankspawn.spawn(rankspawn.get_rank, nprocs=1, cluster=engine, backend="gloo").results()

if __name__ == "__main__":
    ray.init(address=os.environ["RAY_ADDRESS"], _node_ip_address="127.0.0.2", log_to_driver=False)
    assert ray.get(drive.remote()) == [0, 1]
    be_killed()
"""
# Ends once nothing is left of it.
LOOK = """
import os, sys, time
import psutil, ray

def find_left():
    groups = {group["state"] for group in ray.util.placement_group_table().values()}
    held = ray.cluster_resources()["CPU"] - ray.available_resources().get("CPU", 0)
    with open(sys.argv[1]) as file:
        alive = [pid for pid in map(int, file.read().split()) if psutil.pid_exists(pid)]
    return alive, held, groups - {"REMOVED"}

ray.init(address=os.environ["RAY_ADDRESS"], _node_ip_address="127.0.0.2", log_to_driver=False)
while any(left := find_left()):
    print("left:", *left, file=sys.stderr, flush=True)
    time.sleep(0.5)
"""


def with_ray(test: Any) -> Any:
    """A test that needs the real one."""
    is_missing = find_spec("ray") is None
    return pytest.mark.interop(pytest.mark.skipif(is_missing, reason="ray is not installed")(test))


@pytest.mark.parametrize(
    ("keywords", "words"),
    [
        ({"nodes": 0}, "nodes=0: a cluster has at least one node"),
        ({"nodes": True}, "nodes=True"),
        ({"resources": {}}, "a bundle needs a part"),
        ({"resources": {"GPU": 0}}, "a bundle needs a part"),
    ],
)
def test_what_makes_no_sense_is_refused(keywords: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Ray(**keywords)


# What the nodes that are alive have, and what each of two bundles has a part of.
@pytest.mark.parametrize(
    ("have", "counts", "device_type", "parts"),
    [
        ([8, 8], (8, 8), None, [8, 8]),
        ([8, 8], (1, 2), None, [1, 2]),
        ([8, 4, 0], (None, None), None, [4, 4]),
        ([8, 4], (2, None), "gpu", [2, 4]),
        ([4, 4], (8, 8), None, [4, 4]),  # the agents' error says what is missing
        ([8, 8], (8, 8), "cpu", [0, 0]),
        ([8, 8], (8, 8), "npu", [0, 0]),
        ([8, 0], (8, 8), None, [0, 0]),
        ([8], (8, 8), None, [0, 0]),
    ],
)
def test_unless_something_is_said_each_rank_has_a_gpu(
    have: list[int], counts: tuple[int | None, ...], device_type: str | None, parts: list[int]
) -> None:
    nodes = [{"Alive": True, "Resources": {"CPU": 9.0, "GPU": float(gpus)}} for gpus in have]
    ray = SimpleNamespace(nodes=lambda: [*nodes, {"Alive": False, "Resources": {"GPU": 99.0}}])
    request = AgentRequest("job", counts, 1.0, device_type)

    bundles = Ray(len(counts))._bundles(ray, request)
    assert [bundle.get("GPU", 0) for bundle in bundles] == parts
    assert all(bundle["CPU"] == 1 for bundle in bundles)
    own = {"GPU": 1.0, "memory": 1e9}
    assert Ray(len(counts), resources=own)._bundles(ray, request) == [own, own]


@pytest.mark.skipif(find_spec("ray") is not None, reason="ray is installed")
def test_without_ray_it_says_what_to_install() -> None:
    with pytest.raises(RuntimeError, match=r"pip install 'rankspawn\[ray\]'"):
        Ray().nodes()


@contextlib.contextmanager
def running_ray() -> Iterator[dict[str, str]]:
    """The environment of programs that use it; a program of its own, as all that use it are."""
    # Not where TMPDIR says: Unix sockets are below it, whose paths have 107 bytes at most.
    folder = Path(tempfile.mkdtemp(prefix="rst-ray-", dir="/tmp"))
    (folder / "ray").mkdir()
    environ = {**os.environ, "TMPDIR": str(folder), "RAY_USAGE_STATS_ENABLED": "0"}
    try:
        with subprocess.Popen(
            [sys.executable, "-c", UP],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environ,
        ) as program:
            assert program.stdout is not None
            address = next(line.split()[1] for line in program.stdout if line.startswith("up "))
            yield {**environ, RAY_ADDRESS: address}
            program.communicate()
    finally:
        shutil.rmtree(folder)


# One test, as Ray keeps idle workers until the cluster ends.
@with_ray
def test_a_real_cluster(tmp_path: Path) -> None:
    with running_ray() as environ:
        run_common_tests(environ, tmp_path)
        run_example(environ, tmp_path)
        run_devices(environ, tmp_path)
        run_killed(environ, tmp_path)


def run_common_tests(environ: dict[str, str], tmp_path: Path) -> None:
    # Without the fixture that finds what is left: Ray leaves sockets and idle workers.
    chosen = ["-m", "slow or not slow", "-o", "filterwarnings=default", "--noconftest"]
    options = ["-q", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'inner'}"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options, *chosen, "tests/cluster/test_engines.py"],
        cwd=ROOT,
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=5 * DEADLOCK,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout


def run_example(environ: dict[str, str], tmp_path: Path) -> None:
    page = (ROOT / "docs/cluster.md").read_text()
    (code,) = re.findall(r"^<!-- engine: ray -->\n```py\n(.*?)^```$", page, re.S | re.M)
    script = tmp_path / "example.py"
    # Its own choice of an address is not one of those that the nodes have here.
    script.write_text(code.replace("ray.init(", 'ray.init(_node_ip_address="127.0.0.2", '))
    done = run_script(environ, script)
    assert done.stdout == "[0, 10, 20, 30]\n", done.stderr


def run_devices(environ: dict[str, str], tmp_path: Path) -> None:
    """Nobody said what to set aside: a GPU for each rank, and none for those on the CPU."""
    script = tmp_path / "devices.py"
    script.write_text(DEVICES)
    done = run_script(environ, script)
    assert done.stdout.splitlines() == [
        "[('0,1', '0'), ('0,1', '1'), ('0,1', '0'), ('0,1', '1')]",
        "[('0', '0'), ('0', '0')]",
        "[(None, None), (None, None)]",
    ], done.stderr


def run_killed(environ: dict[str, str], tmp_path: Path) -> None:
    """Of drivers that were killed nothing is left: processes, actors, placement groups."""
    marks = str(tmp_path / "pids")
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    done = run_script(environ, script, marks)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert len(Path(marks).read_text().split()) == 4
    script.write_text(LOOK)
    done = run_script(environ, script, marks)
    assert done.returncode == 0, done.stderr


def run_script(
    environ: dict[str, str], script: Path, *words: str
) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT), *filter(None, [environ.get("PYTHONPATH")])]
    return subprocess.run(
        [sys.executable, script, *words],
        cwd=ROOT,
        env={
            **environ,
            "RAY_ADDRESS": environ[RAY_ADDRESS],
            "PYTHONPATH": os.pathsep.join(paths),
        },
        capture_output=True,
        text=True,
        timeout=2 * DEADLOCK,
        check=False,
    )
