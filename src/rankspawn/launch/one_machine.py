"""A job on this machine alone: its ports, its plan, its pod."""

from __future__ import annotations

import os
from dataclasses import replace

from rankspawn.launch.controllers import plan_programs, ports_needed
from rankspawn.launch.controllers.resources import resolve_job
from rankspawn.launch.pod import Pod
from rankspawn.launch.preparing import TemporaryFolder, announce, make_log_folder, warn_about_cpu
from rankspawn.launch.programs import Node
from rankspawn.machine import RealMachine
from rankspawn.plan.ports import HeldPorts
from rankspawn.plan.topology import join

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.descriptors import Closable
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.workers.follow import LogFollower

__all__ = ["OneMachine"]

_LOOPBACK = "127.0.0.1"


class OneMachine:
    """Starts the programs of a job that has one node, each time on fresh ports.

    Args:
        config: What was asked for.
        follower: Shows what belongs on the terminal.

    Raises:
        UsageError: The options contradict each other or this machine.
    """

    def __init__(self, config: LaunchConfig, follower: LogFollower) -> None:
        self._config = replace(config, log_dir=os.path.abspath(config.log_dir))
        self._machine = RealMachine()
        self._follower = follower
        self._run_id = os.urandom(8).hex()
        self._name = os.urandom(3).hex()
        if config.run_mode != "ipu":
            self._job = resolve_job(config, os.environ, self._machine)
            warn_about_cpu(self._job)
        make_log_folder(self._config.log_dir)

    def start(self, restart_count: int) -> Pod:
        """Start all programs, or none.

        Raises:
            OSError: A port is in use, or a program cannot be started.
            UsageError: The options contradict each other.
        """
        resources: list[Closable] = []
        try:
            specs = self._plan(restart_count, resources)
            announce(specs, self._config.log_dir)
            return Pod(
                specs,
                log_dir=self._config.log_dir,
                keep_logs=restart_count > 0 or not self._config.log_overwrite,
                grace=self._config.grace_period,
                follower=self._follower,
                resources=resources,
            )
        except BaseException:
            for one in resources:
                one.close()
            raise

    def _plan(self, restart_count: int, resources: list[Closable]) -> list[ProgramSpec]:
        if self._config.run_mode == "ipu":
            return self._plan_ipu()
        node, master = self._hold_ports(resources)
        gloo_path = ""
        if self._config.run_mode != "collective":
            folder = TemporaryFolder(f"rankspawn-gloo-{self._run_id}-{restart_count}")
            resources.append(folder)
            gloo_path = folder.path
        return plan_programs(
            self._config,
            self._job,
            [node],
            0,
            master=master,
            gloo_path=gloo_path,
            run_id=self._run_id,
            restart_count=restart_count,
        )

    def _plan_ipu(self) -> list[ProgramSpec]:
        from shutil import which

        from rankspawn.launch.controllers.ipu import MISSING_POPRUN, plan_ipu

        poprun = which("poprun")
        if poprun is None:
            raise FileNotFoundError(MISSING_POPRUN)
        return plan_ipu(self._config, os.environ, poprun)

    def _hold_ports(self, resources: list[Closable]) -> tuple[Node, str]:
        """This node with its ports, and the place of Paddle's store."""
        config = self._config
        if config.servers:
            return self._hold_listed(resources), ""
        host = config.host or _LOOPBACK
        # One more, for Paddle's store.
        held = HeldPorts(ports_needed(config, self._job) + 1, host)
        resources.append(held)
        *ports, last = held.ports
        return Node(0, host, tuple(ports), name=self._name), join(host, last)

    def _hold_listed(self, resources: list[Closable]) -> Node:
        from rankspawn.launch.controllers.roles import listed_nodes

        (node,), _ = listed_nodes(self._config, self._machine)
        resources.append(HeldPorts.fixed(node.ports, node.host))
        return replace(node, name=self._name)
