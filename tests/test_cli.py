"""The command ``rankspawn doctor`` as users run it: real processes, this machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import rankspawn
from rankspawn.cli import main
from tests.jobs import DEADLOCK

FRAMEWORKS = {"torch", "paddle", "jax", "numpy", "psutil", "cloudpickle", "tensorflow"}


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )


def test_the_report_fits_a_terminal_and_names_what_spawn_would_do() -> None:
    done = run("-m", "rankspawn", "doctor", CUDA_VISIBLE_DEVICES="4,5")

    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= 80
    assert lines[0].startswith(f"rankspawn {rankspawn.__version__}, cpython")
    words = " ".join(done.stdout.split())
    assert "CUDA_VISIBLE_DEVICES=4,5 shows 2, which frameworks count from 0 to 1" in words
    assert "spawn(func, nprocs=-1) would start" in lines
    assert "  workers         2, backend nccl" in lines
    assert "  ranks           0 on gpu:4, 1 on gpu:5" in lines


def test_what_would_make_spawn_fail_gives_exit_code_1(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_NUM", "many")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    assert main(["doctor"]) == 1
    assert "CPU_NUM='many' must be a positive number" in " ".join(capsys.readouterr().out.split())


def test_json_has_everything_and_agrees_with_spawn(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CPU_NUM", "3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setenv("http_proxy", "http://me:secret@proxy:3128")

    assert main(["doctor", "--json"]) == 0
    text = capsys.readouterr().out
    report = json.loads(text)
    context = rankspawn.spawn(sorted, args=([1],), backend="gloo")

    assert report["spawn"]["nprocs"] == len(context.results()) == 3
    assert report["spawn"]["backend"] == "gloo"
    assert report["spawn"]["ranks"][2]["environment"]["RANK"] == "2"
    assert report["spawn"]["ranks"][2]["environment"]["MASTER_PORT"] == "<free port>"
    assert report["start_methods"]["default"] == "spawn"
    assert report["packages"]["cloudpickle"]
    assert "secret" not in text


def test_no_framework_is_imported_and_nothing_started() -> None:
    code = (
        "import sys, os; os.fork = os.posix_spawn = None\n"
        "from rankspawn.cli import main; main(['doctor']); import json\n"
        "print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    )
    done = run("-c", code)

    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert loaded & FRAMEWORKS == set()


def test_a_terminal_that_knows_ascii_only() -> None:
    done = run(
        "-m", "rankspawn", "doctor", PYTHONIOENCODING="ascii", http_proxy="http://proxy", RANK="0"
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "? Set them by the option env" in done.stdout


def test_help_and_wrong_usage() -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["--version"])
    with pytest.raises(SystemExit, match="2"):
        main(["docter"])


def test_a_reader_that_goes_away_is_no_traceback() -> None:
    command = f"{sys.executable} -m rankspawn doctor | true"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command],
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    assert done.stderr == ""
