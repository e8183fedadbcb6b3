"""What the caller of ``spawn`` asked for, checked before any process starts.

``read_options`` turns the keyword options into one frozen ``SpawnOptions``: supported
names are checked, deprecated ones are translated with a warning, and an unknown one is
an error that proposes the nearest name.
"""

from __future__ import annotations

from rankspawn import option_values as read
from rankspawn.caller import warn_caller
from rankspawn.values import dataclass, field

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    Env = Mapping[str, str | None] | Callable[[int], Mapping[str, str | None]]

# "cpu" is the same as "gloo", by the name of its device.
BACKENDS = ("auto", "nccl", "bkcl", "xccl", "gloo", "cpu")
ON_FAILURE = ("stop", "continue")
START_METHODS = ("spawn", "fork", "forkserver")
LOGGING = ("inherit", "relay")
# Those of plan.numa, which is loaded by whoever asks for one.
BINDINGS = ("node", "socket", "exclusive", "core-complex")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnOptions:
    """The options of one ``spawn`` call; see the reference for what each one means.

    ``node_ip``, ``started_port`` and ``use_paddlecloud`` are deprecated by name only: they
    still say where this node stands among several. ``selected_devices`` are those of whatever
    kind ``backend="auto"`` finds; with another backend they have today's name.
    """

    start_method: str = "spawn"
    backend: str = "auto"
    gpus: tuple[str, ...] | None = None
    xpus: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    device_type: str | None = None
    share_devices: bool = False
    ips: tuple[str, ...] = ("127.0.0.1",)
    print_config: bool = False
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    rank_args: tuple[tuple[Any, ...], ...] | None = None
    rank_kwargs: tuple[Mapping[str, Any], ...] | None = None
    env: Env | None = None
    timeout: float | None = None
    grace_period: float = 10.0
    log_dir: str | None = None
    tee: bool | tuple[int, ...] | None = None
    prefix: str | None = None
    progress: bool = False
    on_report: Callable[[int, Any], object] | None = None
    trace: str | None = None
    stall_timeout: float | None = None
    stacks: bool = True
    keep_alive_on_failure: bool = False
    logging: str = "auto"  # what is meant if nothing is given
    debug: read.DebugRequest | None = None
    debugpy: read.DebugpyRequest | None = None
    preload: tuple[str, ...] = ()
    max_restarts: int = 0
    on_failure: str = "stop"
    device_visibility: str = "all"
    numa: str | None = None
    threads_per_rank: int | None = None
    agent_store: bool = False
    cluster: Any = None
    node_ip: str | None = None
    started_port: int | None = None
    use_paddlecloud: bool = False
    selected_devices: tuple[str, ...] | None = None


# What to write instead, for the warning. The last three keep their meaning and their name.
_DEPRECATED = {
    "selected_devices": "use gpus= or xpus=",
    "selected_gpus": "use gpus= or xpus=",
    "cluster_node_ips": "use ips=",
    "node_ip": "use ips=, which finds this node's own address, or `python -m rankspawn.launch`",
    "started_port": (
        "one node needs no port; for several use `python -m rankspawn.launch --start_port`"
    ),
    "use_paddlecloud": "PaddleCloud's variables are noticed without it",
}
_RENAMED = ("selected_devices", "selected_gpus", "cluster_node_ips")
_SELECTIONS = ("gpus", "xpus", "devices", "selected_devices")


def read_options(options: Mapping[str, Any]) -> SpawnOptions:
    """The checked options of one call.

    An option given as None is the same as one not given; what ``logging=None`` means besides is
    the caller's to see.

    Args:
        options: What the caller wrote, by name.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A name is unknown, a value is out of range, or two options
            contradict each other.
    """
    _check_names(options)
    given = {name: value for name, value in options.items() if value is not None}
    for name in given:
        if name in _DEPRECATED:
            message = f"the option {name} is deprecated: {_DEPRECATED[name]}"
            warn_caller(message, DeprecationWarning)
    may_repeat = given.get("share_devices") is True
    checked = SpawnOptions(**_read(_rename(given), may_repeat=may_repeat))
    _check_devices(checked)
    if checked.on_failure == "continue" and checked.max_restarts:
        raise ValueError(
            "on_failure='continue' lets the others finish when a rank fails, and max_restarts "
            "starts all of them again: give one of the two"
        )
    if checked.preload and checked.start_method != "forkserver":
        raise ValueError(
            f"preload is for start_method='forkserver' only, not {checked.start_method!r}: "
            "no other start method has a server that could import modules once"
        )
    return checked


