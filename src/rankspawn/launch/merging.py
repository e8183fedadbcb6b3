"""Command line and variables together: which of them counts for each field.

Pure.
"""

from __future__ import annotations

from rankspawn.launch.command_line import is_torchruns
from rankspawn.launch.flags import PADDLE, TORCHRUN, UsageError
from rankspawn.plan.devices import VENDORS
from rankspawn.plan.environ import WORKER_VARIABLE

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from rankspawn.launch.flags import Flag

COLLECTIVE = "collective"
# Of each pair one is enough, and with --run_mode collective none has a meaning. What a variable
# says of one gives way to the other on the command line.
_RIVALS = {
    "servers": "server_num",
    "server_num": "servers",
    "trainers": "trainer_num",
    "trainer_num": "trainers",
    "heter_workers": "heter_worker_num",
    "heter_worker_num": "heter_workers",
}
_PET = 2  # the last of the sources
_TYPE_OF_FLAG = {"gpus": "gpu", "selected_gpus": "gpu", "xpus": "xpu", "npus": "npu"}


def merge(
    from_line: Mapping[str, tuple[Flag, str]],
    from_environ: Mapping[str, tuple[Flag, str]],
    from_pet: Mapping[str, tuple[Flag, str]],
    environ: Mapping[str, str],
) -> tuple[dict[str, Any], list[str]]:
    """Field to value, the command line's before a variable's, and what is to be told.

    Args:
        from_line: The flags of the command line.
        from_environ: Those that ``PADDLE_*`` stand for.
        from_pet: Those that torchrun's ``PET_*`` stand for.
        environ: The environment.

    Raises:
        UsageError: Two of them contradict each other.
        ValueError: A value is impossible.
    """
    values: dict[str, Any] = {}
    sources: dict[str, int] = {}
    notes: list[str] = []
    for source, found in enumerate((from_line, from_environ, from_pet)):
        if source == _PET and _is_another_job(values, from_pet):
            break
        before = dict(values)
        origins: dict[str, str] = {}
        for flag, text in found.values():
            if flag.field in before or _is_overruled(flag.field, text, before):
                continue
            if flag.instead and source and flag.name in from_line:
                continue
            origin = (flag.written, flag.variable, flag.torchruns_variable)[source]
            if flag.field in origins:
                other = origins[flag.field]
                both = "both select devices" if flag.field == "devices" else "mean the same"
                raise UsageError(f"{other} and {origin} {both}: give only one of them")
            origins[flag.field] = origin
            _take_in(flag, origin, text, values, notes)
        sources |= dict.fromkeys(values.keys() - before.keys(), source)
    _tell_losers(from_line, from_environ, values, notes)
    flags = [flag for flag, _ in from_line.values()]
    if from_pet or any(TORCHRUN in flag.of and PADDLE not in flag.of for flag in flags):
        from rankspawn.launch.torchrun import Translation

        words = Translation(values, sources, environ, is_line=is_torchruns(flags))
        words.make()
        notes += words.notes
    _take_paddles_words(values, environ)
    return values, notes


def _take_in(flag: Flag, origin: str, text: str, values: dict[str, Any], notes: list[str]) -> None:
    """Read one flag into its field."""
    value = flag.read(origin, text)
    if flag.instead:
        if (flag.name, value) != ("logs_specs", "default"):
            notes.append(f"{origin} has no effect: {flag.instead}")
        return
    if flag.field == "device_type":
        set_device_type(values, str(value), origin)
    values[flag.field] = value
    if flag.field == "devices":
        values["devices_name"] = origin
    if flag.name in _TYPE_OF_FLAG:
        set_device_type(values, _TYPE_OF_FLAG[flag.name], origin)
    if flag.deprecated:
        notes.append(f"{origin} is deprecated: use {flag.deprecated}")


def _is_another_job(values: Mapping[str, Any], from_pet: Mapping[str, tuple[Flag, str]]) -> bool:
    """Whether torchrun's variables are about something else: another number of nodes, or lists."""
    if values.get("ips") or values.get("servers"):
        return True
    if "nnodes" not in values or "nnodes" not in from_pet:
        return False
    flag, text = from_pet["nnodes"]
    low, high = values["nnodes"]
    return not low <= flag.read(flag.torchruns_variable, text)[1] <= high  # type: ignore[index]


