"""From torchrun's words to our own: the one place that knows both.

Pure. The words are those of a command line and of torchrun's ``PET_*`` variables, which count as
they do there: the command line wins, each word by itself, and then all of them are taken together.

A command line is torchrun's if it has a word that torchrun alone has. Then words that both
launchers have mean what torchrun means by them: without ``--nproc_per_node`` there is one worker,
all workers are shown, each stream by itself, and logs lie in ``--log_dir`` as torchrun lays them.
"""

from __future__ import annotations

from rankspawn.launch.flag_values import seconds as read_seconds
from rankspawn.launch.flags import UsageError
from rankspawn.launch.scheduler_values import outside_pod, port_of
from rankspawn.plan.topology import is_loopback, join
from rankspawn.values import dataclass, replace

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# torchrun's own.
_MASTER_PORT, _ENDPOINT_PORT, _ETCD_PORT = 29500, 29400, 2379
_LOOPBACK = "127.0.0.1"
# Where a value comes from; the lowest wins.
LINE, TORCHRUNS, LAST = 0, 2, 3  # 1 is a PADDLE_* variable
# Settings of a rendezvous, and the flag that each is here.
_CONF = {
    "join_timeout": "join_timeout",
    "timeout": "join_timeout",
    "last_call_timeout": "elastic_timeout",
    "cacert": "etcd_ca",
    "cert": "etcd_cert",
    "key": "etcd_key",
}
_TAKEN_TOGETHER = ("keep_alive_interval", "keep_alive_max_attempt", "protocol")
_KEEP_ALIVE = (5, 3)  # seconds, attempts: torchrun's own
_SHORTEST, _LONGEST = 2.0, 120.0  # of --node_timeout
# What is told of the variables, in this order.
_TOLD = ("nnodes", "rank", "master", "job_id", "nproc_per_node", "device_type", "max_restart")


@dataclass(frozen=True, slots=True)
class Streams:
    """Where the standard output (1) and error (2) of each worker go.

    Attributes:
        redirects: What goes to files alone: for all local ranks, or for each of some.
        tee: What is shown with a prefix, in the same way.
        shown_ranks: The local ranks that are shown; None for all.
        stdout_filters: Lines with one of these go to a file of their own as well.
        stderr_filters: The same for the standard error.
        prefix: A template with ``${role_name}``, ``${rank}`` and ``${local_rank}``.
    """

    redirects: int | dict[int, int] = 0
    tee: int | dict[int, int] = 0
    shown_ranks: frozenset[int] | None = None
    stdout_filters: tuple[str, ...] = ()
    stderr_filters: tuple[str, ...] = ()
    prefix: str = "[${role_name}${local_rank}]:"

    def shown(self, local_rank: int) -> int:
        """Which streams of a worker are shown: 0 to 3."""
        if self.shown_ranks is not None and local_rank not in self.shown_ranks:
            return 0
        return (3 & ~_of(self.redirects, local_rank)) | self.prefixed(local_rank)

    def prefixed(self, local_rank: int) -> int:
        """Which of them have a prefix."""
        return _of(self.tee, local_rank)


def _of(streams: int | dict[int, int], local_rank: int) -> int:
    return streams if isinstance(streams, int) else streams.get(local_rank, 0)


@dataclass(frozen=True, slots=True)
class OwnStreams:
    """Where a program's standard output (1) and error (2) go, if not to one log.

    Attributes:
        error_log_name: The file in the log directory that gets its standard error.
        shown: Those that are shown, on the launcher's own: 0 to 3.
        prefixed: Those whose lines are shown with a prefix: 0 to 3.
        prefix: That prefix.
        filters: For each of both, parts of lines, and a file that gets the lines with one of them.
    """

    error_log_name: str
    shown: int
    prefixed: int
    prefix: str
    filters: tuple[tuple[tuple[str, ...], str], ...] = ()


