"""One node of a job on several: its place at the meeting, its ports, its plan, its pods."""

from __future__ import annotations

import logging
import os
import sys
import threading
from dataclasses import replace

from rankspawn.launch.controllers import plan_programs, ports_needed
from rankspawn.launch.controllers.resources import resolve_job
from rankspawn.launch.controllers.role_options import check_roles, role_terms
from rankspawn.launch.flags import UsageError
from rankspawn.launch.meeting import command_for_others, plan_meeting
from rankspawn.launch.pod import Pod
from rankspawn.launch.preparing import TemporaryFolder, announce, make_log_folder, warn_about_cpu
from rankspawn.launch.rendezvous.addresses import AddressError, read_master
from rankspawn.launch.rendezvous.job_state import Policy
from rankspawn.launch.rendezvous.lease_times import LeaseTimes
from rankspawn.launch.rendezvous.opening import Opened, open_store
from rankspawn.launch.rendezvous.session import Session
from rankspawn.launch.rendezvous.tokens import Token, TokenError, find_token, given_token, new_token
from rankspawn.machine import RealMachine
from rankspawn.plan.ports import HeldPorts
from rankspawn.plan.topology import is_loopback, join
from rankspawn.workers.wakeup import join_patiently

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankspawn.descriptors import Closable
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.launch.rendezvous.decisions import StartWorkers
    from rankspawn.workers.follow import LogFollower

__all__ = ["ManyMachines"]

logger = logging.getLogger(__name__)