def _tell_losers(
    from_line: Mapping[str, tuple[Flag, str]],
    from_environ: Mapping[str, tuple[Flag, str]],
    values: Mapping[str, Any],
    notes: list[str],
) -> None:
    """Say once which of Paddle's variables give way: under its own launcher they win."""
    typed = {flag.field for flag, _ in from_line.values()}
    losers = []
    for flag, text in from_environ.values():
        if flag.field in typed and PADDLE in flag.of and not flag.instead:
            try:
                is_same = flag.read(flag.variable, text) == values.get(flag.field)
            except (ValueError, TypeError):
                is_same = False
            # Names alone: an address may hold a password.
            losers += [] if is_same else [f"{flag.variable} gives way to {flag.written}"]
    if losers:
        notes.append(f"{', '.join(losers)}: here the command line wins, in Paddle the variable")


def _take_paddles_words(values: dict[str, Any], environ: Mapping[str, str]) -> None:
    """What words of Paddle's, and a variable that may be two things, mean here."""
    backend = values.pop("backend", None)
    if backend is not None and backend != "auto":
        kind = {"gloo": "cpu", "nccl": "gpu", "bkcl": "xpu"}.get(backend)
        if kind is None:
            raise UsageError(f"--backend {backend}: give gloo, nccl, bkcl or auto")
        set_device_type(values, kind, f"--backend {backend}")
    if values.pop("use_paddlecloud", False) and environ.get("PADDLE_TRAINERS"):
        from rankspawn.launch.flag_values import addresses

        values.setdefault("ips", addresses("PADDLE_TRAINERS", environ["PADDLE_TRAINERS"]))
    low, high = values.get("nnodes", (1, 1))
    node = environ.get("PADDLE_TRAINER_ID", "").strip()
    # In a worker, of ours or of Paddle's, it is the worker's rank.
    is_node = not any(name in environ for name in (WORKER_VARIABLE, "PADDLE_CURRENT_ENDPOINT"))
    if is_node and "rank" not in values and 1 < low == high and node.isdecimal():
        # One beyond them counts something else.
        values |= {"rank": int(node)} if int(node) < high else {}


def _is_overruled(field: str, text: str, of_line: Mapping[str, Any]) -> bool:
    """Whether the command line says something that leaves this variable without a meaning."""
    if field in _RIVALS:
        return _RIVALS[field] in of_line or of_line.get("run_mode") == COLLECTIVE
    if field == "run_mode":
        return text.strip() == COLLECTIVE and not _RIVALS.keys().isdisjoint(of_line)
    return field == "devices" and of_line.get("device_type") == "cpu"


def set_device_type(values: dict[str, Any], device_type: str, origin: str) -> None:
    """Set the type of the devices, which may be said in several ways.

    Raises:
        UsageError: Another one was set.
    """
    other = values.setdefault("device_type", device_type)
    if other != device_type:
        raise UsageError(
            f"{origin} means devices of type {device_type}, but another flag or variable means "
            f"{other}"
        )


def worker_count(values: dict[str, Any]) -> dict[str, Any]:
    """``--nproc_per_node auto`` and ``cpu``, ``gpu`` … mean one worker for each there is."""
    count = values.get("nproc_per_node")
    if not isinstance(count, str):
        return {}
    if count != "auto":
        known = ("cpu", *VENDORS)
        if count not in known:
            raise UsageError(
                f"--nproc_per_node {count}: give a number, auto, or a type of device, one of "
                + ", ".join(known)
            )
        set_device_type(values, count, f"--nproc_per_node {count}")
    return {"nproc_per_node": None}


def first_devices(values: Mapping[str, Any], notes: list[str]) -> dict[str, Any]:
    """As many of the selected devices as there are workers, as Paddle's launcher takes them."""
    devices, count = values.get("devices"), values.get("nproc_per_node")
    if devices is None or count is None or len(devices) <= count:
        return {}
    used = devices[:count]
    notes.append(
        f"of {values['devices_name']} {','.join(used)} is used, for --nproc_per_node {count}"
    )
    return {"devices": used}
