"""Which devices there are, which a process can see, and which rank gets which one.

Pure: takes the environment as a mapping and the machine as a protocol.

Ids are opaque strings: ordinals (``"4"``), ``"GPU-<uuid>"``, ``"MIG-…"``. An id that the
caller writes is absolute; what a rank is told is an *index*, the place of its device among
the visible ones, because that is what frameworks count by once a mask is set.

Masks follow CUDA, as its guide and torch describe it: entries may have spaces around
them, an empty mask or ``-1`` shows nothing, an invalid entry hides itself and all after
it, a repeated entry hides everything, and ordinals do not mix with UUIDs. UUIDs may be
abbreviated as long as they stay unambiguous.

GPUs of AMD have two masks: ``ROCR_VISIBLE_DEVICES`` works below, so entries of
``HIP_VISIBLE_DEVICES`` (or ``CUDA_VISIBLE_DEVICES``, which HIP reads in its absence) are
places in what it left over. When no GPU is found that tells the vendor,
``CUDA_VISIBLE_DEVICES`` counts before both.
"""

from __future__ import annotations

from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Protocol
else:
    Protocol = object  # rankrun starts without typing


class Machine(Protocol):
    """What a plan asks of a machine, before any mask in the environment is applied.

    A seam: ``machine.RealMachine`` is the one that there is, and tests bring their own.
    """

    def device_count(self, device_type: str) -> int:
        """Number of devices of one type (``gpu``, ``xpu``, ``npu``, …); 0 if none is found."""

    def gpu_vendor(self) -> str | None:
        """``nvidia`` or ``amd``, or None when no GPU is found."""

    def cpus(self) -> int:
        """CPUs that this process may use, at least 1."""

    def addresses(self) -> frozenset[str]:
        """IP addresses of this machine's interfaces, as text."""

    def resolve(self, host: str) -> frozenset[str]:
        """IP addresses that ``host`` stands for; itself for an address, none if unknown."""


@dataclass(frozen=True, slots=True)
class Vendor:
    """One type of device.

    Attributes:
        device_type: Its name in Paddle, which is also part of ``FLAGS_selected_<type>s``.
        masks: Variables that limit what its runtime shows; the first one set counts.
            A mask renumbers: its first entry is device 0 of the process.
        nodes: Regular expression that matches one device node per device, below
            ``/dev``; empty if the kernel shows no such node.
    """

    device_type: str
    masks: tuple[str, ...] = ()
    nodes: str = ""

    @property
    def flag(self) -> str:
        """The variable that tells a rank its device."""
        return f"FLAGS_selected_{self.device_type}s"


