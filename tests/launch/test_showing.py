"""What rankrun shows of its ranks, as spawn shows its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rankspawn.launch.flags import UsageError
from rankspawn.launch.programs import TRAINER, ProgramSpec
from rankspawn.launch.showing import place_of, shown_ranks
from rankspawn.launch.torchrun import Streams
from rankspawn.view.prefix import check_prefix, fill_prefix
from rankspawn.view.sources import Place
from tests.launch.factories import config_of
from tests.launch.running import run_script

CPU = ("--device_type", "cpu")


def spec_of(rank: int, **env: str) -> ProgramSpec:
    return ProgramSpec(TRAINER, rank, ("x",), env, f"workerlog.{rank}", rank == 2)


@pytest.mark.parametrize(
    ("flags", "shown"),
    [
        ("--tee", True),
        ("--tee_all", True),
        ("--tee yes", True),
        ("--tee=no --progress", (2,)),
        ("--ranks_filter 1,0", (0, 1)),
        ("--prefix {rank}", (2,)),
    ],
)
def test_which_ranks_are_shown(flags: str, shown: bool | tuple[int, ...]) -> None:
    config = config_of(flags)
    assert config.shows_ranks
    assert config.streams is None
    assert shown_ranks(config, [spec_of(2), spec_of(3)]) == shown


@pytest.mark.parametrize("flags", ["--tee 3", "-t3", "--tee=0:3,1:1", "--tee 0"])
def test_streams_are_torchruns(flags: str) -> None:
    config = config_of(flags)
    assert not config.shows_ranks
    assert config.streams is not None


def test_our_words_among_torchruns() -> None:
    assert config_of("--tee --redirects 1").streams == Streams(redirects=1, tee=3)
    assert not config_of("--tee --redirects 1").shows_ranks
    with pytest.raises(UsageError, match="both want the terminal"):
        config_of("--progress --redirects 1")
    with pytest.raises(UsageError, match="give --local_ranks_filter"):
        config_of("--ranks_filter 1 --redirects 1")


def test_the_place_of_a_program() -> None:
    env = {
        "PADDLE_LOCAL_RANK": "1",
        "WORLD_SIZE": "4",
        "GROUP_RANK": "1",
        "FLAGS_selected_gpus": "7",
    }
    place = place_of(spec_of(3, **env))
    assert place == Place(3, 1, 4, "gpu 7", None, 1, place.host)
    assert place_of(spec_of(0)).device == "cpu"


def test_prefixes() -> None:
    values: dict[str, int | str] = {"rank": 3, "node": 1, "host": "b", "restart": 2}
    assert fill_prefix("{rank}@{host}/{node} try {restart}: ", **values) == b"3@b/1 try 2: "
    for wrong in ("{other}", "{", "{rank!x}", "a\nb"):
        with pytest.raises(ValueError, match="--prefix="):
            check_prefix("--prefix", wrong)


def test_ranks_with_prefixes_and_variables(tmp_path: Path) -> None:
    script = """
        import os
        print("hello", os.environ["A"], os.environ.get("OMP_NUM_THREADS"))
    """
    (tmp_path / "vars").write_text("A=1\nOMP_NUM_THREADS=5\n")
    flags = ("--tee", "--prefix", "<{rank} {local_rank} {node} {restart}> ", "--env", "A=2")
    done = run_script(tmp_path, script, *CPU, *flags, "--env-file", "vars")

    assert sorted(done.output.splitlines()) == ["<0 0 0 0> hello 2 5", "<1 1 0 0> hello 2 5"]

    # The second run in the same folder, of one of them, says in the log where it begins.
    done = run_script(tmp_path, script, *CPU, "--ranks-filter", "1", "--env", "A=3")
    assert done.output.startswith("[rank 1] hello 3")
    first, between, second = done.log("workerlog.0").splitlines()
    assert (first[:7], second[:7]) == ("hello 2", "hello 3")
    assert re.fullmatch(
        r"==== \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [+-]\d{4}: .* -u train.py ====", between
    )


def test_a_view_of_all_ranks(tmp_path: Path) -> None:
    done = run_script(tmp_path, "print('hello')", *CPU, "--progress")
    assert done.code == 0, done.errors
    assert "hello\n" in done.output


def test_the_last_line_of_a_worker_is_no_reason_of_ours(tmp_path: Path) -> None:
    done = run_script(tmp_path, "print('rankrun: all is well'); raise SystemExit(7)", *CPU)

    assert done.code == 7
    assert "\n  | rankrun: all is well" in done.errors
    assert "\nrankrun: all is well" not in done.errors


def test_more_than_its_time(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import time; time.sleep(1000)", *CPU, "--timeout", "0.2")

    assert done.code == 124
    last = done.errors.splitlines()[-1]
    assert last.startswith("rankrun: ended after 0.2 s, the time that --timeout gives the whole")


def test_what_cannot_be_imported_is_not_started_again(tmp_path: Path) -> None:
    done = run_script(tmp_path, "import nosuchmodule", *CPU, "--elastic_level", "1")

    assert done.code == 1
    assert "it is not started again: an import failed" in done.errors
    assert "restart" not in done.errors
