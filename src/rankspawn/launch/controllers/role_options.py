"""What the options say about servers, trainers and heter workers, and whether they agree.

A job is described in one of two ways, never half and half: by counts for each node
(``--server_num``, ``--trainer_num``), or by the endpoints of the whole job (``--servers``,
``--trainers``), which say by their hosts what runs where. Where Paddle's launcher ignores one
of two options that contradict each other, here it is an error: it is not for us to guess.

Pure: values in, values out.
"""

from __future__ import annotations

from rankspawn.launch.flags import UsageError
from rankspawn.plan.topology import join, split_endpoint, stray_loopback
from rankspawn.values import dataclass

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.launch.config import LaunchConfig


@dataclass(frozen=True, slots=True)
class RoleCounts:
    """How many processes of each role; heter workers by stage."""

    servers: int
    trainers: int
    stages: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """The number of processes of all roles."""
        return self.servers + self.trainers + sum(self.stages)


def check_roles(config: LaunchConfig) -> None:
    """Refuse options that contradict each other; to be called before nodes meet.

    Raises:
        UsageError: They do; it names both and says what to write.
    """
    mode = config.run_mode
    if config.is_elastic:
        raise UsageError(
            f"--run_mode {mode} and --nnodes {config.min_nodes}:{config.max_nodes} exclude each "
            "other: servers keep a part of the model each, so their number cannot change; give "
            f"one number of nodes, such as --nnodes {config.max_nodes}"
        )
    _check_lists(config)
    if config.servers:
        _check_counts_of_lists(config)
    _check_nproc(config)
    if mode == "ps-heter":
        _check_stages(config)
    elif config.heter_devices:
        raise UsageError(
            f"--heter_devices and --run_mode {mode} exclude each other: heter workers are for "
            "--run_mode ps-heter"
        )


def counts_of(config: LaunchConfig) -> RoleCounts:
    """The processes of each node; not for jobs that list their endpoints."""
    # Paddle's defaults, for those who said --run_mode ps or gave one of the two.
    servers = 1 if config.server_num is None else config.server_num
    trainers = 1 if config.trainer_num is None else config.trainer_num
    return RoleCounts(servers, trainers, config.heter_worker_num or ())


def role_terms(config: LaunchConfig) -> str:
    """What all nodes must say alike about their processes, as a user would write it."""
    mode = f"--run_mode {config.run_mode}"
    if config.run_mode == "collective":
        return mode
    if config.servers:
        listed = {"--servers": config.servers, "--trainers": config.trainers}
        return " ".join([mode, *(f"{flag} ({len(own)} listed)" for flag, own in listed.items())])
    counts = counts_of(config)
    stages = ";".join(map(str, counts.stages))
    heter = f" --heter_worker_num {stages}" if stages else ""
    return f"{mode} --server_num {counts.servers} --trainer_num {counts.trainers}{heter}"


def _check_lists(config: LaunchConfig) -> None:
    """Lists are for the whole job, so one alone, or one next to a count, is half of it."""
    pairs = {"--servers": config.servers, "--trainers": config.trainers}
    counts = {"--server_num": config.server_num, "--trainer_num": config.trainer_num}
    given = [name for name, value in pairs.items() if value]
    if len(given) == 1:
        missing = next(name for name in pairs if name not in given)
        rivals = [name for name, value in counts.items() if value is not None]
        hint = f" and takes no {rivals[0]}" if rivals else ""
        raise UsageError(
            f"{given[0]} lists endpoints of the whole job{hint}: list the others too, with "
            f"{missing} host:port,…, or use --server_num and --trainer_num alone"
        )
    if config.heter_workers and not given:
        raise UsageError(
            "--heter_workers lists endpoints of the whole job: list the others too, with "
            "--servers and --trainers, or use --heter_worker_num"
        )
    everybody = [*config.servers, *config.trainers, *config.heter_workers]
    for place, endpoint in enumerate(everybody):
        if endpoint in everybody[:place]:
            raise UsageError(
                f"{endpoint} stands in two of --servers, --trainers and --heter_workers: each "
                "process needs a port of its own"
            )
    if config.servers:
        loopback = stray_loopback([split_endpoint(endpoint)[0] for endpoint in everybody])
        if loopback is not None:
            raise UsageError(
                f"--servers and --trainers name {everybody[loopback]} next to other machines, but "
                "this address means a different machine on every node: use the one at which the "
                "others reach it"
            )
        gloo = join(split_endpoint(config.servers[0])[0], config.gloo_port)
        if gloo in everybody:
            raise UsageError(
                f"--gloo_port {config.gloo_port} and the listed {gloo} are the same port: "
                "change one of them"
            )


def _check_counts_of_lists(config: LaunchConfig) -> None:
    """A count next to a list may only say the same."""
    for listed, number, name in (
        (config.servers, config.server_num, "server"),
        (config.trainers, config.trainer_num, "trainer"),
    ):
        nodes = len({split_endpoint(endpoint)[0] for endpoint in listed})
        if number is not None and number * nodes != len(listed):
            raise UsageError(
                f"--{name}_num {number} and --{name}s with {len(listed)} entries on {nodes} "
                f"hosts contradict each other: leave --{name}_num out"
            )


def _check_nproc(config: LaunchConfig) -> None:
    """A number of workers is allowed if it says what is known anyway."""
    number = config.nproc_per_node
    if number is None:
        return
    if config.servers:
        raise UsageError(
            f"--nproc_per_node {number} and --trainers contradict each other: the endpoints say "
            "how many trainers each node has; leave --nproc_per_node out"
        )
    trainers = counts_of(config).trainers
    if number != trainers:
        raise UsageError(
            f"--nproc_per_node {number} and --run_mode {config.run_mode} contradict each other: "
            f"a node has servers and trainers then, here {trainers} of the latter; write "
            f"--trainer_num {number} in place of --nproc_per_node {number}"
        )


def _check_stages(config: LaunchConfig) -> None:
    stages = config.heter_worker_num
    if not stages:
        raise UsageError(
            "--run_mode ps-heter needs heter workers: give --heter_worker_num 2 (or 2;1 for two "
            "stages), or list their endpoints with --heter_workers; without any it is --run_mode ps"
        )
    if config.servers and not config.heter_workers:
        raise UsageError(
            "--servers lists endpoints of the whole job and takes no --heter_worker_num: list "
            "the heter workers too, with --heter_workers host:port,…;host:port,…"
        )
    if len(config.heter_devices) not in (0, 1, len(stages)):
        raise UsageError(
            f"--heter_devices names {len(config.heter_devices)} types for {len(stages)} stages of "
            "heter workers: give one for each stage, such as gpu;cpu, or one for all"
        )
