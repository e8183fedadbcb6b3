"""Where the nodes of a job meet, and what the others are told to type."""

from __future__ import annotations

import shlex

import pytest

from rankspawn.launch.config import LaunchConfig, read_config
from rankspawn.launch.flags import UsageError
from rankspawn.launch.joining import JoinPlan, command_for_others, plan_join
from tests.plan.conftest import FakeMachine


def config(*flags: str, **variables: str) -> LaunchConfig:
    return read_config([*flags, "train.py", "--lr", "0.1"], variables)


HERE = FakeMachine(own=frozenset({"10.0.0.2"}))


def test_flags_are_taken_as_they_are() -> None:
    given = config("--nnodes", "2:4", "--master", "box:29500", "--rank", "1", "--host", "10.0.0.2")
    assert plan_join(given, HERE) == JoinPlan("box:29500", 1, "10.0.0.2", (), 2, 4)


def test_listed_addresses_give_rank_and_master() -> None:
    found = plan_join(config("--ips", "10.0.0.1,10.0.0.2"), HERE)
    assert found == JoinPlan("10.0.0.1:6069", 1, "10.0.0.2", ("10.0.0.1", "10.0.0.2"), 2, 2)


@pytest.mark.parametrize(
    "flags", ["--ips first,second", "--servers first:7000,second:7000 --trainers second:7001"]
)
def test_a_name_that_means_loopback_here_is_this_node(flags: str) -> None:
    """Debian has a machine's own name at 127.0.1.1, which no interface lists."""
    names = {"first": "127.0.1.1", "second": "10.0.0.2"}
    found = plan_join(config(*flags.split()), FakeMachine(names=names))
    assert (found.node_rank, found.host, found.hosts) == (0, "first", ("first", "second"))


def test_a_given_master_wins() -> None:
    given = config("--ips", "10.0.0.1,10.0.0.2", "--master", "10.0.0.1:7000")
    assert plan_join(given, HERE).master == "10.0.0.1:7000"


def test_an_address_that_is_not_listed_is_an_error() -> None:
    with pytest.raises(UsageError, match="none of the hosts of --ips"):
        plan_join(config("--ips", "10.0.0.1,10.0.0.3"), HERE)


def test_a_rank_that_contradicts_the_list_is_an_error() -> None:
    with pytest.raises(UsageError, match="has rank 1: leave --rank out"):
        plan_join(config("--ips", "10.0.0.1,10.0.0.2", "--rank", "0"), HERE)


def test_listed_servers_meet_at_a_port_of_nobody() -> None:
    given = config(
        *("--servers", "10.0.0.1:6069,10.0.0.2:6069", "--trainers", "10.0.0.2:6070"),
        *("--gloo_port", "6068"),
    )
    assert given.spans_machines
    found = plan_join(given, HERE)
    assert (found.master, found.node_rank, found.max_nodes) == ("10.0.0.1:6067", 1, 2)


@pytest.mark.parametrize(
    ("flags", "several"),
    [
        ([], False),
        (["--nnodes", "1"], False),
        (["--nnodes", "1:2"], True),
        (["--ips", "10.0.0.1"], False),
        (["--servers", "localhost:1", "--trainers", "127.0.0.1:2"], False),
        (["--servers", "10.0.0.1:1", "--trainers", "10.0.0.2:1"], True),
    ],
)
def test_one_machine_or_several(flags: list[str], several: bool) -> None:
    assert config(*flags).spans_machines is several


class TestCommand:
    def words(self, *flags: str, token: str = "", **variables: str) -> list[str]:
        given = config(*flags, **variables)
        argv = [*flags, "train.py", "--lr", "0.1"]
        return shlex.split(
            command_for_others(
                argv, variables, program="rankrun", master="box:1234", config=given, token=token
            )
        )

    def test_has_what_is_common_and_nothing_of_this_node(self) -> None:
        words = self.words("--nnodes=2:4", "--rank", "0", "--host", "10.0.0.2", "--gpus", "0,1")
        assert words == [
            *("rankrun", "--master", "box:1234", "--nnodes", "2:4", "--gpus", "0,1"),
            *("train.py", "--lr", "0.1"),
        ]

    def test_has_what_came_from_variables(self) -> None:
        words = self.words(PADDLE_NNODES="3", PADDLE_JOB_ID="night shift")
        assert words[3:7] == ["--nnodes", "3", "--job_id", "night shift"]

    def test_has_what_the_nodes_must_agree_on_from_variables_too(self) -> None:
        words = self.words("--nnodes", "2", PADDLE_ELASTIC_LEVEL="1", PADDLE_RANK="0", POD_IP="a")
        assert words[3:-3] == ["--nnodes", "2", "--elastic_level", "1"]

    def test_has_torchruns_words_too(self) -> None:
        words = self.words(
            *("--nnodes", "2", "--tee", "3", "--no-python", "--node-rank", "0"),
            *("--rdzv-backend", "static", "--local-addr", "10.0.0.2"),
            PET_ROLE="bob",
            PET_MASTER_PORT="7",
        )
        rest = words[words.index("--nnodes") + 2 :]
        assert rest[: rest.index("--role") + 2] == ["--tee", "3", "--no_python", "--role", "bob"]

    def test_has_no_variable_that_the_command_line_overruled(self) -> None:
        words = self.words(
            *("--nnodes", "2", "--server_num", "1", "--gpus", "0"),
            PADDLE_SERVERS_ENDPOINTS="a:1",
            PADDLE_DEVICES="1",
        )
        assert words[3:-3] == ["--nnodes", "2", "--server_num", "1", "--gpus", "0"]

    def test_has_a_new_token_before_it(self) -> None:
        assert self.words("--nnodes", "2", token="secret")[0] == "RANKSPAWN_JOB_TOKEN=secret"
