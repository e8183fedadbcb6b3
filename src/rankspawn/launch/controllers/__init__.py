"""From nodes and configuration to the programs of this node: one module per kind of job.

Pure: values in, values out; nothing here reads the environment, opens a socket or starts
anything.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import Node, ProgramSpec
    from rankspawn.plan.job import Job

__all__ = ["plan_programs", "ports_needed"]


def plan_programs(
    config: LaunchConfig,
    job: Job,
    nodes: Sequence[Node],
    me: int,
    *,
    master: str,
    gloo_path: str,
    run_id: str,
    restart_count: int,
) -> list[ProgramSpec]:
    """The programs that this node starts, in the order in which to start them.

    Not for IPUs: there ``poprun`` starts the processes, see ``ipu.plan_ipu``.

    Args:
        config: What was asked for; its ``log_dir`` is handed to the programs as it stands, so
            make it absolute.
        job: The devices and CPUs of this node, from ``resources.resolve_job``.
        nodes: All nodes of the job, with as many ports as ``ports_needed`` says, or with those
            of ``roles.listed_nodes`` where the endpoints were listed.
        me: The rank of this node.
        master: ``host:port`` on node 0 for Paddle's store: a port that is held, but that nobody
            listens on, so not the one at which the nodes met. Collective only.
        gloo_path: A folder for gloo. Parameter servers only.
        run_id: A name for the job that no other one has.
        restart_count: How often the job was started before.

    Raises:
        UsageError: The nodes or the options contradict each other.
    """
    # Imported when it is known which one is needed: a start is mostly imports.
    if config.run_mode == "collective":
        from rankspawn.launch.controllers.collective import plan_collective

        return plan_collective(
            config, job, nodes, me, master=master, run_id=run_id, restart_count=restart_count
        )
    if config.run_mode == "ps":
        from rankspawn.launch.controllers.ps import plan_ps

        return plan_ps(config, job, nodes, me, gloo_path=gloo_path)
    if config.run_mode == "ps-heter":
        from rankspawn.launch.controllers.heter import plan_heter

        return plan_heter(config, job, nodes, me, gloo_path=gloo_path)
    raise ValueError(f"run_mode={config.run_mode!r} has no programs of its own")


def ports_needed(config: LaunchConfig, job: Job) -> int:
    """How many ports each node brings along; none where the endpoints were listed."""
    if config.run_mode == "collective":
        return job.nprocs
    if config.run_mode in ("ps", "ps-heter"):
        from rankspawn.launch.controllers.role_options import counts_of

        # One more for gloo. Only node 0's is used, but which node that is, is not known yet.
        return 0 if config.servers else counts_of(config).total + 1
    return 0
