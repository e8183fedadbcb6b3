"""The common tests and the example of the docs over a real Ray of two nodes, and its words."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from rankspawn.cluster.ray import Ray
from tests.cluster.engines import RAY_ADDRESS
from tests.jobs import DEADLOCK

ROOT = Path(__file__).parents[2]
# Ray takes 127.0.0.1 for a mistake and another address for it; these two it takes as they are.
UP = """
import json, sys
from ray.cluster_utils import Cluster

common = {"num_cpus": 4, "object_store_memory": 100 << 20}
head = {"node_ip_address": "127.0.0.2", "include_dashboard": False}
cluster = Cluster(initialize_head=True, head_node_args={**common, **head})
try:
    cluster.add_node(node_ip_address="127.0.0.3", **common)
    print("up", cluster.address, flush=True)
    sys.stdin.read()
finally:
    cluster.shutdown()
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
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**environ, "RAY_ADDRESS": environ[RAY_ADDRESS]},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.stdout == "[0, 10, 20, 30]\n", done.stderr
