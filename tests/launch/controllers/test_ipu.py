from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from rankspawn.launch.controllers.ipu import MISSING_POPRUN, ipu_command, plan_ipu
from rankspawn.launch.flags import UsageError
from tests.jobs import DEADLOCK
from tests.launch.factories import config_of

TAIL = "--ipu_partition pod16 --vipu_server 10.0.0.9"


def command(
    devices: int, hosts: str, nproc: int, ipus: int, environ: dict[str, str] | None = None
) -> tuple[str, ...]:
    config = config_of(
        f"--devices {devices} ipu --hosts {hosts} --nproc_per_host {nproc} "
        f"--ipus_per_replica {ipus} {TAIL}"
    )
    return ipu_command(config, environ or {}, "/sdk/poprun")


def test_the_whole_command() -> None:
    endpoints = "localhost:8090,h2:8090"
    assert command(8, "localhost,h2", 2, 2) == (
        "/sdk/poprun",
        "--num-instances=4",
        "--num-replicas=4",
        "--ipus-per-replica=2",
        "--host=localhost,h2",
        "--vipu-partition=pod16",
        "--vipu-server-host=10.0.0.9",
        "--update-partition=no",
        "--vipu-server-timeout=120",
        "--print-topology=yes",
        "--numa-aware=yes",
        f"--mpi-local-args=-x PADDLE_TRAINERS_NUM=4 -x PADDLE_TRAINER_ENDPOINTS={endpoints}",
        *(
            f"--instance-mpi-local-args={rank}:-x PADDLE_TRAINER_ID={rank} "
            f"-x PADDLE_CURRENT_ENDPOINT={host}:8090 -x PADDLE_RANK_IN_NODE={local_rank}"
            for rank, host, local_rank in [
                (0, "localhost", 0),
                (1, "localhost", 1),
                (2, "h2", 0),
                (3, "h2", 1),
            ]
        ),
        sys.executable,
        "-u",
        "train.py",
        "--lr",
        "0.1",
    )


@pytest.mark.parametrize(
    ("devices", "hosts", "nproc", "ipus", "replicas"),
    [(1, "a", 1, 1, 1), (16, "a,b", 2, 2, 8), (64, "a,b,c,d", 4, 1, 64), (4, "a", 2, 2, 2)],
)
def test_replicas(devices: int, hosts: str, nproc: int, ipus: int, replicas: int) -> None:
    words = command(devices, hosts, nproc, ipus)
    assert f"--num-replicas={replicas}" in words
    instances = nproc * (hosts.count(",") + 1)
    assert f"--num-instances={instances}" in words
    assert sum(word.startswith("--instance-mpi-local-args=") for word in words) == instances


@pytest.mark.parametrize(
    ("devices", "hosts", "nproc", "ipus", "message"),
    [
        (8, "a", 1, 3, "--devices 8 is no multiple of --ipus_per_replica 3"),
        (2, "a,b", 2, 1, "2 replicas .* among 4 processes .2 --hosts times --nproc_per_host 2"),
        (8, "a,b", 3, 1, "8 replicas .* among 6 processes"),
    ],
)
def test_ipus_that_cannot_be_shared_out(
    devices: int, hosts: str, nproc: int, ipus: int, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        command(devices, hosts, nproc, ipus)


def test_variables_go_to_other_hosts_by_name_only() -> None:
    environ = {
        "PYTHONPATH": "/mine",
        "POPLAR_ENGINE_OPTIONS": "{}",
        "FLAGS_x": "1",
        "API_TOKEN": "secret",
        "PATH": "/bin",
    }
    words = command(1, "a", 1, 1, environ)
    shared = next(word for word in words if word.startswith("--mpi-local-args="))
    assert shared.endswith(" -x FLAGS_x -x POPLAR_ENGINE_OPTIONS -x PYTHONPATH")
    assert not any(value in word for word in words for value in ("/mine", "secret", "API_TOKEN"))


def test_other_modes_have_no_such_command() -> None:
    with pytest.raises(ValueError, match="no configuration for IPUs"):
        ipu_command(config_of(""), {}, "poprun")


def test_a_missing_poprun_is_told() -> None:
    assert "poprun is not on PATH" in MISSING_POPRUN


def test_what_poprun_gets(tmp_path: Path) -> None:
    """A stand-in for it writes down its arguments: each must arrive as one word."""
    poprun = tmp_path / "poprun"
    poprun.write_text(
        f"#!{sys.executable}\nimport json, os, sys\n"
        "print(json.dumps([sys.argv[1:], 'http_proxy' in os.environ]))\n"
    )
    poprun.chmod(0o755)
    config = config_of(f"--devices 2 ipu --hosts a --nproc_per_host 2 --ipus_per_replica 1 {TAIL}")
    environ = {"PATH": os.environ["PATH"], "http_proxy": "http://proxy"}
    (program,) = plan_ipu(config, environ, str(poprun))
    assert (program.role, program.log_name, program.on_terminal) == ("trainer", "workerlog.0", True)
    changed = {**environ, **program.env}
    ended = subprocess.run(
        program.command,
        env={name: value for name, value in changed.items() if value is not None},
        capture_output=True,
        timeout=DEADLOCK,
        check=True,
    )
    arguments, has_proxy = json.loads(ended.stdout)
    assert arguments == list(program.command[1:])
    assert not has_proxy
