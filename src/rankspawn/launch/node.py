"""This node of a job: the folder of its logs, its ports, its plan, its pods."""

from __future__ import annotations

import os

from rankspawn.launch.controllers import plan_programs, ports_needed, resolve_job
from rankspawn.launch.flags import UsageError
from rankspawn.launch.log_folder import LogFolder
from rankspawn.launch.pod import Pod, name_of
from rankspawn.plan.environ import breakpoint_env, crash_env
from rankspawn.plan.ports import HeldPorts
from rankspawn.plan.topology import join
from rankspawn.telling import get_logger
from rankspawn.values import replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    import logging
    from collections.abc import Sequence

    from rankspawn.descriptors import Closable
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.launch.session import StartWorkers
    from rankspawn.launch.showing import Shown
    from rankspawn.launch.tracing import Traced
    from rankspawn.plan.devices import Machine
    from rankspawn.plan.resources import Resources
    from rankspawn.workers.agent_store import AgentStore
    from rankspawn.workers.follow import LogFollower

logger: logging.Logger = get_logger(__name__)

_LOOPBACK = "127.0.0.1"


class ThisNode:
    """Starts the programs of this node, alone or among others, and holds their ports.

    Args:
        config: What was asked for.
        machine: The machine that this is.
        follower: Shows what belongs on the terminal.
        shown: Shows more than that, if it is asked for.
        traced: Records what happens, if that is asked for.

    Attributes:
        config: The same, with an absolute path of the logs.
        host: The address at which its processes are reached; known once it holds their ports.

    Raises:
        UsageError: The options contradict each other or this machine.
    """

    def __init__(
        self,
        config: LaunchConfig,
        machine: Machine,
        follower: LogFollower,
        shown: Shown | None = None,
        traced: Traced | None = None,
    ) -> None:
        self.config: LaunchConfig = replace(config, log_dir=os.path.abspath(config.log_dir))
        self.machine = machine
        self.host: str = ""
        self._follower = follower
        self._shown = shown
        self._traced = traced
        self._held: HeldPorts | None = None
        self._was_started = False
        if config.run_mode != "ipu":
            self._resources = resolve_job(config, os.environ, machine)
            _warn_about_cpu(self._resources)
        if config.agent_store:
            _check_torch()
        self._logs = LogFolder(self.config)

    def hold_ports(self, host: str = "") -> tuple[int, ...]:
        """Hold what this node brings along: a port for each process, and one for Paddle's store.

        Args:
            host: The address at which other nodes reach this one; empty if there are none.

        Raises:
            OSError: A port is in use.
            UsageError: The lists of processes contradict this machine.
        """
        config = self.config
        self.host = host or config.host or _LOOPBACK
        if config.run_mode == "ipu":
            return ()
        if config.servers:
            from rankspawn.launch.controllers.roles import LIST_ANOTHER, listed_nodes

            nodes, me = listed_nodes(config, self.machine)
            self.host = host or nodes[me].host
            self._held = HeldPorts.fixed(nodes[me].ports, nodes[me].host, remedy=LIST_ANOTHER)
            return ()
        count = ports_needed(config, self._resources) + (config.run_mode == "collective")
        if not self._has_fixed_ports:
            self._held = HeldPorts(count, self.host)
            return self._held.ports
        ports: Sequence[int] = range(config.start_port, config.start_port + count)
        remedy = "give another --start_port on every node"
        if self._first_port:
            ports, remedy = (self._first_port, *[0] * (count - 1)), "give another --master_port"
        self._held = HeldPorts.fixed(ports, self.host, remedy=remedy)
        return self._held.ports

    def fresh_ports(self) -> tuple[int, ...] | None:
        """Other ports for the next generation; None where they are fixed.

        What a last message of the old generation reaches must not be the new one.
        """
        before = self._held
        if before is None or self.config.servers or self._has_fixed_ports:
            return None
        ports = self.hold_ports(self.host)
        before.close()
        return ports

    def start(self, instruction: StartWorkers) -> Pod:
        """Start this node's programs of a generation, or none.

        Raises:
            OSError: A program cannot be started.
            UsageError: The options, or what the nodes bring along, do not fit together.
        """
        resources: list[Closable] = []
        is_first = not self._was_started and not instruction.restarts
        try:
            planned = self._plan(instruction, resources)
            is_python = self.config.is_python
            told = breakpoint_env(os.environ, is_python=is_python)
            told = {**told, **crash_env(os.environ, is_python=is_python)}
            planned = [replace(spec, env={**spec.env, **told}) for spec in planned]
            if self.config.debug is not None or self.config.debugpy is not None:
                from rankspawn.launch.breakpoints import with_debuggers

                planned = with_debuggers(self.config, planned, resources)
            if self.config.env:
                own = dict(self.config.env)
                planned = [replace(spec, env={**spec.env, **own}) for spec in planned]
            specs = self._logs.claim(planned, instruction, resources)
            store = self._make_store(instruction)
            pod = Pod(
                specs,
                log_dir=self._logs.path,
                keep_logs=not is_first or not self.config.log_overwrite,
                is_first=is_first,
                grace=self.config.grace_period,
                follower=self._follower,
                resources=resources,
                outer_mark=instruction.mark,
                store=store,
                shown=self._shown,
                traced=self._traced,
            )
        except BaseException:
            for resource in resources:
                resource.close()
            raise
        self._was_started = True
        # Now, while their interpreters start, and not before: the first word takes its time.
        self._announce(specs, instruction)
        return pod

    def close(self) -> None:
        """Give the ports and the logs back; a second call does nothing."""
        self._logs.close()
        if self._held is not None:
            self._held.close()

    @property
    def _has_fixed_ports(self) -> bool:
        """They follow from the flags, as those of listed nodes do under Paddle's launcher."""
        config = self.config
        asked = "start_port" in config.given and (config.spans_machines or bool(config.ips))
        return asked or len(config.ips) > 1 or bool(self._first_port)

    @property
    def _first_port(self) -> int | None:
        """The port of the first worker where torchrun's words name it; others are free ones."""
        config = self.config
        alone = not config.spans_machines and config.run_mode == "collective"
        return config.first_port if alone else None

    def _plan(self, instruction: StartWorkers, resources: list[Closable]) -> list[ProgramSpec]:
        if self.config.run_mode == "ipu":
            return self._plan_ipu()
        nodes, master, gloo_path = list(instruction.nodes), "", ""
        if self.config.run_mode == "collective":
            master = join(nodes[0].host, nodes[0].ports[-1])
            nodes = [replace(node, ports=node.ports[:-1]) for node in nodes]
        else:
            name = f"rankspawn-gloo-{instruction.run_id}-{instruction.generation}-{os.getpid()}"
            folder = _TemporaryFolder(name)
            resources.append(folder)
            gloo_path = folder.path
        programs = plan_programs(
            self.config,
            self._resources,
            nodes,
            instruction.node_rank,
            master=master,
            gloo_path=gloo_path,
            run_id=instruction.run_id,
            restart_count=instruction.restarts,
        )
        if self.config.numa_binding is None or self.config.run_mode != "collective":
            return programs
        cpus = bound_cpus(self.config.numa_binding, self._resources)
        return [replace(one, cpus=own) for one, own in zip(programs, cpus, strict=True)]

    def _make_store(self, instruction: StartWorkers) -> AgentStore | None:
        """What hosts torch's store; None where nobody asked for it, or another node does."""
        if not self.config.agent_store or instruction.node_rank != 0:
            return None
        from rankspawn.workers.agent_store import AgentStore

        port = instruction.nodes[0].ports[0]
        return AgentStore(self.host, port, is_shared=self.config.spans_machines)

    def _plan_ipu(self) -> list[ProgramSpec]:
        from shutil import which

        from rankspawn.launch.controllers.ipu import MISSING_POPRUN, plan_ipu

        poprun = which("poprun")
        if poprun is None:
            raise FileNotFoundError(MISSING_POPRUN)
        return plan_ipu(self.config, os.environ, poprun)

    def _announce(self, specs: Sequence[ProgramSpec], instruction: StartWorkers) -> None:
        """Say what was started."""
        from rankspawn.launch.summary import count_workers

        where = ""
        if self.config.spans_machines:
            where = f"node {instruction.node_rank} of {len(instruction.nodes)}: "
        logger.info("%s%s, logs in %s", where, count_workers(len(specs)), self._logs.path)
        for spec in specs:
            # Only what we set ourselves: the rest of the environment is nobody else's business.
            users = dict(self.config.env)
            variables = " ".join(
                f"{name}={value}"
                for name, value in sorted(spec.env.items())
                if value is not None and name not in users
            )
            logger.debug("%s: %s\n  %s", name_of(spec), " ".join(spec.command), variables)


def _warn_about_cpu(resources: Resources) -> None:
    """Say that there are no devices, if nobody said that this is meant."""
    if resources.warning:
        logger.warning("%s", resources.warning)


def _check_torch() -> None:
    from rankspawn.workers.agent_store import check_torch

    try:
        check_torch()
    except ImportError as error:
        raise UsageError(f"--agent_store: {error}") from error


def bound_cpus(how: str, resources: Resources) -> list[frozenset[int]]:
    """The CPUs of each worker.

    Raises:
        UsageError: There are not enough of them.
    """
    from rankspawn.plan.numa import cpus_of_ranks

    try:
        return cpus_of_ranks(how, resources)
    except ValueError as error:
        raise UsageError(f"--numa_binding {how}: {error}") from error


class _TemporaryFolder:
    """A folder among the temporary files, removed with what is in it."""

    def __init__(self, name: str) -> None:
        import tempfile

        self.path = os.path.join(tempfile.gettempdir(), name)
        os.mkdir(self.path, 0o700)

    def close(self) -> None:
        """Remove it; a second call does nothing."""
        import shutil

        shutil.rmtree(self.path, ignore_errors=True)