class ManyMachines:
    """Meets the other nodes, and starts the programs of this one whenever they agree to.

    Args:
        config: What was asked for.
        follower: Shows what belongs on the terminal.

    Raises:
        UsageError: The options contradict each other or this machine.
    """

    def __init__(self, config: LaunchConfig, follower: LogFollower) -> None:
        if config.run_mode == "ipu":
            raise UsageError(
                "`ipu` and several nodes exclude each other: poprun itself starts the processes "
                "on all of --hosts; leave --nnodes out"
            )
        if config.run_mode != "collective":
            check_roles(config)
        self._config = replace(config, log_dir=os.path.abspath(config.log_dir))
        self._follower = follower
        self._machine = RealMachine()
        self._meeting = plan_meeting(config, self._machine)
        self._job = resolve_job(config, os.environ, self._machine)
        warn_about_cpu(self._job)
        make_log_folder(self._config.log_dir)
        self._held: HeldPorts | None = None
        self._host = ""
        self._started = False

    @property
    def host(self) -> str:
        """The address at which the others reach this node; known once it met them."""
        return self._host

    @property
    def goes_on_after_failures(self) -> bool:
        """A failed worker is not the end of the job."""
        return self._config.elastic_level >= 0

    def meet(self, argv: Sequence[str]) -> Session:
        """Begin to take part in the job.

        Args:
            argv: What was typed, for the command that others are to type.

        Raises:
            UsageError: A flag's address cannot be meant, or there is no token.
            OSError: A port is in use.
        """
        meeting, config = self._meeting, self._config
        policy = self._policy()
        try:
            token = self._token()
            opened = _hearing_signals(lambda: self._open(token, policy))
        except (AddressError, TokenError, ImportError) as error:
            raise UsageError(str(error)) from error
        try:
            self._host = opened.host
            ports = self._hold_ports()
            self._tell_place(opened, token, argv)
            return Session(
                opened,
                job_id=config.job_id,
                policy=policy,
                ports=ports,
                given_rank=meeting.node_rank,
            )
        except BaseException:
            opened.close()
            raise

    def start(self, order: StartWorkers, mark: str) -> Pod:
        """Start this node's programs of a generation, or none.

        Args:
            order: Which.
            mark: What they have to carry, to be killed should this node be lost.

        Raises:
            OSError: A program cannot be started.
            UsageError: What the nodes bring along does not fit together.
        """
        resources: list[Closable] = []
        keep_logs = self._started or order.restarts > 0 or not self._config.log_overwrite
        try:
            specs = self._plan(order, resources)
            where = f"node {order.node_rank} of {len(order.nodes)}: "
            announce(specs, self._config.log_dir, where=where)
            pod = Pod(
                specs,
                log_dir=self._config.log_dir,
                keep_logs=keep_logs,
                grace=self._config.grace_period,
                follower=self._follower,
                resources=resources,
                outer_mark=mark,
            )
        except BaseException:
            for one in resources:
                one.close()
            raise
        self._started = True
        return pod

    def fresh_ports(self) -> tuple[int, ...] | None:
        """Other ports for the next generation; None where they are fixed.

        What a last message of the old generation reaches must not be the new one.
        """
        if self._config.servers or self._has_fixed_ports:
            return None
        before = self._held
        ports = self._hold_ports()
        if before is not None:
            before.close()
        return ports

    def close(self) -> None:
        """Give the ports back; a second call does nothing."""
        if self._held is not None:
            self._held.close()

    @property
    def _has_fixed_ports(self) -> bool:
        """They follow from the flags, as those of listed nodes do under Paddle's launcher."""
        return "start_port" in self._config.given or len(self._config.ips) > 1

    def _policy(self) -> Policy:
        config, meeting = self._config, self._meeting
        lease = config.node_timeout
        return Policy(
            min_nodes=meeting.min_nodes,
            max_nodes=meeting.max_nodes,
            max_restart=config.max_restart,
            elastic_level=config.elastic_level,
            elastic_timeout=config.elastic_timeout,
            lease_seconds=lease,
            settle_seconds=min(1.0, 0.1 * lease),
            answer_seconds=min(3.0, 0.3 * lease),
            expected=meeting.hosts,
            roles=role_terms(config),
        )

    def _token(self) -> Token | None:
        """The job's secret; None with etcd, which has none."""
        master = self._meeting.master
        if master is not None:
            return None if read_master(master).is_etcd else find_token(os.environ)
        return given_token(os.environ) or new_token()

    def _open(self, token: Token | None, policy: Policy) -> Opened:
        meeting = self._meeting
        try:
            return open_store(
                meeting.master,
                secret="" if token is None else token.secret,
                job_id=self._config.job_id,
                machine=self._machine,
                node_rank=meeting.node_rank,
                host=meeting.host,
                max_nodes=meeting.max_nodes,
                expected=meeting.hosts,
                answer_within=LeaseTimes(policy.lease_seconds).answer_within,
            )
        except OSError as error:
            raise AddressError(error.strerror or str(error)) from error

    def _tell_place(self, opened: Opened, token: Token | None, argv: Sequence[str]) -> None:
        if token is not None:
            _warn_about_loopback(opened)
        if self._meeting.master is not None:
            serves = "; this node serves it" if opened.master is not None else ""
            logger.info("the nodes meet at %s%s", opened.address, serves)
            return
        assert token is not None, "an embedded master has one"
        program = os.path.basename(sys.argv[0])
        if program.endswith(".py"):
            program = f"{os.path.basename(sys.executable)} -m rankspawn.launch"
        shown = token.secret if token.is_new else ""
        command = command_for_others(
            argv,
            os.environ,
            program=program,
            master=opened.address,
            config=self._config,
            token=shown,
        )
        hint = "" if shown else f" (with this node's {token.source})"
        # At every level: without it the job cannot begin.
        logger.critical("on each of the other nodes, type%s:\n  %s", hint, command)

    def _hold_ports(self) -> tuple[int, ...]:
        """What this node brings along: a port for each process, and one for Paddle's store."""
        config = self._config
        if config.servers:
            from rankspawn.launch.controllers.roles import listed_nodes

            nodes, me = listed_nodes(config, self._machine)
            self._held = HeldPorts.fixed(nodes[me].ports, nodes[me].host)
            return ()
        count = ports_needed(config, self._job) + (config.run_mode == "collective")
        if not self._has_fixed_ports:
            self._held = HeldPorts(count, self._host)
            return self._held.ports
        first = config.start_port
        try:
            self._held = HeldPorts.fixed(range(first, first + count), self._host)
        except OSError as error:
            # It is written for spawn's option.
            text = (error.strerror or str(error)).replace("started_port", "--start_port")
            raise OSError(error.errno, text) from error
        return self._held.ports

    def _plan(self, order: StartWorkers, resources: list[Closable]) -> list[ProgramSpec]:
        nodes, master, gloo_path = list(order.nodes), "", ""
        if self._config.run_mode == "collective":
            master = join(nodes[0].host, nodes[0].ports[-1])
            nodes = [replace(node, ports=node.ports[:-1]) for node in nodes]
        else:
            name = f"rankspawn-gloo-{order.run_id}-{order.generation}-{os.getpid()}"
            folder = TemporaryFolder(name)
            resources.append(folder)
            gloo_path = folder.path
        return plan_programs(
            self._config,
            self._job,
            nodes,
            order.node_rank,
            master=master,
            gloo_path=gloo_path,
            run_id=order.run_id,
            restart_count=order.restarts,
        )


def _warn_about_loopback(opened: Opened) -> None:
    if is_loopback(read_master(opened.address).host):
        where, flag = opened.address, "--master"
    elif is_loopback(opened.host):
        where, flag = opened.host, "--host"
    else:
        return
    logger.warning(
        "%s can be reached on this machine only: for nodes on others, name an address at which "
        "they reach this one with %s",
        where,
        flag,
    )


def _hearing_signals(call: Callable[[], Opened]) -> Opened:
    """Make a call that may wait for a name service, during which Python acts on no signal."""
    found: list[Opened] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # it is raised again in the thread that waits
            failed.append(error)

    thread = threading.Thread(target=run, name="rankspawn-opening", daemon=True)
    thread.start()
    join_patiently(thread, None)
    if failed:
        raise failed[0]
    return found[0]
