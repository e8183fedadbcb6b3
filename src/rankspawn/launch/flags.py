"""The flags of ``rankrun`` as a table: name, variable, reader, default, one line of help.

Pure. A flag may be written with dashes or underscores, as ``--flag value`` or ``--flag=value``;
the first word that is no flag is the script, and nothing after it is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass

from rankspawn.launch import flag_values as read

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence


# Exit codes, as shells have them.
WRONG_USAGE = 2
CANNOT_EXECUTE = 126
_NOT_FOUND = 127


class UsageError(ValueError):
    """A command line or a variable that cannot be used, told to people."""


def exit_code_of_error(error: Exception) -> int:
    """The launcher's exit code for a job that could not be started."""
    if isinstance(error, UsageError):
        return WRONG_USAGE
    return _NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_EXECUTE


class HelpRequest(Exception):
    """``--help`` or ``--version`` was given; ``text`` is the answer."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


@dataclass(frozen=True, slots=True)
class Flag:
    """A flag of the command line, and how its value is read.

    Attributes:
        name: With underscores, without dashes.
        read: From its origin (for messages) and its text to its value.
        help: What it is for; with its default, if that is not plain.
        sets: The field that it fills; several flags may fill the same.
        deprecated: What to write instead.
        is_switch: It may stand without a value, and then means yes.
    """

    name: str
    read: Callable[[str, str], object]
    help: str
    sets: str = ""
    other_variable: str = ""
    deprecated: str = ""
    is_switch: bool = False

    @property
    def field(self) -> str:
        """The field of the configuration that it fills."""
        return self.sets or self.name

    @property
    def variable(self) -> str:
        """The variable that is read where the flag is absent."""
        return self.other_variable or f"PADDLE_{self.name.upper()}"

    @property
    def written(self) -> str:
        """The flag as it is written on the command line."""
        return f"--{self.name}"


# Grouped as `rankrun --help` shows them.
FLAGS: dict[str, tuple[Flag, ...]] = {
    "which workers": (
        Flag(
            "nproc_per_node",
            read.workers,
            "workers on this node: a number, or `cpu`, `gpu` … for one each; "
            "without it one per device, or per CPU",
        ),
        Flag("devices", read.ids, "ids of the devices to use, such as 0,1; as the mask has them"),
        Flag("gpus", read.ids, "the same, and they are GPUs", "devices"),
        Flag("xpus", read.ids, "the same for Kunlun XPUs", "devices"),
        Flag("npus", read.ids, "the same for Ascend NPUs", "devices"),
        Flag("device_type", read.identifier, "type of the devices: gpu, xpu, npu, mlu, … or cpu"),
        Flag("selected_gpus", read.ids, "", "devices", deprecated="--gpus"),
    ),
    "many machines": (
        Flag(
            "nnodes",
            read.node_counts,
            "number of nodes (1), or the fewest and the most, such as 2:4, for an elastic job",
        ),
        Flag(
            "master",
            read.text,
            "where they meet: host:port, http://host:port or etcd://host:port[,host:port…]; "
            "etcds:// is etcd over TLS",
        ),
        Flag("etcd_ca", read.text, "file with the authority of the etcd's certificates"),
        Flag("etcd_cert", read.text, "file with this client's certificate for the etcd"),
        Flag("etcd_key", read.text, "file with the key of that certificate"),
        Flag("rank", read.number(-1), "rank of this node; -1, the default, has it assigned"),
        Flag(
            "host",
            read.address,
            "address at which the other nodes reach this one",
            other_variable="POD_IP",
        ),
        Flag(
            "start_port",
            read.port,
            "first port of the workers on several nodes; without it, free ones, or 6070 with --ips",
        ),
        Flag("job_id", read.text, "name of the job (default)"),
        Flag("ips", read.addresses, "", deprecated="--nnodes and --master"),
    ),
    "failures": (
        Flag(
            "max_restart",
            read.number(0),
            "restarts after failed workers and lost nodes, in all (3)",
        ),
        Flag(
            "elastic_level",
            read.number(-1, 1),
            "-1, the default: a failed worker ends the job; 0: its node leaves, the others hold; "
            "1: its node starts its workers again",
        ),
        Flag(
            "elastic_timeout", read.seconds, "seconds to wait for more nodes than the fewest (30)"
        ),
        Flag(
            "join_timeout", read.seconds, "seconds to wait for the fewest nodes at the start (600)"
        ),
        Flag(
            "node_timeout",
            read.node_timeout,
            "seconds without a sign of life after which a node counts as dead (30; 10 in a job "
            "that goes on without it)",
        ),
        Flag("grace_period", read.seconds, "seconds between SIGTERM and SIGKILL (10)"),
    ),
    "output": (
        Flag("log_dir", read.text, "folder of the workers' logs (log)"),
        Flag("log_level", read.level, "DEBUG, INFO (the default), WARNING, ERROR or CRITICAL"),
        Flag(
            "log_overwrite",
            read.switch,
            "empty the logs of the last run first; without it they go on",
            is_switch=True,
        ),
    ),
    "parameter servers": (
        Flag("run_mode", read.run_mode, "collective (the default), ps or ps-heter"),
        Flag("server_num", read.number(1), "servers on this node"),
        Flag("trainer_num", read.number(1), "trainers on this node"),
        Flag(
            "servers",
            read.endpoints,
            "all servers of the job, as host:port,host:port",
            other_variable="PADDLE_SERVERS_ENDPOINTS",
        ),
        Flag(
            "trainers",
            read.endpoints,
            "all trainers of the job",
            other_variable="PADDLE_TRAINERS_ENDPOINTS",
        ),
        Flag("heter_worker_num", read.stage_counts, "heter workers for each stage, such as 2;2"),
        Flag(
            "heter_workers",
            read.stages,
            "all heter workers, stage by stage: host:port,host:port;host:port",
            other_variable="PADDLE_HETER_WORKERS_ENDPOINTS",
        ),
        Flag("heter_devices", read.stage_devices, "device type of each heter stage, as gpu;cpu"),
        Flag("gloo_port", read.port, "port for the meeting of gloo (6767)"),
        Flag("with_gloo", read.switch, "use gloo between them (yes)", is_switch=True),
        Flag("workers", read.endpoints, "", "trainers", deprecated="--trainers"),
        Flag("worker_num", read.number(1), "", "trainer_num", deprecated="--trainer_num"),
    ),
}

# After `ipu`, which stands where the script would.
IPU_FLAGS: tuple[Flag, ...] = (
    Flag("hosts", read.addresses, "machines, as a comma list"),
    Flag("nproc_per_host", read.number(1), "processes on each of them"),
    Flag("ipus_per_replica", read.number(1), "IPUs of each replica"),
    Flag("ipu_partition", read.text, "name of the partition"),
    Flag("vipu_server", read.text, "address of the V-IPU server"),
)

# What people write who come from elsewhere, where no name of ours means the same.
_ELSEWHERE = {
    "max_restarts": "torchrun's --max-restarts N is `--elastic_level 1 --max_restart N` here",
    "node_rank": "the rank of a node is --rank here",
    "rdzv_endpoint": "the place where nodes meet is --master host:port here",
    "rdzv_backend": "--master says it: host:port, or etcd://host:port",
    "rdzv_id": "the name of a job is --job_id here",
    "rdzv_conf": "there is no such setting; see --master, --elastic_timeout and --job_id",
    "standalone": "it is not needed: on one machine nothing has to be set up, and ports are free",
    "master_addr": "write --master host:port",
    "master_port": "write --master host:port",
    "local_addr": "this node's address is --host here",
    "shutdown_timeout": "the time between SIGTERM and SIGKILL is --grace_period here",
    "no_python": "it is not needed: what does not end in .py is executed as it is",
    "backend": "the devices decide; for the CPU write --device_type cpu",
    "legacy": "there is one launcher only",
}


def split_flags(
    argv: Sequence[str], flags: Sequence[Flag]
) -> tuple[dict[str, tuple[Flag, str]], list[str]]:
    """The flags at the beginning of a command line, and what follows them.

    Returns:
        From the name of each flag to it and its text, the last one if it was repeated; and the
        words from the first one on that is no flag.

    Raises:
        UsageError: A flag is not known, or its value is missing.
    """
    by_name = {flag.name: flag for flag in flags}
    found: dict[str, tuple[Flag, str]] = {}
    words = list(argv)
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        if word == "--":
            break
        if word == "-m":
            words.insert(0, word)
            break
        if word in ("-h", "--help"):
            raise HelpRequest(help_text())
        if word == "--version":
            from rankspawn import __version__

            raise HelpRequest(f"rankspawn {__version__}")
        name, equals, text = word.lstrip("-").partition("=")
        flag = by_name.get(name.replace("-", "_"))
        if flag is None or not word.startswith("--"):
            raise UsageError(_unknown(word, by_name))
        if not equals:
            text = _take_value(flag, words)
        found[flag.name] = (flag, text)
    return found, words


def read_variables(
    environ: Mapping[str, str], flags: Sequence[Flag], *, ignored: frozenset[str]
) -> dict[str, tuple[Flag, str]]:
    """The flags that variables stand for; an empty variable is none."""
    return {
        flag.name: (flag, environ[flag.variable])
        for flag in flags
        if environ.get(flag.variable, "").strip() and flag.variable not in ignored
    }


def help_text() -> str:
    """All flags, with their variables."""
    from textwrap import fill

    lines = [
        "usage: rankrun [flags] script.py [arguments of the script]",
        "       rankrun [flags] -m package.module [arguments]",
        "       rankrun [flags] program [arguments]",
        "",
        "Runs a script once per device, on this machine or on many. Dashes and underscores both",
        "work; the command line wins over the variable that stands beside a flag.",
    ]
    for title, flags in FLAGS.items():
        lines += ["", f"{title}:"]
        for flag in flags:
            if not flag.deprecated:
                lines.append(f"  {flag.written}  ({flag.variable})")
                indent = " " * 6
                lines.append(fill(flag.help, 96, initial_indent=indent, subsequent_indent=indent))
    return "\n".join(lines)


def _take_value(flag: Flag, words: list[str]) -> str:
    """The value that follows a flag, taken from the words."""
    if flag.is_switch:
        return words.pop(0) if words and read.is_switch_word(words[0]) else "yes"
    if not words or words[0].startswith("--"):
        follows = f"{words[0]} follows" if words else "nothing follows"
        raise UsageError(f"{flag.written} needs a value, but {follows}: {flag.help}")
    return words.pop(0)


def _unknown(word: str, by_name: Mapping[str, Flag]) -> str:
    """What to say about a flag that does not exist."""
    name = word.lstrip("-").partition("=")[0].replace("-", "_")
    if name in _ELSEWHERE:
        return f"there is no flag {word.partition('=')[0]}: {_ELSEWHERE[name]}"
    # Imported here: difflib is needed on the way to an error only.
    from difflib import get_close_matches

    nearest = get_close_matches(name, list(by_name), n=1, cutoff=0.5)
    hint = f"did you mean --{nearest[0]}?" if nearest else "see `rankrun --help`"
    written = word.partition("=")[0]
    return f"there is no flag {written}: {hint} (flags of the script stand after the script)"
