"""The examples of docs/cluster.md that need a server: each runs with a real one."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.sshd import HOSTS, running_sshd, why_no_sshd
from tests.jobs import DEADLOCK
from tests.launch.slurm_cluster import running_slurm, why_no_slurm

PAGE = Path(__file__).parents[2] / "docs/cluster.md"
NAMES = ("gpu1", "gpu2")

pytestmark = pytest.mark.slow


def _run_example(engine: str, folder: Path, *before: str, **variables: str) -> None:
    (code,) = re.findall(
        rf"^<!-- engine: {engine} -->\n```py\n(.*?)^```$", PAGE.read_text(), re.S | re.M
    )
    script = folder / "example.py"
    script.write_text(code)
    done = subprocess.run(
        [*before, sys.executable, script],
        cwd=folder,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.stdout == "[0, 10, 20, 30]\n", done.stderr


@pytest.mark.skipif(bool(why_no_sshd()), reason=why_no_sshd())
def test_ssh(tmp_path: Path) -> None:
    with running_sshd() as server:
        config = tmp_path / "config"
        config.write_text(
            "".join(
                f"Host {name}\n HostName {host}\n HostKeyAlias [{host}]:{server.port}\n"
                for name, host in zip(NAMES, HOSTS, strict=True)
            )
            + f"Host *\n Port {server.port}\n IdentityFile {server.identity}\n"
            + "".join(f" {name} {value}\n" for name, value in server.options.items())
        )
        # As if this were the user's own configuration.
        program = tmp_path / "ssh"
        program.write_text(f'#!/bin/sh\nexec {shutil.which("ssh")} -F {config} "$@"\n')
        program.chmod(stat.S_IRWXU)
        _run_example("ssh", tmp_path, PATH=f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        server.wait_until_idle()


@pytest.mark.skipif(bool(why_no_slurm()), reason=why_no_slurm())
def test_slurm(tmp_path: Path) -> None:
    with running_slurm() as cluster:
        configuration = str(cluster.configuration)
        _run_example("slurm", tmp_path, SLURM_CONF=configuration)
        # The same script in an allocation uses that one.
        _run_example("slurm", tmp_path, "salloc", "--nodes=2", SLURM_CONF=configuration)
        cluster.wait_until_idle()
