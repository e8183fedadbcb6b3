"""Where and as whom this node joins the others, what it tells them to type, and its session."""

from __future__ import annotations

import logging
import os
import select
import sys
import threading
import time

from rankspawn.interrupts import ImpatientError, join_patiently
from rankspawn.launch.controllers.role_options import check_roles, role_terms
from rankspawn.launch.controllers.roles import listed_nodes, own_place
from rankspawn.launch.flags import UsageError, exit_code_of_error
from rankspawn.launch.other_nodes import words_for_others
from rankspawn.launch.rendezvous.etcd_access import EtcdAccess
from rankspawn.launch.rendezvous.fence import LeaseTimes
from rankspawn.launch.rendezvous.job_state import JobTerms
from rankspawn.launch.rendezvous.session import SharedSession
from rankspawn.launch.rendezvous.stores import AddressError, OpenStore, open_store, read_master
from rankspawn.launch.rendezvous.tokens import Token, TokenError, find_token, given_token, new_token
from rankspawn.launch.session import Cause, JobOver
from rankspawn.plan.topology import is_loopback, join, split_endpoint
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankspawn.interrupts import Signals
    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.node import ThisNode
    from rankspawn.plan.devices import Machine

logger: logging.Logger = logging.getLogger(__name__)

# Launchers of one machine are there after a moment; on several, each would wait at its own
# loopback address for ever.
_LOOPBACK_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class JoinPlan:
    """How the nodes of a job find each other.

    Attributes:
        master: As ``--master`` has it; None to serve one here and tell the others.
        node_rank: The rank of this node; -1 has it assigned.
        host: The address of this node; None for the one that the others see.
        hosts: The addresses of all nodes by rank, where they were listed.
        min_nodes: The fewest.
        max_nodes: The most.
    """

    master: str | None
    node_rank: int
    host: str | None
    hosts: tuple[str, ...]
    min_nodes: int
    max_nodes: int


def plan_join(config: LaunchConfig, machine: Machine) -> JoinPlan:
    """The way to the other nodes that the flags describe.

    Nodes whose addresses are listed know their ranks, and without ``--master`` they meet at the
    first one.

    Raises:
        UsageError: The flags contradict each other, or this machine.
    """
    if config.run_mode == "ipu":
        raise UsageError(
            "`ipu` and several nodes exclude each other: poprun itself starts the processes "
            "on all of --hosts; leave --nnodes out"
        )
    if config.run_mode != "collective":
        check_roles(config)
    if config.servers:
        nodes, me = listed_nodes(config, machine)
        hosts = [node.host for node in nodes]
        return _plan_of_listed(config, hosts, me, len(hosts), len(hosts))
    if len(config.ips) > 1:
        me = own_place(list(config.ips), config.host, machine, flags="--ips")
        return _plan_of_listed(config, config.ips, me, config.min_nodes, config.max_nodes)
    return JoinPlan(
        config.master, config.node_rank, config.host, (), config.min_nodes, config.max_nodes
    )


def _plan_of_listed(
    config: LaunchConfig, hosts: Sequence[str], me: int, low: int, high: int
) -> JoinPlan:
    if config.node_rank not in (-1, me):
        raise UsageError(
            f"--rank {config.node_rank} contradicts the list of nodes ({', '.join(hosts)}), in "
            f"which this one, {hosts[me]}, has rank {me}: leave --rank out"
        )
    master = config.master or join(hosts[0], _free_port(config, hosts[0]))
    return JoinPlan(master, me, hosts[me], tuple(hosts), low, high)


def _free_port(config: LaunchConfig, host: str) -> int:
    """A port that all nodes find by themselves, and that no process of the job was given."""
    listed = [
        split_endpoint(text) for text in (*config.servers, *config.trainers, *config.heter_workers)
    ]
    taken = {config.gloo_port, *(port for where, port in listed if where == host)}
    below = range(config.start_port - 1, 0, -1)
    return next(port for port in below if port not in taken)


def command_for_others(
    argv: Sequence[str],
    environ: Mapping[str, str],
    *,
    program: str,
    master: str,
    config: LaunchConfig,
    token: str,
) -> str:
    """What to type on the other nodes: all that this one was told, but for what is its own.

    Args:
        argv: What was typed on this one.
        environ: Its environment, whose variables the others may not have.
        program: How this launcher was called.
        master: Where this node serves.
        config: What was asked for.
        token: The job's token to show, or empty if the other nodes have it.
    """
    from shlex import join as quote

    nodes = f"{config.min_nodes}:{config.max_nodes}" if config.is_elastic else config.max_nodes
    same, words = words_for_others(argv, environ, config.given)
    flags = ["--master", master, "--nnodes", str(nodes), *same]
    secret = f"RANKSPAWN_JOB_TOKEN={token} " if token else ""
    return f"{secret}{program} {quote([*flags, *words])}"


def begin_session(plan: JoinPlan, here: ThisNode, argv: Sequence[str]) -> SharedSession:
    """Begin to take part in the job; the session is the caller's to close.

    Args:
        plan: Where and as whom.
        here: This node.
        argv: What was typed, for the command that others are to type.

    Raises:
        UsageError: A flag's address cannot be meant, or there is no token.
        OSError: A port is in use.
    """
    terms = _job_terms(plan, here.config)
    try:
        token = _token(plan)
        opened = _hearing_signals(lambda: _open(plan, here.config, here.machine, token, terms))
    except (AddressError, TokenError, ImportError) as error:
        raise UsageError(str(error)) from error
    try:
        ports = here.hold_ports(opened.host)
        if token is not None:
            _warn_about_loopback(opened, terms.join_timeout)
        if token is None or plan.master is not None:
            serves = "; this node serves it" if opened.master is not None else ""
            patience = f", within {terms.join_timeout:g} s" if terms.min_nodes > 1 else ""
            logger.info("the nodes meet at %s%s%s", opened.address, patience, serves)
        else:
            _tell_place(opened.address, token, here.config, argv)
        return SharedSession(
            opened,
            job_id=here.config.job_id,
            terms=terms,
            ports=ports,
            given_rank=plan.node_rank,
        )
    except BaseException:
        opened.close()
        raise