def check_nprocs(nprocs: Any) -> int:
    """``nprocs`` as an int: -1 for all devices, or at least 1."""
    allowed = "a positive int, or -1 for one process per visible device"
    if isinstance(nprocs, bool) or not hasattr(nprocs, "__index__"):
        raise TypeError(f"nprocs must be {allowed}, not {read.shown(nprocs)}")
    number = read.read_count("nprocs", nprocs, least=-(2**63))
    if number < 1 and number != -1:
        raise ValueError(f"nprocs={number} is out of range: it must be {allowed}")
    return number


def check_counts(nprocs: Any) -> int | tuple[int, ...]:
    """``nprocs`` on a cluster: as for one machine, the same on each node, or a count for each."""
    if isinstance(nprocs, (list, tuple)):
        return tuple(read.read_count(f"nprocs[{i}]", n, least=1) for i, n in enumerate(nprocs))
    return check_nprocs(nprocs)


def check_args(args: Any) -> tuple[Any, ...]:
    """``args`` as a tuple; a bare value is an error that shows how to write it."""
    if isinstance(args, (tuple, list)):
        return tuple(args)
    try:
        shown = repr(args)
    except Exception:  # anybody's code
        shown = "value"
    hint = f"args=({shown},)" if len(shown) <= 40 else "args=(value,)"
    raise TypeError(
        f"args must be a tuple or a list, not {type(args).__name__}: "
        f"for a single argument write args=(value,), here {hint}"
    )


def check_rank_args(options: SpawnOptions, nprocs: int) -> None:
    """Make sure that there is one row of arguments for every rank of this node."""
    rows = {"rank_args": options.rank_args, "rank_kwargs": options.rank_kwargs}
    counts = {name: len(given) for name, given in rows.items() if given is not None}
    if len({*counts.values()}) > 1:  # one of them may be where nprocs comes from
        told = ", ".join(f"{name} has {count} entries" for name, count in counts.items())
        raise ValueError(f"{told}: give each rank one of both")
    kinds = {"rank_args": "tuple", "rank_kwargs": "mapping"}
    for name, count in counts.items():
        if count != nprocs:
            raise ValueError(
                f"{name} has {count} entries, but nprocs is {nprocs}: give one {kinds[name]} "
                "per rank"
            )


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in _READERS and name not in _DEPRECATED:
            # Imported here: they are needed on the way to an error only.
            from dataclasses import fields
            from difflib import get_close_matches

            supported = [f.name for f in fields(SpawnOptions) if f.name not in _DEPRECATED]
            known = [*supported, *_DEPRECATED, "func", "args", "nprocs", "join", "daemon"]
            likely = [
                option for option in supported if option in name.lower() or name.lower() in option
            ]
            nearest = [*likely, *get_close_matches(name.lower(), known, n=1, cutoff=0.5)]
            hint = f": did you mean {nearest[0]!r}?" if nearest else "."
            raise ValueError(
                f"spawn() has no option {name!r}{hint} Supported are {', '.join(supported)}."
            )


def _read(given: dict[str, tuple[str, Any]], *, may_repeat: bool) -> dict[str, Any]:
    """The checked values; messages have the names that the caller wrote."""
    values = {}
    for name, (written, value) in given.items():
        if name in _SELECTIONS:
            hint = "; several ranks share a device with share_devices=True"
            values[name] = read.read_ids(written, value, may_repeat=may_repeat, hint=hint)
        else:
            values[name] = _READERS[name](written, value)
    return values


def _rename(given: dict[str, Any]) -> dict[str, tuple[str, Any]]:
    """``given`` under today's names, each with the name that was written."""
    selection = _name_of_selection(given)
    today = {"cluster_node_ips": "ips", "selected_devices": selection, "selected_gpus": selection}
    renamed = {name: (name, value) for name, value in given.items() if name not in _RENAMED}
    for old in _RENAMED:
        if old not in given:
            continue
        group = ("ips",) if old == "cluster_node_ips" else _SELECTIONS
        rivals = [new for new in group if new in renamed]
        if rivals:
            raise ValueError(f"{old} and {rivals[0]} mean the same: give only {rivals[0]}")
        renamed[today[old]] = (old, given[old])
    return renamed


