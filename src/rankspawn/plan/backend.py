"""Which kind of device a job runs on, and over which backend.

Pure: takes the environment as a mapping and the machine as a protocol.

With ``backend="auto"`` an option that names devices decides; else a mask that is set and
shows some; else devices that are found on the machine, unless a mask hides them; else it
is the CPU, with a warning that says why.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.plan.devices import Visible, see_devices
from rankspawn.plan.vendors import VENDORS

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rankspawn.options import SpawnOptions
    from rankspawn.plan.facts import Machine

__all__ = ["Choice", "choose_backend", "selection_of"]

_DEVICE_OF = {"nccl": "gpu", "bkcl": "xpu", "gloo": "cpu"}
_BACKEND_OF = {device: backend for backend, device in _DEVICE_OF.items()}


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


def selection_of(options: SpawnOptions) -> tuple[str, tuple[str, ...] | None]:
    """The option that selects devices, and the ids it holds, if any."""
    for name in ("gpus", "xpus", "devices", "selected_devices"):
        ids = getattr(options, name)
        if ids is not None:
            return name, ids
    return "devices", None


def choose_backend(options: SpawnOptions, environ: Mapping[str, str], machine: Machine) -> Choice:
    """The device type and the backend of a job.

    Raises:
        ValueError: The backend cannot use the devices that are selected, or a custom
            device is wanted and nothing says which.
    """
    named = _named_type(options)
    if options.backend == "auto":
        if named is None:
            choice = _look_around(environ, machine)
            without = choice.device_type == "cpu" and options.selected_devices is not None
            # Looking for them among GPUs ends in an error that says why there are none.
            return Choice("nccl", "gpu") if without else choice
        choice = Choice(_BACKEND_OF.get(named, "xccl"), named)
    else:
        device_type = named or _DEVICE_OF.get(options.backend) or _custom_type(environ, machine)
        choice = Choice(options.backend, device_type)
    _check_match(choice, options)
    return choice


def _named_type(options: SpawnOptions) -> str | None:
    if options.gpus is not None:
        return "gpu"
    if options.xpus is not None:
        return "xpu"
    return options.device_type


def _check_match(choice: Choice, options: SpawnOptions) -> None:
    expected = _BACKEND_OF.get(choice.device_type, "xccl")
    option, ids = selection_of(options)
    if choice.backend != expected:
        cause = (
            f"device_type={choice.device_type!r}" if ids is None or option == "devices" else option
        )
        raise ValueError(
            f"{cause} cannot be used with backend={choice.backend!r}: "
            f"it needs backend={expected!r} or 'auto'"
        )
    if choice.device_type == "cpu" and ids is not None:
        raise ValueError(f"{option} cannot be used with device_type='cpu', which has no ids")


def _look_around(environ: Mapping[str, str], machine: Machine) -> Choice:
    """What the masks, and then the machine, have to offer."""
    seen = _see_all(VENDORS, environ, machine)
    for visible in (*(v for v in seen if v.set_by_mask), *seen):
        if visible.devices:
            device_type = visible.device_type
            return Choice(_BACKEND_OF.get(device_type, "xccl"), device_type)
    hidden = [visible.source for visible in seen if visible.set_by_mask]
    why = f"{hidden[0]} shows no device" if hidden else "no GPU or other accelerator was found"
    return Choice(
        "gloo",
        "cpu",
        f"the workers run on the CPU, over gloo: {why}. "
        "If this is what you want, say so with backend='gloo'",
    )


def _see_all(types: Iterable[str], environ: Mapping[str, str], machine: Machine) -> list[Visible]:
    """The devices of these types, with CUDA's mask taken for what it is: a mask of GPUs."""
    # Cards that pose as GPUs obey CUDA's mask too, but its presence does not reveal them.
    others = {k: v for k, v in environ.items() if k != "CUDA_VISIBLE_DEVICES"}
    return [see_devices(one, environ if one == "gpu" else others, machine) for one in types]


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
