"""What a launcher and those that it starts on hosts say to each other."""

from __future__ import annotations

import os
import signal
from contextlib import closing
from pathlib import Path

import pytest

from rankspawn.cluster.engine import Node
from rankspawn.launch.config import LaunchConfig, read_config
from rankspawn.launch.flags import UsageError
from rankspawn.launch.host_jobs import (
    Greeting,
    check_greeting,
    check_hosts,
    farewell,
    make_jobs,
    master_at,
    read_farewell,
    read_greeting,
    signal_line,
)
from rankspawn.launch.on_host import Input, obey
from rankspawn.launch.other_nodes import words_for_others

GREETING = Greeting("1.0", "3.11.2", "10.0.0.1", 4321)


def config(*flags: str, **variables: str) -> LaunchConfig:
    return read_config([*flags, "train.py", "--lr", "0.1"], variables)


def jobs_of(*flags: str, **variables: str) -> list[list[str]]:
    asked = config(*flags, **variables)
    nodes = check_hosts(asked)
    jobs = make_jobs(
        nodes,
        same=words_for_others([*flags, "train.py", "--lr", "0.1"], variables, asked.given),
        master=master_at(asked.master, "10.0.0.1", 4321, len(nodes)),
        folder="/here",
        token="secret",
        key="key",
    )
    for job in jobs:
        assert {"folder": "/here", "token": "secret", "key": "key"}.items() <= job.items()
    return [job["argv"] for job in jobs]


def test_each_host_is_told_its_rank_and_what_holds_for_all() -> None:
    first, second = jobs_of("--hosts", "a,b:2", "--ssh", "--tee", "3", PADDLE_JOB_ID="night")
    common = ["--nnodes", "2", "--master", "10.0.0.1:4321"]
    rest = ["--tee", "3", "--job_id", "night"]
    script = ["train.py", "--lr", "0.1"]
    assert first == [*common, "--rank", "0", *rest, *script]
    assert second == [*common, "--rank", "1", *rest, "--nproc_per_node", "2", *script]


def test_the_count_of_a_host_wins_over_that_of_all() -> None:
    for argv, count in zip(
        jobs_of("--hosts=a,b:2", "--ssh", "--nproc_per_node=3"), (3, 2), strict=True
    ):
        assert read_config(argv, {}).nproc_per_node == count


def test_a_single_host_meets_nobody() -> None:
    assert jobs_of("--hosts", "a", "--ssh") == [["train.py", "--lr", "0.1"]]


def test_a_master_that_was_named_is_kept() -> None:
    argv, _ = jobs_of("--hosts", "a,b", "--ssh", "--master", "etcd://c:2379")
    assert argv[2:4] == ["--master", "etcd://c:2379"]


def test_the_first_host_s_address_may_be_one_of_ipv6() -> None:
    assert master_at(None, "fe80::1", 5, 2) == "[fe80::1]:5"


def test_hosts_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("a slots=2\nb\n")
    assert check_hosts(config("--hosts", str(tmp_path / "hosts"), "--ssh")) == [
        Node("a", 2),
        Node("b"),
    ]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ssh"], "--ssh needs --hosts"),
        (["--hosts", "a"], "--hosts needs --ssh"),
        (["--hosts", "a,a", "--ssh"], "--hosts: hosts name a twice"),
        (["--hosts", "a b", "--ssh"], "--hosts: .*'a b' is no host"),
        (["--hosts", "a,b", "--ssh", "--nnodes", "2"], "leave --nnodes out"),
        (["--hosts", "a,b", "--ssh", "--rank", "0"], "leave --rank out"),
        (["--hosts", "a,b", "--ssh", "--standalone"], "leave --nnodes out"),
        (["--hosts", "a,b", "--ssh", "--host", "c"], "leave --host out"),
        (["--hosts", "a,b", "--ssh", "--server_num", "1"], "with --run_mode ps start"),
        (["--hosts", "a,b", "--ssh", "--progress"], "--progress is about one node"),
        (["--hosts", "a,b", "--ssh", "--debug", "0"], "--debug is about one node"),
        (["--hosts", "a,b", "--ssh", "--trace", "x.html"], "--trace is about one node"),
    ],
)
def test_what_makes_no_sense_is_refused(flags: list[str], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        check_hosts(config(*flags))


def test_hosts_of_an_outer_job_are_not_those_of_an_inner_one() -> None:
    variables = {"PADDLE_HOSTS": "a", "PADDLE_SSH": "1"}
    assert config(**variables).hosts == "a"
    inner = config(**variables, RANKSPAWN_DEVICE_TYPE="cpu")
    assert (inner.hosts, inner.ssh) == (None, False)


def test_a_greeting_is_found_among_other_words() -> None:
    line = GREETING.line()
    assert line.endswith(b"\n")
    assert read_greeting(line.rstrip(b"\n")) == GREETING
    for other in (b"Welcome!", b"rankspawn-host ", b"rankspawn-host 3", b'rankspawn-host {"a": 1}'):
        assert read_greeting(other) is None


def test_another_version_is_an_error_that_names_both() -> None:
    check_greeting("b", GREETING, version="1.0", python="3.12.1")
    with pytest.raises(OSError, match=r"b has rankspawn 1\.0 .*this machine rankspawn 2\.0"):
        check_greeting("b", GREETING, version="2.0", python="3.12.1")


def test_the_last_line_tells_the_exit_code() -> None:
    line = farewell("key", 7).rstrip(b"\n")
    assert read_farewell("key", line) == (b"", 7)
    assert read_farewell("key", b"no end of line" + line) == (b"no end of line", 7)
    assert read_farewell("another", line) is None


def test_signals_are_taken_until_nobody_is_there() -> None:
    read, write = os.pipe()
    taken: list[int] = []
    os.write(write, b"\n" + signal_line(signal.SIGINT) + b"what?\n" + signal_line(signal.SIGUSR1))
    os.close(write)
    with closing(os.fdopen(read, "rb")):
        obey(Input(read), taken.append)
    assert taken == [signal.SIGINT, signal.SIGUSR1]


def test_silence_is_the_end_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rankspawn.launch.on_host.LOST_SECONDS", 0)
    read, write = os.pipe()
    try:
        obey(Input(read), lambda _: None)
    finally:
        os.close(read)
        os.close(write)
