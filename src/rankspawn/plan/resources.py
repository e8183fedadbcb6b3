"""What the ranks of this node run on: backend, devices, CPUs.

Pure: takes the environment as a mapping and the machine as a protocol.

With ``backend="auto"`` an option that names devices decides; else a mask that is set and
shows some; else devices that are found on the machine, unless a mask hides them; else it
is the CPU, with a warning that says why.
"""

from __future__ import annotations

from rankspawn.plan.devices import VENDORS, Device, DeviceRequest, Visible, assign, see_devices
from rankspawn.values import dataclass, field

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankspawn.plan.devices import Machine

_DEVICE_OF = {"nccl": "gpu", "bkcl": "xpu", "gloo": "cpu"}
_BACKEND_OF = {device: backend for backend, device in _DEVICE_OF.items()}


@dataclass(frozen=True, slots=True)
class Resources:
    """What this node has for its ranks.

    Attributes:
        nprocs: How many there are, at least 1.
        backend: ``nccl``, ``bkcl``, ``xccl`` or ``gloo``.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type.
        devices: One per rank; empty on the CPU.
        warning: What the user should be told once, if anything.
        own: Each rank sees its own device only.
        environ: The environment in which all this was found.
        visible: The devices of this type, selected or not; None on the CPU.
        cpus: How many CPUs all ranks share.
    """

    nprocs: int
    backend: str
    device_type: str
    devices: tuple[Device, ...]
    warning: str | None
    own: bool
    # It holds the user's secrets, which have no place in a log or a traceback.
    environ: Mapping[str, str] = field(repr=False)
    visible: Visible | None = field(repr=False)
    cpus: int = field(repr=False)


@dataclass(frozen=True, slots=True)
class Choice:
    """Where a job runs.

    Attributes:
        backend: ``nccl``, ``bkcl``, ``xccl`` or ``gloo``.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type.
        warning: Why it is the CPU although nobody asked for it; None otherwise.
    """

    backend: str
    device_type: str
    warning: str | None = None


def find_resources(
    request: DeviceRequest, environ: Mapping[str, str], machine: Machine
) -> Resources:
    """Backend, devices and number of this node's ranks.

    Raises:
        ValueError: The request contradicts itself, the environment or the machine.
        RuntimeError: There are fewer visible devices than ranks.
    """
    choice = choose_backend(request, environ, machine)
    visible: Visible | None = None
    devices: tuple[Device, ...] = ()
    cpus = machine.cpus()
    if choice.device_type == "cpu":
        count = _cpu_ranks(environ, cpus) if request.nprocs == -1 else request.nprocs
    else:
        visible = see_devices(choice.device_type, environ, machine)
        devices = assign(visible, request)
        count = len(devices)
    return Resources(
        nprocs=count,
        backend=choice.backend,
        device_type=choice.device_type,
        devices=devices,
        warning=choice.warning,
        own=request.own,
        environ=dict(environ),
        visible=visible,
        cpus=cpus,
    )


def wanted_type(request: DeviceRequest) -> str | None:
    """The type of devices that was asked for, by whatever option; None for whatever there is."""
    return request.device_type or _DEVICE_OF.get(request.backend)


def choose_backend(request: DeviceRequest, environ: Mapping[str, str], machine: Machine) -> Choice:
    """The device type and the backend of a job.

    Raises:
        ValueError: The backend cannot use the devices that are selected, there are none, or a
            custom device is wanted and nothing says which.
    """
    named = request.device_type
    if request.backend == "auto":
        if named is None:
            return _look_around(request, environ, machine)
        choice = Choice(_BACKEND_OF.get(named, "xccl"), named)
    else:
        device_type = wanted_type(request) or _custom_type(environ, machine)
        choice = Choice(request.backend, device_type)
    _check_match(choice, request)
    return choice


def masked_type(environ: Mapping[str, str], machine: Machine) -> str | None:
    """The type of the devices that a mask shows; None if none is set, or it hides all."""
    seen = _see_all(VENDORS, environ, machine)
    return next((v.device_type for v in seen if v.set_by_mask and v.devices), None)


def _check_match(choice: Choice, request: DeviceRequest) -> None:
    expected = _BACKEND_OF.get(choice.device_type, "xccl")
    name = request.ids_name
    if choice.backend != expected:
        has_type = request.ids is not None and name != "devices"
        cause = name if has_type else f"{request.type_name}={choice.device_type!r}"
        raise ValueError(
            f"{cause} cannot be used with backend={choice.backend!r}: "
            f"it needs backend={expected!r} or 'auto'"
        )
    if choice.device_type == "cpu" and request.ids is not None:
        raise ValueError(f"{name} cannot be used with {request.type_name}='cpu', which has no ids")


def _look_around(request: DeviceRequest, environ: Mapping[str, str], machine: Machine) -> Choice:
    """What the masks, and then the machine, have to offer."""
    seen = _see_all(VENDORS, environ, machine)
    for visible in (*(v for v in seen if v.set_by_mask), *seen):
        if visible.devices:
            device_type = visible.device_type
            return Choice(_BACKEND_OF.get(device_type, "xccl"), device_type)
    if request.ids is not None:
        raise ValueError(
            f"{request.ids_name} {','.join(request.ids)} selects devices, but this machine shows "
            f"none ({seen[0].source}): leave it out to run on the CPU, or name their type with "
            f"{request.type_name}"
        )
    hidden = [visible.source for visible in seen if visible.set_by_mask]
    why = f"{hidden[0]} shows no device" if hidden else "no GPU or other accelerator was found"
    return Choice(
        "gloo",
        "cpu",
        f"the workers run on the CPU, over gloo: {why}. "
        f"If this is what you want, say so with {request.cpu_name}",
    )


def _see_all(types: Iterable[str], environ: Mapping[str, str], machine: Machine) -> list[Visible]:
    """The devices of these types, with CUDA's mask taken for what it is: a mask of GPUs."""
    # Cards that pose as GPUs obey CUDA's mask too, but its presence does not reveal them.
    others = {k: v for k, v in environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return [see_devices(kind, environ if kind == "gpu" else others, machine) for kind in types]


def _custom_type(environ: Mapping[str, str], machine: Machine) -> str:
    """The custom device type that the environment or the machine shows."""
    types = [device_type for device_type in VENDORS if device_type not in _BACKEND_OF]
    seen = _see_all(types, environ, machine)
    for visible in (*(v for v in seen if v.set_by_mask), *seen):
        if visible.devices:
            return visible.device_type
    for name in environ:
        if name.startswith("FLAGS_selected_") and name.endswith("s"):
            device_type = name.removeprefix("FLAGS_selected_").removesuffix("s")
            if device_type and device_type not in _BACKEND_OF:
                return device_type
    raise ValueError(
        "backend='xccl' needs to know the type of device: give device_type, such as "
        f"device_type='npu' (known are {', '.join(types)}; others work with devices=...)"
    )


def _cpu_ranks(environ: Mapping[str, str], cpus: int) -> int:
    """Ranks on the CPU where nobody said how many."""
    text = environ.get("CPU_NUM", "").strip()
    if not text:
        return cpus
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise ValueError(f"CPU_NUM={text!r} must be a positive number")
    return int(text)