def tell_inability(
    plan: JoinPlan, config: LaunchConfig, machine: Machine, error: Exception, signals: Signals
) -> None:
    """Have the other nodes end with the reason why this one cannot take part.

    Takes no longer than ``--elastic_timeout``, and a signal ends it.

    Args:
        plan: Where they meet.
        config: What was asked for.
        machine: This one.
        error: The reason.
        signals: What the launcher receives.
    """
    terms = _job_terms(plan, config)
    who = config.host or plan.host or os.uname().nodename
    cause = Cause(
        "unable", f"the node on {who} cannot take part: {error}", exit_code_of_error(error)
    )
    try:
        with signals.impatient(at_first=True):
            opened = _hearing_signals(lambda: _open(plan, config, machine, _token(plan), terms))
    except (ValueError, OSError, ImportError, ImpatientError):
        return  # the others cannot be reached, or need not be
    logger.warning("%s; the other nodes are told", error)
    session = SharedSession(
        opened,
        job_id=config.job_id,
        terms=terms,
        ports=(),
        given_rank=plan.node_rank,
        unable=cause,
    )
    try:
        with signals.impatient(at_first=True):
            _wait_for_end(session, terms.elastic_timeout)
            session.close()
    except ImpatientError:
        pass
    finally:
        session.close(wait=False)


def _wait_for_end(session: SharedSession, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        select.select([session.fileno()], [], [], left)
        if any(isinstance(instruction, JobOver) for instruction in session.take()):
            return


def _job_terms(plan: JoinPlan, config: LaunchConfig) -> JobTerms:
    lease = config.node_timeout
    return JobTerms(
        min_nodes=plan.min_nodes,
        max_nodes=plan.max_nodes,
        max_restart=config.max_restart,
        elastic_level=config.elastic_level,
        elastic_timeout=config.elastic_timeout,
        lease_seconds=lease,
        settle_seconds=min(1.0, 0.1 * lease),
        answer_seconds=min(3.0, 0.3 * lease),
        expected=plan.hosts,
        roles=role_terms(config),
        join_timeout=_join_seconds(plan, config),
    )


def _join_seconds(plan: JoinPlan, config: LaunchConfig) -> float:
    """How long the fewest nodes may take to come; not long where only one machine's can."""
    if plan.master is None or plan.hosts or "join_timeout" in config.given:
        return config.join_timeout
    try:
        master = read_master(plan.master)
    except AddressError:  # told when it is opened
        return config.join_timeout
    is_own = not master.is_etcd and is_loopback(master.host)
    return min(config.join_timeout, _LOOPBACK_SECONDS) if is_own else config.join_timeout


def _token(plan: JoinPlan) -> Token | None:
    """The job's secret; None with etcd, which has none."""
    if plan.master is not None:
        return None if read_master(plan.master).is_etcd else find_token(os.environ)
    return given_token(os.environ) or new_token()


def _open(
    plan: JoinPlan, config: LaunchConfig, machine: Machine, token: Token | None, terms: JobTerms
) -> OpenStore:
    try:
        return open_store(
            plan.master,
            secret="" if token is None else token.secret,
            job_id=config.job_id,
            machine=machine,
            node_rank=plan.node_rank,
            host=plan.host,
            max_nodes=plan.max_nodes,
            expected=plan.hosts,
            answer_within=LeaseTimes(terms.lease_seconds).answer_within,
            etcd=_certificates(config),
        )
    except OSError as error:
        raise AddressError(error.strerror or str(error)) from error


def _certificates(config: LaunchConfig) -> EtcdAccess:
    return EtcdAccess(
        ca=config.etcd_ca or "", cert=config.etcd_cert or "", key=config.etcd_key or ""
    )


def _tell_place(address: str, token: Token, config: LaunchConfig, argv: Sequence[str]) -> None:
    """Say what to type on the other nodes, where nobody has told them yet."""
    program = os.path.basename(sys.argv[0])
    if program.endswith(".py"):
        program = f"{os.path.basename(sys.executable)} -m rankspawn.launch"
    shown = token.secret if token.is_new else ""
    command = command_for_others(
        argv, os.environ, program=program, master=address, config=config, token=shown
    )
    hint = "" if shown else f" (with this node's {token.source})"
    # At every level: without it the job cannot begin.
    logger.critical("on each of the other nodes, type%s:\n  %s", hint, command)


def _warn_about_loopback(opened: OpenStore, seconds: float) -> None:
    if is_loopback(read_master(opened.address).host):
        where, flag = opened.address, "--master"
    elif is_loopback(opened.host):
        where, flag = opened.host, "--host"
    else:
        return
    logger.warning(
        "%s can be reached on this machine only: for nodes on others, name an address at which "
        "they reach this one with %s; the nodes of this machine have %g s to come (--join_timeout)",
        where,
        flag,
        seconds,
    )


def _hearing_signals(call: Callable[[], OpenStore]) -> OpenStore:
    """Make a call that may wait for a name service, during which Python acts on no signal."""
    found: list[OpenStore] = []
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
