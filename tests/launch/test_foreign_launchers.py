"""``mpirun rankrun …``, and machines that were prepared for torchrun."""

from __future__ import annotations

from pathlib import Path

import pytest

from rankspawn.launch.flags import UsageError
from rankspawn.launch.schedulers import fill
from tests.launch.factories import config_of
from tests.launch.running import rankrun, write_script
from tests.launch.test_schedulers import MEETING, POD, STEP, asked, filled

# What `mpirun -n 2 --map-by ppr:1:node` of Open MPI sets for its second process.
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
    "PMIX_RANK": "1",
    "PMIX_NAMESPACE": "prterun-box-1@1",
}
# The same with `mpiexec -n 2 -ppn 1` of MPICH.
MPICH = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}
PMIX = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "job"}


@pytest.mark.parametrize("environ", [OPEN_MPI, MPICH], ids=["Open MPI", "MPICH"])
class TestMpirun:
    def test_numbers_are_those_of_nodes(self, environ: dict[str, str]) -> None:
        config = filled("--master 10.0.0.1:29500", environ)
        assert asked(config) == (2, 2, 1, "10.0.0.1:29500")
        assert "taken from the mpirun that started this" in config.notes[0]
        assert "--nnodes 2 --rank 1" in config.notes[0]

    def test_a_master_that_was_exported(self, environ: dict[str, str]) -> None:
        assert asked(filled("", environ | MEETING)) == (2, 2, 1, "train-0.workers:29500")

    def test_nobody_says_where_they_meet(self, environ: dict[str, str]) -> None:
        with pytest.raises(UsageError, match=r"_SIZE=2 .*give --master host:port.*--nnodes 1 if"):
            filled("", environ)

    def test_in_a_slurm_allocation(self, environ: dict[str, str]) -> None:
        # The processes of one job are in different steps there, or in none.
        slurm = STEP | {"SLURM_STEP_ID": "7", "SLURM_JOB_NODELIST": "node[01-02]"}
        assert asked(filled("", slurm | environ)) == (2, 2, 1, "node01:24711")

    def test_several_copies_on_a_machine(self, environ: dict[str, str]) -> None:
        local = "OMPI_COMM_WORLD_LOCAL_SIZE" if "PMIX_RANK" in environ else "MPI_LOCALNRANKS"
        environ = environ | {local: "2"}
        with pytest.raises(UsageError, match=rf"2 launchers on this machine \({local}\).*ppr:1"):
            filled("", environ)
        # Each is to be a node, or a job: that was said.
        line = "--nnodes 2 --master 127.0.0.1:29500"
        assert asked(filled(line, environ)) == (2, 2, 1, "127.0.0.1:29500")
        alone = config_of("--nnodes 1")
        assert fill(alone, environ) is alone

    def test_what_was_given_wins(self, environ: dict[str, str]) -> None:
        assert asked(filled("--nnodes 2 --rank 0 --master h:1", environ)) == (2, 2, 0, "h:1")
        assert asked(filled("--nnodes 1:2 --master h:1", environ)) == (1, 2, -1, "h:1")
        assert filled("--rank -1 --master h:1", environ).node_rank == -1

    def test_one_process_is_no_job_of_many(self, environ: dict[str, str]) -> None:
        size = next(name for name in environ if name.endswith("_SIZE"))
        config = config_of("")
        assert fill(config, environ | {size: "1"}) is config

    def test_a_worker_of_ours_is_in_a_job_already(self, environ: dict[str, str]) -> None:
        config = config_of("")
        assert fill(config, environ | {"RANKSPAWN_DEVICE_TYPE": "cpu"}) is config


class TestPmixAlone:
    def test_says_not_how_many_there_are(self) -> None:
        with pytest.raises(UsageError, match=r"PMIX_RANK=1 .*how many.*--nnodes 1 if"):
            filled("", PMIX)
        config = config_of("--nnodes 1")
        assert fill(config, PMIX) is config

    def test_is_the_rank(self) -> None:
        assert asked(filled("--nnodes 2 --master h:1", PMIX)) == (2, 2, 1, "h:1")
        with pytest.raises(UsageError, match=r"PMIX_RANK=3 is out of range for 2 nodes"):
            filled("--nnodes 2 --master h:1", PMIX | {"PMIX_RANK": "3"})


@pytest.mark.parametrize("more", [PMIX, {"PMI_RANK": "1", "PMI_SIZE": "3"}])
def test_srun_speaks_for_itself(more: dict[str, str]) -> None:
    """``srun --mpi=pmix`` sets them beside Slurm's own."""
    assert asked(filled("", STEP | more)) == (3, 3, 1, "node01:24711")


def test_copies_do_not_train_alone_without_a_word(tmp_path: Path) -> None:
    write_script(tmp_path, "print('here')")
    environ = OPEN_MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    done = rankrun(tmp_path, "--nproc_per_node", "1", "train.py", **environ)
    assert (done.code, done.output) == (2, "")
    assert "mpirun started 2 launchers on this machine" in done.errors