# To support another type fully, add a line here. One that is not listed works too, as long as it is
# named: ``device_type="mychip"`` with ``devices`` or ``FLAGS_selected_mychips``.
# In the order in which ``backend="auto"`` looks for them. GPUs have two vendors with
# masks that interact, so their masks are read below and their nodes in machine.py.
# Cards that pose as GPUs to CUDA programs (iluvatar_gpu, metax_gpu) obey CUDA's mask too;
# the mask of their own comes first and is the one that reveals them.
_TABLE = (
    Vendor("gpu", ("CUDA_VISIBLE_DEVICES",)),
    Vendor("xpu", ("XPU_VISIBLE_DEVICES",), r"xpu[0-9]+"),
    Vendor("npu", ("ASCEND_RT_VISIBLE_DEVICES",), r"davinci[0-9]+"),
    Vendor("mlu", ("MLU_VISIBLE_DEVICES",), r"cambricon_dev[0-9]+"),
    Vendor("gcu", ("TOPS_VISIBLE_DEVICES",), r"gcu[0-9]+"),
    Vendor("iluvatar_gpu", ("ILUVATAR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"), r"iluvatar[0-9]+"),
    Vendor("metax_gpu", ("MACA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
    # Newer Gaudi drivers use /dev/accel/accel<n>, which other accelerators share.
    Vendor("intel_hpu", ("HABANA_VISIBLE_MODULES",), r"hl[0-9]+"),
    Vendor("sdaa", ("SDAA_VISIBLE_DEVICES",)),
    Vendor("musa", ("MUSA_VISIBLE_DEVICES",)),
    # Not xpu, which is another company's in Paddle. An entry may be a tile of a card: 0.1.
    Vendor("intel_gpu", ("ZE_AFFINITY_MASK",)),
    # The kernel shows both by nodes that stand for several of what the masks count, or that other
    # accelerators share.
    Vendor("tpu", ("TPU_VISIBLE_CHIPS",)),
    Vendor("neuron", ("NEURON_RT_VISIBLE_CORES",)),
)

VENDORS: dict[str, Vendor] = {vendor.device_type: vendor for vendor in _TABLE}


def vendor_of(device_type: str) -> Vendor:
    """What is known about ``device_type``; for an unlisted one, its name alone."""
    return VENDORS.get(device_type) or Vendor(device_type)


@dataclass(frozen=True, slots=True)
class Device:
    """One visible device.

    Attributes:
        id: Its absolute id.
        index: What a framework calls it in a process with the parent's masks; None if
            that cannot be known.
        entry: What a mask that shows this device alone has to say.
    """

    id: str
    index: str | None
    entry: str


@dataclass(frozen=True, slots=True)
class Visible:
    """The devices of one type that this process can see, and why these.

    Attributes:
        device_type: Their type.
        devices: In the order in which frameworks count them.
        variable: The mask that decided, or would decide if it were set.
        source: The same as words for messages, with its value.
        masks: Variables to set, in order to show a rank one device only.
        set_by_mask: Whether a mask was set, even one that shows nothing.
    """

    device_type: str
    devices: tuple[Device, ...]
    variable: str
    source: str
    masks: tuple[str, ...]
    set_by_mask: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRequest:
    """What was asked for, and what messages call it: ``spawn`` has options, ``rankrun`` flags.

    Attributes:
        nprocs: Ranks on this node; -1 for one per visible device, or per CPU.
        backend: ``auto``, ``nccl``, ``bkcl``, ``xccl`` or ``gloo``.
        device_type: ``gpu``, ``xpu``, ``cpu`` or a custom type; None for whatever there is.
        ids: The devices that are selected; None for the first ones.
        own: Each rank is to see its own device only.
        shared: Several ranks may have the same device; they take turns where devices are fewer.
        ids_name: What selects devices.
        nprocs_name: What says how many ranks there are.
        type_name: What says the type of the devices.
        cpu_name: What to write in order to run on the CPU.
        share_name: What to write in order to share devices.
    """

    nprocs: int = -1
    backend: str = "auto"
    device_type: str | None = None
    ids: tuple[str, ...] | None = None
    own: bool = False
    shared: bool = False
    ids_name: str = "devices"
    nprocs_name: str = "nprocs"
    type_name: str = "device_type"
    cpu_name: str = "backend='gloo'"
    share_name: str = "share_devices=True"


def parse_mask(text: str, *, count: int = 0, mixed: bool = False) -> tuple[str, ...]:
    """The ids that a mask shows.

    Args:
        text: The variable's value.
        count: Devices on the machine: ordinals from there on are invalid. 0 if unknown.
        mixed: Whether ordinals and UUIDs may stand side by side.
    """
    ids: list[str] = []
    for entry in text.split(","):
        id_ = _id_of(entry.strip())
        if id_ is None or (count and id_.isdecimal() and int(id_) >= count):
            break
        if ids and not mixed and _kind(id_) != _kind(ids[0]):
            break
        if id_ in ids:
            return ()
        ids.append(id_)
    return tuple(ids)


def see_devices(device_type: str, environ: Mapping[str, str], machine: Machine) -> Visible:
    """The devices of one type that a process with this environment sees."""
    count = machine.device_count(device_type)
    lower, uppers = _mask_names(device_type, environ, machine)
    layers = [name for name in (lower, *uppers[:1]) if name in environ]
    devices: tuple[Device, ...] | None = None
    for name in layers:
        text = _expanded(environ[name]) if name == _NEURON else environ[name]
        devices = _masked(devices, text, count, mixed=name == _ROCR)
    flag = vendor_of(device_type).flag
    if device_type not in _WITHOUT_FLAG_MASK and flag in environ:
        devices = _flagged(devices, environ[flag], count)
        layers.append(flag)
    masks = uppers if uppers and (uppers[0] in environ or lower not in environ) else (lower,)
    variable = layers[-1] if layers else (masks[0] or flag)
    return Visible(
        device_type=device_type,
        devices=_numbered(count) if devices is None else devices,
        variable=variable,
        source=_source(layers, environ, variable, count),
        masks=tuple(name for name in masks if name),
        set_by_mask=bool(layers),
    )


def assign(visible: Visible, request: DeviceRequest) -> tuple[Device, ...]:
    """One device for each of this node's ranks.

    Args:
        visible: What there is to give out.
        request: How many, and which.

    Raises:
        RuntimeError: There are fewer visible devices than ranks.
        ValueError: The selection has another length, or names a device that is not visible.
    """
    if request.own and not visible.masks:
        raise ValueError(
            f"device_visibility='own' is not possible for device_type={visible.device_type!r}: "
            "no variable is known that would hide the other devices"
        )
    if request.ids is None:
        return _first(visible, request)
    name, nprocs, listed = request.ids_name, request.nprocs, ",".join(request.ids)
    is_shared_out = request.shared and nprocs > len(request.ids)
    if nprocs not in (-1, len(request.ids)) and not is_shared_out:
        raise ValueError(
            f"{name}={listed!r} selects {len(request.ids)} devices, "
            f"but {request.nprocs_name} is {nprocs}: give one device per process"
        )
    devices = tuple(_find(visible, id_, option=name, own=request.own) for id_ in request.ids)
    if len(set(devices)) < len(devices) and not request.shared:
        raise ValueError(f"{name}={listed!r} names a device twice: {visible.source}")
    return _in_turn(devices, nprocs)


def _in_turn(devices: tuple[Device, ...], count: int) -> tuple[Device, ...]:
    """A device for each of ``count`` ranks, from the first again where they are few; -1: all."""
    return tuple(devices[n % len(devices)] for n in range(len(devices) if count == -1 else count))


_CUDA = "CUDA_VISIBLE_DEVICES"
_HIP = "HIP_VISIBLE_DEVICES"
_ROCR = "ROCR_VISIBLE_DEVICES"
_NEURON = "NEURON_RT_VISIBLE_CORES"

# Their runtimes have masks in every case, and inside of a worker this variable holds
# one index, which must not shrink what a nested spawn sees.
_WITHOUT_FLAG_MASK = ("gpu", "xpu")


def _mask_names(
    device_type: str, environ: Mapping[str, str], machine: Machine
) -> tuple[str, tuple[str, ...]]:
    """The mask that works below, or "", and those above: first the one that counts.

    All masks above that are set come along, since narrowing one means to narrow them all.
    """
    if device_type != "gpu":
        uppers = vendor_of(device_type).masks
        return "", _set_first(uppers, environ)
    vendor = machine.gpu_vendor()
    if vendor is None and _CUDA not in environ and (_HIP in environ or _ROCR in environ):
        vendor = "amd"
    if vendor == "amd":
        return _ROCR, _set_first((_HIP, _CUDA), environ)
    return "", (_CUDA,)


def _set_first(names: tuple[str, ...], environ: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(name for name in names if name in environ) or names[:1]


def _masked(
    below: tuple[Device, ...] | None, text: str, count: int, *, mixed: bool
) -> tuple[Device, ...]:
    """What a mask leaves of ``below``, or of the machine if there is no mask below."""
    if below == ():
        return ()
    limit = count if below is None else len(below)
    entries = parse_mask(text, count=limit, mixed=mixed)
    ids = [below[int(e)].id if below and e.isdecimal() else e for e in entries]
    return tuple(Device(i, str(n), e) for n, (i, e) in enumerate(zip(ids, entries, strict=True)))


def _flagged(below: tuple[Device, ...] | None, text: str, count: int) -> tuple[Device, ...]:
    """What ``FLAGS_selected_<type>s`` picks from what a mask, if any, shows.

    It is the framework's own list of indices and renumbers nothing, unlike a mask of the
    runtime: the first entry is not device 0.
    """
    if below is None:
        entries = parse_mask(text, count=count)
        return tuple(Device(entry, entry, entry) for entry in entries)
    shown = {device.index: device for device in below}
    entries = parse_mask(text, count=len(below))
    return tuple(shown[entry] for entry in entries if entry in shown)


def _numbered(count: int) -> tuple[Device, ...]:
    return tuple(Device(str(n), str(n), str(n)) for n in range(count))


def _source(layers: list[str], environ: Mapping[str, str], variable: str, count: int) -> str:
    if layers:
        return " of ".join(f"{name}={environ[name]!r}" for name in reversed(layers))
    return f"{variable} is not set, and {count or 'none'} found on this machine"


def _first(visible: Visible, request: DeviceRequest) -> tuple[Device, ...]:
    seen, nprocs = len(visible.devices), request.nprocs
    if not seen or (nprocs > seen and not request.shared):
        wanted = "one process per device" if nprocs == -1 else f"{nprocs} processes"
        change = f"change {visible.variable}, "
        if seen:  # else no number is low enough
            lower = f"lower {request.nprocs_name}, "
            change = f"{lower}{change}share them with {request.share_name}, "
        raise RuntimeError(
            f"{wanted} requested, but {seen} devices of type {visible.device_type!r} are visible "
            f"({visible.source}): {change}or use {request.cpu_name} to run on the CPU"
        )
    return _in_turn(visible.devices, nprocs)


def _find(visible: Visible, id_: str, *, option: str, own: bool) -> Device:
    """The visible device that ``id_`` names, in full or abbreviated."""
    found = [device for device in visible.devices if device.id == id_]
    if not found and not id_.isdecimal():
        found = [device for device in visible.devices if _same_uuid(device.id, id_)]
    if len(found) == 1:
        return found[0]
    vendor = vendor_of(visible.device_type)
    unseen = not visible.devices and not visible.set_by_mask
    if unseen and id_.isdecimal() and not vendor.nodes and visible.device_type != "gpu":
        # Nobody can count these devices, so the caller's word is all there is.
        return Device(id_, id_, id_)
    # Without a mask the devices have numbers only. A mask of its own finds a device by
    # UUID all the same, but which index it has for the others is not ours to guess:
    # CUDA counts by speed, NVML by bus.
    if not found and own and not id_.isdecimal() and visible.devices and not visible.set_by_mask:
        return Device(id_, None, id_)
    why = "is ambiguous" if found else "is not visible"
    raise ValueError(f"{option}: the device {id_!r} {why}: {visible.source}")


def _same_uuid(uuid: str, other: str) -> bool:
    """Whether two UUIDs can mean the same device, one of them being abbreviated."""
    if uuid.isdecimal():
        return False
    return uuid.startswith(other) or other.startswith(uuid)


def _expanded(text: str) -> str:
    """A mask without the ranges that Neuron's may have, as in ``0-3``."""
    entries: list[str] = []
    for entry in text.split(","):
        first, dash, last = (part.strip() for part in entry.partition("-"))
        is_range = dash and first.isdecimal() and last.isdecimal()
        entries += map(str, range(int(first), int(last) + 1)) if is_range else [entry]
    return ",".join(entries)


def _is_tile(entry: str) -> bool:
    """A part of one of Intel's cards, as in ``0.1``."""
    card, dot, tile = entry.partition(".")
    return bool(dot) and card.isdecimal() and tile.isdecimal()


def _id_of(entry: str) -> str | None:
    """The id that a mask's entry stands for, or None if it is invalid."""
    if _is_tile(entry):
        return entry
    digits = len(entry) - len(entry.lstrip("0123456789"))
    if digits:
        # CUDA reads a number and ignores what follows, as C's strtoul does.
        return str(int(entry[:digits]))
    prefix, dash, rest = entry.partition("-")
    return entry if dash and rest and prefix.isalpha() else None


def _kind(id_: str) -> str:
    return "ordinal" if id_.isdecimal() or _is_tile(id_) else id_.partition("-")[0]
