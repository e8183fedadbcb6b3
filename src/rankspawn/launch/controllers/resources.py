"""What the processes of this node may use: devices, CPUs, and the backend that goes with them.

Pure, as ``plan`` is: the environment comes as a mapping and the machine as a protocol.
"""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.options import SpawnOptions
from rankspawn.plan.environ import Variables, device_env
from rankspawn.plan.job import resolve
from rankspawn.plan.vendors import vendor_of

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.plan.devices import Device, Visible
    from rankspawn.plan.facts import Machine
    from rankspawn.plan.job import Job

__all__ = ["devices_env", "resolve_job", "share_out"]


def resolve_job(config: LaunchConfig, environ: Mapping[str, str], machine: Machine) -> Job:
    """The devices of this node, one per process.

    A collective job uses the devices that are selected, or else all that are visible. The
    processes of a parameter server's job use those that are selected and no others, as under
    Paddle's launcher: mostly they run on the CPU of a machine that has GPUs for other things.

    Raises:
        UsageError: A selected device is not there, or there are fewer devices than processes.
    """
    if config.run_mode == "collective":
        nprocs = -1 if config.nproc_per_node is None else config.nproc_per_node
        options = _options(config)
    else:
        chosen = config.devices is not None or config.device_type not in (None, "cpu")
        nprocs = -1 if chosen else 1
        options = _options(config) if chosen else SpawnOptions(backend="gloo")
    try:
        job = resolve(nprocs, options, environ, machine)
    except (RuntimeError, ValueError) as error:
        raise UsageError(_in_words_of_flags(str(error))) from error
    if config.devices is not None and not job.devices:
        raise UsageError(
            f"--devices {','.join(config.devices)} selects devices, but this machine shows none: "
            "leave it out to run on the CPU, or name their type, such as --device_type gpu"
        )
    return job


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


def devices_env(devices: Sequence[Device], visible: Visible | None) -> Variables:
    """What a process is told about its devices; it may have none, one or several."""
    if not devices or visible is None:
        return device_env(None, None, own=False)
    env = device_env(devices[0], visible, own=False)
    if len(devices) > 1:
        flag = vendor_of(visible.device_type).flag
        env[flag] = ",".join(device.index or device.id for device in devices)
    return env


def _options(config: LaunchConfig) -> SpawnOptions:
    """The same wish as an option of ``spawn``."""
    # These two have options of their own, which the messages name.
    if config.device_type == "gpu" and config.devices is not None:
        return SpawnOptions(gpus=config.devices)
    if config.device_type == "xpu" and config.devices is not None:
        return SpawnOptions(xpus=config.devices)
    return SpawnOptions(devices=config.devices, device_type=config.device_type)


def _in_words_of_flags(message: str) -> str:
    """A message about options of ``spawn``, for somebody who wrote flags."""
    # Imported here: it is needed on the way to an error only.
    import re

    message = message.replace("backend='gloo'", "--device_type cpu")
    message = message.replace("nprocs", "--nproc_per_node")
    # The word "devices" is no option unless a value, a colon or a verdict follows.
    return re.sub(r"(?<![\w-])(gpus|xpus|devices|device_type)(?=[=:]| cannot)", r"--\1", message)
