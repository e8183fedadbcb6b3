"""Interpreters that cannot start: the error says that, and not that something called os._exit."""

from __future__ import annotations

import sys
from multiprocessing import spawn as mp_spawn
from pathlib import Path

import pytest

import rankspawn
from rankspawn import ProcessExitedException
from tests import jobs


@pytest.mark.parametrize(
    "environ", [{"PYTHONHOME": "/no/such/folder"}, {"PYTHONHASHSEED": "x"}], ids=list
)
def test_variables_that_no_interpreter_starts_with(environ: dict[str, str], tmp_path: Path) -> None:
    with pytest.raises(ProcessExitedException, match="its interpreter could not start") as caught:
        rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", env=environ, log_dir=tmp_path)

    assert next(iter(environ)) in str(caught.value)


@pytest.mark.parametrize("program", ["/bin/true", "/bin/false"])
def test_an_executable_that_is_no_interpreter(
    program: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mp_spawn, "_python_exe", program.encode())
    with pytest.raises(ProcessExitedException, match=r"a sys\.executable that is no Python"):
        rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_no_executable_is_said_before_anything_starts(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mp_spawn, "_python_exe", None)
    monkeypatch.setattr(sys, "executable", None)
    with pytest.raises(RuntimeError, match=r"no interpreter .* sys\.executable is not set"):
        rankspawn.spawn(jobs.do_nothing, nprocs=1, backend="gloo", start_method=method)  # type: ignore[call-overload]