def _name_of_selection(given: Mapping[str, Any]) -> str:
    """Which option has the devices that were selected under an old name."""
    if "device_type" in given:
        return "devices"
    names = {"auto": "selected_devices", "bkcl": "xpus", "xccl": "devices"}
    backend = given.get("backend", "auto")
    return names.get(backend, "gpus") if isinstance(backend, str) else "gpus"


def _check_devices(options: SpawnOptions) -> None:
    """Refuse device options that contradict each other."""
    given = [name for name in ("gpus", "xpus", "devices") if getattr(options, name) is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} cannot be given at once: choose one")
    if options.devices is not None and options.device_type is None and options.backend != "xccl":
        raise ValueError(
            "devices needs device_type, such as device_type='npu': "
            "the ids alone do not say of which kind they are"
        )
    if options.device_type is not None and given in (["gpus"], ["xpus"]):
        raise ValueError(
            f"device_type={options.device_type!r} goes with devices, not with {given[0]}"
        )


def _device_type(name: str, value: Any) -> str:
    text = read.read_text(name, value)
    # It becomes part of a variable's name: FLAGS_selected_<device_type>s.
    if not text.isidentifier() or not text.isascii():
        raise ValueError(f"{name}={text!r} is no device type: give a name such as 'npu' or 'mlu'")
    return text


def _backend(name: str) -> str:
    return "gloo" if name == "cpu" else name


def _available(start_method: str) -> str:
    """``start_method``, if this platform has it."""
    # Imported here: only the process that spawns needs it.
    from multiprocessing import get_all_start_methods

    available = get_all_start_methods()
    if start_method not in available:
        raise ValueError(
            f"start_method={start_method!r} does not exist on this platform: "
            f"use one of {', '.join(available)}"
        )
    return start_method


def _trace(name: str, value: Any) -> str:
    from rankspawn.trace.request import read_trace

    return read_trace(name, value)


def _engine(given: Any) -> Any:
    """The engine that starts agents on nodes."""
    # Imported here: few jobs have several machines.
    from rankspawn.cluster.engine import find_engine

    return find_engine(given)


def _limit(seconds: float) -> float | None:
    """No limit, for an infinite one."""
    return None if seconds == float("inf") else seconds


# At the end of the module, since it holds functions.
_READERS: dict[str, Callable[[str, Any], Any]] = {
    "start_method": lambda name, value: _available(read.read_choice(name, value, START_METHODS)),
    "backend": lambda name, value: _backend(read.read_choice(name, value, BACKENDS)),
    "gpus": read.read_ids,
    "xpus": read.read_ids,
    "devices": read.read_ids,
    "device_type": _device_type,
    "share_devices": read.read_flag,
    "ips": read.read_addresses,
    "print_config": read.read_flag,
    "kwargs": read.read_kwargs,
    "rank_args": read.read_rows,
    "rank_kwargs": read.read_named_rows,
    "env": read.read_env,
    "timeout": lambda name, value: _limit(read.read_seconds(name, value, positive=True)),
    "grace_period": lambda name, value: read.read_seconds(name, value, positive=False),
    "log_dir": read.read_path,
    "tee": read.read_ranks,
    "prefix": lambda name, value: read.read_text(name, value, may_be_empty=True),
    "progress": read.read_flag,
    "on_report": read.read_callable,
    "trace": _trace,
    "stall_timeout": lambda name, value: _limit(read.read_seconds(name, value, positive=True)),
    "stacks": read.read_flag,
    "keep_alive_on_failure": read.read_flag,
    "logging": lambda name, value: read.read_choice(name, value, LOGGING, or_none=True),
    "debug": read.read_debug,
    "debugpy": read.read_debugpy,
    "preload": read.read_modules,
    "max_restarts": lambda name, value: read.read_count(name, value, least=0),
    "on_failure": lambda name, value: read.read_choice(name, value, ON_FAILURE),
    "device_visibility": lambda name, value: read.read_choice(name, value, ("all", "own")),
    "numa": lambda name, value: read.read_choice(name, value, BINDINGS),
    "threads_per_rank": lambda name, value: read.read_count(name, value, least=1),
    "agent_store": read.read_flag,
    "cluster": lambda _, value: _engine(value),
    "node_ip": read.read_address,
    "started_port": lambda name, value: read.read_count(
        name, value, least=1, most=read.HIGHEST_PORT
    ),
    "use_paddlecloud": read.read_flag,
    "selected_devices": read.read_ids,
}
