"""Under a limit on the size of files (``ulimit -f``) every error names that as the cause."""

from __future__ import annotations

import functools
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import ProcessExitedException, ProcessRaisedException
from tests.jobs import DEADLOCK

# The limit holds for the file with the counts of lines, too.
pytestmark = pytest.mark.untraced

LIMIT = (
    "the limit on the size of files is {} bytes (RLIMIT_FSIZE); raise it (`ulimit -f unlimited`)"
)
fork = functools.partial(rankspawn.spawn, nprocs=1, backend="gloo", start_method="fork")


def do_nothing(*_: Any) -> None:
    pass


def return_much() -> bytes:
    return bytes(1_000_000)


def print_much() -> None:
    print("x" * 1_000_000)


def raise_error() -> None:
    raise ValueError("its own text")


def run_under_limit(start_method: Any, limit: str, folder: str) -> None:
    """Say what becomes of jobs; standard output is a pipe, to which the limit does not apply."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    before = os.listdir("/proc/self/fd")
    errors: dict[str, Any] = {}
    cases: Any = (
        ("nothing", do_nothing, {}),
        ("arguments", do_nothing, {"args": (bytes(1_000_000),)}),
        ("result", return_much, {}),
        ("log", print_much, {"log_dir": folder}),
        ("error", raise_error, {}),
    )
    for name, func, options in cases:
        try:
            rankspawn.spawn(func, nprocs=1, backend="gloo", start_method=start_method, **options)
            errors[name] = None
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"
    if start_method != "forkserver":  # whose server is there for the next ones
        errors["left"] = sorted(set(os.listdir("/proc/self/fd")) - set(before))
    print(json.dumps(errors))


def errors_under_limit(start_method: str, limit: int, folder: Path) -> dict[str, str | None]:
    code = f"from {__name__} import *; run_under_limit(*sys.argv[1:])"
    done = subprocess.run(
        [sys.executable, "-c", code, start_method, str(limit), str(folder)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=DEADLOCK,
        # Python cuts off bytecode without a word, which it cannot read afterwards.
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    errors: dict[str, str | None] = json.loads(done.stdout)
    # Its tracker is started once, and there until the end.
    assert len(errors.pop("left", None) or []) <= 1
    return errors


def test_a_limit_that_leaves_room_for_little(start_method: str, tmp_path: Path) -> None:
    errors = errors_under_limit(start_method, 65536, tmp_path)

    told = LIMIT.format(65536)
    assert errors.pop("nothing") is None
    arguments = errors.pop("arguments")
    if start_method == "fork":
        assert arguments is None
    else:
        assert str(arguments).startswith("OSError: [Errno 27] func and its arguments cannot be")
        assert told in str(arguments)
    assert "OSError: [Errno 27] result cannot be sent back to the parent" in str(errors["result"])
    assert told in str(errors.pop("result"))
    assert "in print_much" in str(errors["log"])
    assert told in str(errors.pop("log"))
    assert str(errors.pop("error")).endswith("ValueError: its own text")
    assert errors == {}


@pytest.mark.parametrize(("start_method", "limit"), [("spawn", 0), ("fork", 1024)])
def test_a_limit_that_leaves_no_room(start_method: str, limit: int, tmp_path: Path) -> None:
    errors = errors_under_limit(start_method, limit, tmp_path)

    assert len(errors) == 5
    for error in errors.values():
        assert str(error).startswith("OSError: [Errno 27] no worker can be started: its report")
        assert LIMIT.format(limit) in str(error)


def limit_itself(size: int, func: Any) -> Any:
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    return func()


@pytest.mark.parametrize(
    ("size", "func"),
    [(0, do_nothing), (0, return_much), (0, raise_error), (100, return_much), (100, raise_error)],
)
def test_a_rank_that_leaves_itself_no_room(size: int, func: Any) -> None:
    with pytest.raises(ProcessExitedException, match=r"limit on the size of files.*`ulimit -f`"):
        fork(limit_itself, args=(size, func))


def test_the_end_of_a_traceback_fits_where_nothing_else_does() -> None:
    fork(limit_itself, args=(1500, do_nothing))
    with pytest.raises(ProcessRaisedException, match="ValueError: its own text"):
        fork(limit_itself, args=(1500, raise_error))
    with pytest.raises(ProcessRaisedException, match=r"result cannot be sent.*is 1500 bytes"):
        fork(limit_itself, args=(1500, return_much))


def write_too_much_as_c_programs_do() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    with open(os.memfd_create("large"), "wb", buffering=0) as file:
        file.write(b"x")
        file.write(b"x")


def test_a_rank_that_is_ended_by_the_limits_own_signal() -> None:
    with pytest.raises(ProcessExitedException, match=r"SIGXFSZ.*size of files.*`ulimit -f`"):
        fork(limit_itself, args=(1, write_too_much_as_c_programs_do))


def sleep_for_ever(end: Any) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))
    end.send(None)
    signal.pause()


def test_stacks_that_cannot_be_written_say_why() -> None:
    ready, end = multiprocessing.get_context("fork").Pipe(duplex=False)
    with fork(sleep_for_ever, args=(end,), join=False) as context:
        assert ready.poll(DEADLOCK)
        assert "limit on the size of files, 1048576 bytes" in context.dump_stacks()[0]
    ready.close()
    end.close()