# What Kubeflow sets in the second pod of a PyTorchJob.
KUBEFLOW = {
    **POD,
    "PET_NNODES": "2",
    "PET_NODE_RANK": "1",
    "PET_NPROC_PER_NODE": "4",
    "PET_MASTER_ADDR": "train-master-0",
    "PET_MASTER_PORT": "23456",
}
OLD_KUBEFLOW = {
    "KUBERNETES_SERVICE_HOST": "10.96.0.1",
    "HOSTNAME": "train-worker-0",
    "RANK": "1",
    "WORLD_SIZE": "3",
    "MASTER_ADDR": "train-master-0",
    "MASTER_PORT": "23456",
}
# There Kubeflow may call the master so, which the others do not reach by that.
FIRST_POD = {"PET_NODE_RANK": "0", "PET_MASTER_ADDR": "localhost", "HOSTNAME": "train-master-0"}


class TestTorchrun:
    def test_the_variables_of_kubeflow(self) -> None:
        config = filled("", KUBEFLOW)
        assert asked(config) == (2, 2, 1, "train-master-0:23456")
        assert config.nproc_per_node == 4
        assert config.notes == (
            "taken from the PET_* variables, which are torchrun's: --nnodes 2 --rank 1 "
            "--master train-master-0:23456 --nproc_per_node 4",
        )

    def test_an_elastic_job(self) -> None:
        environ = KUBEFLOW | {
            "PET_NNODES": "1:3",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": "train-worker-0:23456",
            "PET_RDZV_ID": "train",
        }
        config = filled("", environ)
        assert asked(config) == (1, 3, -1, "train-worker-0:23456")
        assert config.job_id == "train"
        assert "--nnodes 1:3" in config.notes[0]

    @pytest.mark.parametrize(
        ("changes", "master"),
        [
            ({"PET_RDZV_ENDPOINT": "head"}, "head:29400"),
            ({"PET_RDZV_ENDPOINT": "[fd00::1]"}, "[fd00::1]:29400"),
            ({"PET_RDZV_ENDPOINT": "e:2379", "PET_RDZV_BACKEND": "etcd-v2"}, "etcd://e:2379"),
            ({"PET_MASTER_PORT": ""}, "train-master-0:29500"),
            (FIRST_POD, "train-master-0:23456"),
            (FIRST_POD | {"KUBERNETES_SERVICE_HOST": ""}, "localhost:23456"),
            ({"PET_MASTER_ADDR": "", **MEETING}, "train-0.workers:29500"),
        ],
    )
    def test_where_they_meet(self, changes: dict[str, str], master: str) -> None:
        assert filled("", KUBEFLOW | changes).master == master

    def test_nobody_says_where_they_meet(self) -> None:
        with pytest.raises(UsageError, match=r"PET_NNODES .*PET_RDZV_ENDPOINT"):
            filled("", {"PET_NNODES": "2"})

    def test_what_was_given_wins(self) -> None:
        line = "--nnodes 2 --rank 0 --master h:1 --nproc_per_node 2 --job_id mine"
        config = filled(line, KUBEFLOW | {"PET_RDZV_ID": "train"})
        assert asked(config) == (2, 2, 0, "h:1")
        assert (config.nproc_per_node, config.job_id) == (2, "mine")
        alone = config_of("--nnodes 1")
        assert fill(alone, KUBEFLOW) is alone

    def test_one_node(self) -> None:
        config = filled("", {"PET_NNODES": "1", "PET_NPROC_PER_NODE": "gpu"})
        assert (asked(config), config.device_type) == ((1, 1, -1, None), "gpu")

    @pytest.mark.parametrize(
        ("name", "text"),
        [("PET_NNODES", "many"), ("PET_NODE_RANK", "x"), ("PET_NODE_RANK", "2")],
    )
    def test_variables_without_sense(self, name: str, text: str) -> None:
        with pytest.raises(UsageError, match=f"{name}="):
            filled("", KUBEFLOW | {name: text})


class TestPods:
    def test_numbers_are_those_of_nodes(self) -> None:
        config = filled("", OLD_KUBEFLOW)
        assert asked(config) == (3, 3, 1, "train-master-0:23456")
        assert "if WORLD_SIZE counts workers, give --nnodes" in config.notes[0]

    def test_the_first_one_is_not_reached_over_loopback(self) -> None:
        first = {"RANK": "0", "MASTER_ADDR": "localhost", "HOSTNAME": "train-master-0"}
        assert asked(filled("", OLD_KUBEFLOW | first)) == (3, 3, 0, "train-master-0:23456")

    @pytest.mark.parametrize(
        "changes",
        [
            {"RANK": ""},
            {"WORLD_SIZE": "1", "RANK": "0"},
            # A process of torchrun's, and one that somebody tries out on a machine.
            {"LOCAL_RANK": "0"},
            {"MASTER_ADDR": "localhost", "KUBERNETES_SERVICE_HOST": ""},
        ],
        ids=str,
    )
    def test_left_alone(self, changes: dict[str, str]) -> None:
        config = config_of("")
        assert fill(config, OLD_KUBEFLOW | changes) is config

    def test_another_number_of_nodes_is_another_matter(self) -> None:
        assert filled("--nnodes 2 --master h:1", OLD_KUBEFLOW).node_rank == -1
        # Where the index says it, and the size counts workers.
        environ = OLD_KUBEFLOW | POD | {"WORLD_SIZE": "8"}
        assert asked(filled("--nnodes 2", environ)) == (2, 2, 1, "train-master-0:23456")

    def test_a_rank_beyond_its_nodes(self) -> None:
        with pytest.raises(UsageError, match=r"RANK=3 is out of range for 3 nodes"):
            filled("", OLD_KUBEFLOW | {"RANK": "3"})
