"""docs/launch.md against the program: its flags, its variables, its commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from rankspawn.launch.config import read_config
from rankspawn.launch.flags import FLAGS, IPU_FLAGS
from rankspawn.launch.schedulers import fill
from tests.launch.members import running_job
from tests.launch.running import ROOT, rankrun
from tests.ports import free_port

PAGE = (ROOT / "docs" / "launch.md").read_text()
ALL_FLAGS = [flag for group in FLAGS.values() for flag in group]

_SCRIPT = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
_COMMANDS = re.compile(
    r"<!-- runs -->\n```sh\n(.*?)```\n(?:<!-- shows -->\n```text\n(.*?)```)?", re.DOTALL
)
COMMANDS = [
    (line, shown)
    for block, shown in _COMMANDS.findall(PAGE)
    for line in block.replace("\\\n", "").splitlines()
]

# Those that need more than one machine, or devices, can at least be read.
OTHERS = [
    line[line.index("rankrun ") :]
    for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.replace("\\\n", "").splitlines()
    if line.startswith(("rankrun ", "srun rankrun "))
]
TOGETHER = re.findall(r"<!-- runs on two nodes -->\n```sh\n(.*?)\n```", PAGE, re.DOTALL)


def test_the_table_has_every_flag_with_its_variable() -> None:
    rows = re.findall(r"^\| `--(\w+)` \| `(\w+)` \|", PAGE, re.MULTILINE)
    expected = [(flag.name, flag.variable) for flag in ALL_FLAGS if not flag.deprecated]
    assert sorted(rows) == sorted(expected)


def test_deprecated_and_ipu_flags_are_named() -> None:
    for flag in [*IPU_FLAGS, *(flag for flag in ALL_FLAGS if flag.deprecated)]:
        assert f"`{flag.written}`" in PAGE


def test_there_are_commands_to_try() -> None:
    assert len(COMMANDS) >= 4


@pytest.mark.parametrize(("command", "shown"), COMMANDS)
def test_commands_work(tmp_path: Path, command: str, shown: str) -> None:
    assert _SCRIPT is not None
    (tmp_path / "train.py").write_text(_SCRIPT[1])
    program, *arguments = shlex.split(command)
    assert program == "rankrun"
    done = rankrun(tmp_path, *arguments)
    assert done.code == 0, done.errors
    if shown:
        assert done.output == shown
    assert (tmp_path / "log" / "workerlog.1").exists()


@pytest.mark.parametrize("command", TOGETHER)
def test_commands_for_two_nodes_work(tmp_path: Path, command: str) -> None:
    assert _SCRIPT is not None
    (tmp_path / "train.py").write_text(_SCRIPT[1])
    words = shlex.split(command.replace("10.0.0.1:29500", f"127.0.0.1:{free_port()}"))
    assert words.pop(0) == "rankrun"
    with running_job(tmp_path) as job:
        for _ in range(2):
            job.start(*words[:-3], script=words[-3:])
        assert job.codes() == [0, 0]
    ranks = [log.name for log in tmp_path.rglob("workerlog.*")]
    assert sorted(ranks) == [f"workerlog.{rank}" for rank in range(4)]


def test_there_is_one() -> None:
    assert TOGETHER


@pytest.mark.parametrize("command", OTHERS)
def test_all_commands_can_be_read(command: str) -> None:
    assert read_config(shlex.split(command)[1:], {}).script in ("train.py", "platform", "sh")


def test_the_kubernetes_job_says_all_that_is_needed() -> None:
    environ = dict(re.findall(r"- \{name: (\w+), value: \"?([^\"}]+)", PAGE))
    environ["JOB_COMPLETION_INDEX"] = "1"
    config = fill(read_config(["train.py"], environ), environ)
    assert (config.min_nodes, config.node_rank) == (2, 1)
    assert config.master == "train-0.train:29500"