class Translation:
    """Torchrun's words put into ours, where nothing of ours says more.

    Args:
        values: Field to value, of all flags under their own names; changed.
        sources: Where each one comes from; changed.
        environ: The environment.
        is_line: The command line is one of torchrun's.

    Attributes:
        notes: What the user should be told.
    """

    def __init__(
        self,
        values: dict[str, Any],
        sources: dict[str, int],
        environ: Mapping[str, str],
        *,
        is_line: bool,
    ) -> None:
        self.notes: list[str] = []
        self._values, self._sources, self._environ = values, sources, environ
        self._is_line = is_line

    def make(self) -> None:
        """Leave our own words behind.

        Raises:
            UsageError: Two of the words contradict each other, or one that is needed is missing.
        """
        if self._take("standalone"):
            self._stand_alone()
        else:
            self._nodes()
        self._restarts()
        self._names()
        self._program()
        self._output()
        seconds = self._environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "").strip()
        if self._is_line and seconds:
            self._put("grace_period", read_seconds("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", seconds), LAST)
        if self._take("virtual_local_rank"):
            self._put("own_devices", True, LINE)
        told = {"nproc_per_node", "devices", "device_type", "servers", "server_num", "run_mode"}
        if self._is_line and told.isdisjoint(self._values):
            self._put("nproc_per_node", 1, LINE)
        self._tell_variables()

    def _stand_alone(self) -> None:
        for word in ("rdzv_backend", "rdzv_endpoint", "rdzv_id", "node_rank", "rdzv_conf"):
            self._take(word)
        for word in ("master_addr", "master_port", "master", "rank", "nnodes"):
            self._take(word)
        self._put("nnodes", (1, 1), LINE)

    def _nodes(self) -> None:
        values = self._values
        conf = values.get("rdzv_conf", {})
        backend = values.get("rdzv_backend", "")
        self._place(backend, conf)
        self._settings(conf)
        low, high = values.get("nnodes", (1, 1))
        source = self._sources.get("node_rank", LINE)
        rank = self._take("node_rank")
        if rank is None:
            pass
        elif backend in ("", "static") and high > 1 and low == high:
            if rank >= high:
                name = "--node_rank" if source == LINE else "PET_NODE_RANK"
                raise UsageError(f"{name}={rank} is out of range for {high} nodes: give --nnodes")
            self._put("rank", rank, source, "node_rank")
        elif rank and high > 1 and source == LINE:
            self.notes.append(
                f"--node_rank {rank} is not used: so nodes meet, they are ranked as they come"
            )
        if self._sources.get("nnodes") == TORCHRUNS and high > 1:
            self._need_place()

    def _place(self, backend: str, conf: Mapping[str, str]) -> None:
        """Where the nodes meet; on one node, the port that its first worker is to use."""
        words = ("rdzv_endpoint", "rdzv_backend", "master_addr", "master_port")
        given = [word for word in words if word in self._values]
        source = min((self._sources[word] for word in given), default=LINE)
        endpoint, _, host, port = (self._take(word) for word in words)
        if host and source == TORCHRUNS:
            host = outside_pod(host, "PET_NODE_RANK", self._environ)
        low, high = self._values.get("nnodes", (1, 1))
        many = high > 1
        if backend.startswith("etcd"):
            if endpoint:
                scheme = "etcds" if conf.get("protocol") == "https" else "etcd"
                place = ",".join(_with_port(part, _ETCD_PORT) for part in endpoint.split(","))
                self._put("master", f"{scheme}://{place}", source, given[0])
            return
        static = backend in ("", "static")
        if endpoint:
            place = _with_port(endpoint, _ENDPOINT_PORT)
        elif (
            host
            or (port is not None and (source == LINE or not many))
            or (many and static and "node_rank" in self._values and source == LINE)
        ):
            place = join(host or _LOOPBACK, _MASTER_PORT if port is None else port)
        else:
            return
        name, _, digits = place.rpartition(":")
        number = int(digits)
        if many and not number:
            if low == 1 and is_loopback(name.strip("[]")):
                return  # this node begins alone, at a free port that it tells
            raise UsageError(f"several nodes cannot meet at {place}: give a port that is not 0")
        if many:
            self._put("master", place, source, given[0] if given else "node_rank")
        elif static and number and (endpoint or port is not None):
            self._put("first_port", number, source)

    def _settings(self, conf: Mapping[str, str]) -> None:
        """``--rdzv-conf``, as far as it has a counterpart."""
        if self._take("rdzv_conf") is None:
            return
        source = self._sources["rdzv_conf"]
        try:
            for key, field in _CONF.items():
                if key in conf and field not in self._values:
                    is_file = field.startswith("etcd")
                    self._put(field, conf[key] if is_file else float(conf[key]), source)
            if any(key in conf for key in _TAKEN_TOGETHER[:2]):
                each, times = (
                    float(conf.get(key, default))
                    for key, default in zip(_TAKEN_TOGETHER[:2], _KEEP_ALIVE, strict=True)
                )
                self._put("node_timeout", min(_LONGEST, max(_SHORTEST, each * times)), source)
        except ValueError:
            raise UsageError(f"--rdzv_conf: a number of seconds is wanted in {conf}") from None
        unknown = sorted(conf.keys() - _CONF.keys() - set(_TAKEN_TOGETHER))
        if unknown:
            self.notes.append(
                f"--rdzv_conf: {', '.join(unknown)} has no effect: the master is one of our own"
            )

    def _need_place(self) -> None:
        if "master" in self._values:
            return
        environ = self._environ
        if not environ.get("MASTER_ADDR"):
            raise UsageError(
                "PET_NNODES says that there are several nodes, but nothing says where they meet: "
                "give --master host:port, or set PET_RDZV_ENDPOINT, or PET_MASTER_ADDR and "
                "PET_MASTER_PORT"
            )
        port = port_of(environ) if environ.get("MASTER_PORT") else _MASTER_PORT
        host = outside_pod(environ["MASTER_ADDR"], "PET_NODE_RANK", environ)
        self._put("master", join(host, port), TORCHRUNS)

    def _restarts(self) -> None:
        source = self._sources.get("max_restarts", LINE)
        most = self._take("max_restarts")
        low, high = self._values.get("nnodes", (1, 1))
        if most:
            self._put("max_restart", most, source, "max_restarts")
            self._put("elastic_level", 1, source)
        elif most == 0 and low == high:
            # Else it would forbid that nodes come and go, which torchrun does not count.
            self._put("elastic_level", -1, source)

    def _names(self) -> None:
        source = self._sources.get("rdzv_id", LINE)
        name = self._take("rdzv_id")
        if name is not None:
            self._put("job_id", name, source, "rdzv_id")
            self._put("run_name", name, source)

    def _program(self) -> None:
        bare, path = self._take("no_python"), self._take("run_path")
        if bare and self._values.get("is_module"):
            raise UsageError("--module and --no_python exclude each other: give only one of them")
        runner = "run_path" if path else "program" if bare else ""
        if runner:
            self._put("runner", runner, LINE)

    def _output(self) -> None:
        words = ("redirects", "tee", "local_ranks_filter")
        filters = ("duplicate_stdout_filters", "duplicate_stderr_filters")
        given = any(word in self._values for word in (*words, *filters))
        redirects, tee, shown = (self._take(word) for word in words)
        out, err = (self._take(word) for word in filters)
        if given or self._is_line:
            streams = Streams(redirects or 0, tee or 0, shown, out or (), err or ())
            prefix = self._environ.get("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "")
            if prefix and self._is_line:
                streams = replace(streams, prefix=prefix)
            self._put("streams", streams, LINE)

    def _tell_variables(self) -> None:
        told = []
        for field in _TOLD:
            if self._sources.get(field) == TORCHRUNS and field in self._values:
                value = self._values[field]
                if field == "nnodes":
                    value = value[0] if value[0] == value[1] else f"{value[0]}:{value[1]}"
                if field == "master":  # without the password of an etcd
                    scheme, _, place = str(value).rpartition("//")
                    value = f"{scheme}//" * bool(scheme) + place.rpartition("@")[2]
                told.append(f"--{field} {value}")
        if told:
            self.notes.append(
                f"taken from the PET_* variables, which are torchrun's: {' '.join(told)}"
            )

    def _take(self, word: str) -> Any:
        return self._values.pop(word, None)

    def _put(self, field: str, value: object, source: int, word: str = "") -> None:
        """Set a field, unless what is nearer to the user has set it."""
        if field in self._values:
            before = self._sources[field]
            if before == source and word and self._values[field] != value:
                raise UsageError(f"--{field} and --{word} mean the same: give only one of them")
            if before <= source:
                return
        self._values[field], self._sources[field] = value, source


def _with_port(endpoint: str, port: int) -> str:
    """An endpoint, with this port if it has none."""
    text = endpoint.strip().removeprefix("http://").removeprefix("https://")
    who, at, text = text.rpartition("@")  # of an etcd
    host, colon, digits = text.rpartition(":")
    has_port = colon and digits.isdecimal() and host and not text.endswith("]")
    if has_port and (":" not in host or host.endswith("]")):
        return f"{who}{at}{text}"
    return f"{who}{at}{join(text.strip('[]'), port)}"
