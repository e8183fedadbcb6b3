"""Values that the tests of controllers start from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rankspawn.launch.config import LaunchConfig, read_config
from rankspawn.launch.controllers import resolve_job
from rankspawn.launch.programs import Node, ProgramSpec
from rankspawn.plan.resources import Resources
from tests.plan.conftest import FakeMachine


def config_of(line: str, environ: Mapping[str, str] | None = None) -> LaunchConfig:
    """The configuration of a command line with the script ``train.py --lr 0.1``."""
    return read_config([*line.split(), "train.py", "--lr", "0.1"], environ or {})


def job_of(
    config: LaunchConfig, environ: Mapping[str, str] | None = None, **facts: Any
) -> Resources:
    """The resources of a machine with these facts; on the CPU without any."""
    return resolve_job(config, environ or {}, FakeMachine(**facts))


def make_nodes(*ports: Sequence[int], hosts: Sequence[str] = ()) -> list[Node]:
    """One node for each row of ports, at 10.0.0.1 and so on."""
    names = hosts or [f"10.0.0.{n + 1}" for n in range(len(ports))]
    return [
        Node(n, host, tuple(row), name=f"pod{n}")
        for n, (host, row) in enumerate(zip(names, ports, strict=True))
    ]


def column(programs: Sequence[ProgramSpec], name: str) -> list[str | None]:
    """One variable of all programs; "unset" where it is not mentioned."""
    return [program.env.get(name, "unset") for program in programs]
