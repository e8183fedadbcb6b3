"""From nodes and configuration to the programs of this node: one module per kind of job.

Pure: values in, values out; nothing here reads the environment, opens a socket or starts
anything.
"""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.plan.devices import DeviceRequest
from rankspawn.plan.resources import find_resources, masked_type

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import Node, ProgramSpec
    from rankspawn.plan.devices import Device, Machine
    from rankspawn.plan.resources import Resources


def plan_programs(
    config: LaunchConfig,
    resources: Resources,
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
        resources: The devices and CPUs of this node, from ``resolve_job``.
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
            config, resources, nodes, me, master=master, run_id=run_id, restart_count=restart_count
        )
    if config.run_mode == "ps":
        from rankspawn.launch.controllers.ps import plan_ps

        return plan_ps(config, resources, nodes, me, gloo_path=gloo_path)
    if config.run_mode == "ps-heter":
        from rankspawn.launch.controllers.heter import plan_heter

        return plan_heter(config, resources, nodes, me, gloo_path=gloo_path)
    raise ValueError(f"run_mode={config.run_mode!r} has no programs of its own")


def ports_needed(config: LaunchConfig, resources: Resources) -> int:
    """How many ports each node brings along; none where the endpoints were listed."""
    if config.run_mode == "collective":
        return resources.nprocs
    if config.run_mode in ("ps", "ps-heter"):
        from rankspawn.launch.controllers.role_options import counts_of

        # One more for gloo. Only node 0's is used, but which node that is, is not known yet.
        return 0 if config.servers else counts_of(config).total + 1
    return 0


def resolve_job(config: LaunchConfig, environ: Mapping[str, str], machine: Machine) -> Resources:
    """The devices of this node, one per process.

    A collective job uses the devices that are selected, or else all that are visible. The
    processes of a parameter server's job use those that are selected, by a flag or by a mask, and
    no others: mostly they run on the CPU of a machine that has GPUs for other things.

    Raises:
        UsageError: A selected device is not there, or there are fewer devices than processes.
    """
    try:
        return find_resources(_device_request(config, environ, machine), environ, machine)
    except (RuntimeError, ValueError) as error:
        raise UsageError(str(error)) from error


def share_out(devices: Sequence[Device], count: int, *, who: str) -> list[tuple[Device, ...]]:
    """The devices in ``count`` equal parts, in order; empty ones if there are no devices.

    Args:
        devices: What there is.
        count: How many processes want some.
        who: What these are, for the message.

    Raises:
        UsageError: The parts would not be equal.
    """
    if not devices:
        return [()] * count
    each, rest = divmod(len(devices), count)
    if rest or not each:
        raise UsageError(
            f"{len(devices)} devices cannot be shared out among {count} {who} of this node: "
            f"select as many with --devices, or a multiple"
        )
    return [tuple(devices[n * each : (n + 1) * each]) for n in range(count)]


def hand_out(devices: Sequence[Device], count: int) -> list[tuple[Device, ...]]:
    """One device for each of ``count`` processes, from the first one again where they are few."""
    return [(devices[n % len(devices)],) for n in range(count)]


def _device_request(
    config: LaunchConfig, environ: Mapping[str, str], machine: Machine
) -> DeviceRequest:
    nprocs, backend, device_type = config.nproc_per_node or -1, "auto", config.device_type
    own = config.own_devices
    if config.run_mode != "collective":
        nprocs = -1
        if config.devices is None and device_type is None and config.run_mode == "ps":
            device_type = masked_type(environ, machine)
            # Paddle's documentation has scripts that use the first visible GPU, and its launcher
            # shows each trainer one.
            own = device_type is not None
        if config.devices is None and device_type in (None, "cpu"):
            nprocs, backend, device_type = 1, "gloo", None
    return DeviceRequest(
        own=own,
        shared=config.share_devices,
        nprocs=nprocs,
        backend=backend,
        device_type=device_type,
        ids=config.devices,
        ids_name=config.devices_name,
        nprocs_name="--nproc_per_node",
        type_name="--device_type",
        cpu_name="--device_type cpu",
        share_name="--share_devices",
    )
