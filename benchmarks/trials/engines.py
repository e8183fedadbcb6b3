"""What an engine adds to what it is made of: two agents with ranks that do nothing.

Metrics, measured in turns: ``ours`` the spawn, ``bare`` the engine's own way to run nothing
twice, ``noticed`` from a rank's failure to the exception; ``end`` what ``srun`` takes to end when
its tasks have. Servers are started for it.
"""


def do_nothing(*_: object) -> None:
    """Runs in the worker."""


def fail() -> None:
    """Runs in the worker: raise the time; one machine has one clock."""
    import time

    import rankspawn

    if rankspawn.get_rank() == 1:
        raise ValueError(str(time.monotonic_ns()))
    time.sleep(1000)


if __name__ == "__main__":
    import os
    import subprocess
    import time
    from collections.abc import Callable, Mapping
    from importlib import import_module
    from typing import Any

    import rankspawn
    from benchmarks.trials import frame
    from benchmarks.trials.remote_python import python_with_path
    from benchmarks.trials.stopwatch import timed
    from rankspawn.cluster import Local, Ray, Slurm, Ssh

    ROUNDS, QUICK_ROUNDS = 5, 2
    Figures = dict[str, list[float]]

    def measure_in_turns(engine: Any, bare: Callable[[], object], nprocs: int = 1) -> Figures:
        """One round before does not count."""
        options: dict[str, Any] = {"backend": "gloo", "cluster": engine}
        found: Figures = {"bare": [], "ours": [], "noticed": []}
        for _ in range(rounds + 1):
            found["bare"].append(timed(bare))
            start = lambda: rankspawn.spawn(do_nothing, nprocs=nprocs, **options)  # noqa: E731
            found["ours"].append(timed(start))
            try:
                rankspawn.spawn(fail, nprocs=1, grace_period=1.0, **options)
            except rankspawn.ProcessRaisedException as error:
                noticed = (time.monotonic_ns() - int(str(error.exception))) / 1e9
                found["noticed"].append(noticed)
        return {name: each[1:] for name, each in found.items()}

    def local() -> Figures:
        """Beside four ranks of one group."""
        plain = lambda: rankspawn.spawn(do_nothing, nprocs=4, backend="gloo")  # noqa: E731
        return measure_in_turns(Local(nodes=2), plain, nprocs=2)

    def ssh() -> Figures:
        """Beside ``ssh host true`` on both hosts, one after the other."""
        sshd = import_module("tests.cluster.sshd")
        with sshd.running_sshd() as server:
            engine = Ssh(
                sshd.HOSTS,
                port=server.port,
                identity=server.identity,
                python=python_with_path(server.folder),
                options=server.options,
            )
            commands = [engine.command(host, ["true"]) for host in sshd.HOSTS]
            return measure_in_turns(
                engine, lambda: [subprocess.run(one, check=True) for one in commands]
            )

    def slurm() -> Figures:
        """Beside ``srun -N2 true``."""
        with import_module("tests.launch.slurm_cluster").running_slurm() as cluster:
            os.environ["SLURM_CONF"] = str(cluster.configuration)
            srun = [*cluster.srun(), "--quiet"]
            run_nothing = lambda: subprocess.run([*srun, "true"], check=True)  # noqa: E731
            found = measure_in_turns(Slurm(nodes=2), run_nothing)
            return found | {"end": [_end_of_srun(srun) for _ in range(rounds)]}

    def _end_of_srun(srun: list[str]) -> float:
        """Seconds from the last thing that a task does."""
        told = subprocess.check_output([*srun, "date", "+%s%N"])
        return (time.time_ns() - max(map(int, told.split()))) / 1e9

    def on_ray(use: Callable[[Any], Figures]) -> Figures:
        """A cluster of two nodes on this machine."""
        ray = import_module("ray")
        utils = import_module("ray.cluster_utils")
        head = {"node_ip_address": "127.0.0.2", "include_dashboard": False, "num_cpus": 4}
        cluster = utils.Cluster(initialize_head=True, head_node_args=head)
        cluster.add_node(node_ip_address="127.0.0.3", num_cpus=4)
        ray.init(address=cluster.address, _node_ip_address="127.0.0.2", log_to_driver=False)
        try:
            return use(ray)
        finally:
            ray.shutdown()
            cluster.shutdown()

    def beside_actors(ray: Any) -> Figures:
        """Beside two empty actors that Ray places on two nodes."""
        strategies = import_module("ray.util.scheduling_strategies")

        class Empty:
            def answer(self) -> int:
                return 1

        actor = ray.remote(num_cpus=1)(Empty)

        def bare() -> None:
            group = ray.util.placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
            place = strategies.PlacementGroupSchedulingStrategy
            actors = [
                actor.options(scheduling_strategy=place(group, number)).remote()
                for number in (0, 1)
            ]
            ray.get([each.answer.remote() for each in actors])
            for each in actors:
                ray.kill(each)
            ray.util.remove_placement_group(group)

        return measure_in_turns(Ray(nodes=2), bare)

    def ray_train(_: Any) -> Figures:
        """TorchTrainer with two workers."""
        os.environ["RAY_TRAIN_V2_ENABLED"] = "1"
        trainers = import_module("ray.train.torch")
        train = import_module("ray.train")

        def fit() -> None:
            scaling = train.ScalingConfig(num_workers=2, placement_strategy="STRICT_SPREAD")
            trainers.TorchTrainer(lambda: None, scaling_config=scaling).fit()

        return {"ours": [timed(fit) for _ in range(2 if is_quick else 3)][1:]}

    def torchrunx() -> Figures:
        """Its own launcher on the same two hosts, which it reads from ssh's configuration."""
        sshd = import_module("tests.cluster.sshd")
        module = import_module("torchrunx")
        with sshd.running_sshd() as server:
            config = server.folder / "config"
            entries = [f"  Port {server.port}", f"  IdentityFile {server.identity}"]
            entries += [f"  UserKnownHostsFile {server.known_hosts}", f"  User {server.user}"]
            lines = [line for host in sshd.HOSTS for line in (f"Host {host}", *entries)]
            config.write_text("\n".join(lines) + "\n")
            one = module.Launcher(
                hostnames=list(sshd.HOSTS),
                workers_per_host=1,
                ssh_config_file=config,
                backend="gloo",
            )
            launches = 2 if is_quick else 3
            return {"ours": [timed(lambda: one.run(do_nothing)) for _ in range(launches)][1:]}

    MEASURES: dict[str, Callable[[], Figures]] = {
        "Local": local,
        "ssh": ssh,
        "Slurm": slurm,
        "Ray": lambda: on_ray(beside_actors),
        "Ray Train": lambda: on_ray(ray_train),
        "torchrunx": torchrunx,
    }

    rounds, is_quick = ROUNDS, False

    def measure(trial: Mapping[str, Any]) -> Figures:
        """One engine, or a peer."""
        global rounds, is_quick  # noqa: PLW0603 - one trial is all that this program does
        is_quick = trial["quick"]
        rounds = QUICK_ROUNDS if is_quick else ROUNDS
        return MEASURES[trial["contender"]]()

    frame.run(measure)
