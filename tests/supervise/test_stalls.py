"""Ranks of which nothing is heard any more, and the stacks of those that survive a failure."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessRaisedException, SpawnTimeoutError
from rankspawn.supervise import stalls
from rankspawn.supervise.failures import describe_survivors
from rankspawn.supervise.stalls import StallWatch
from tests import jobs
from tests.jobs import DEADLOCK
from tests.scripts import SOURCE, script
from tests.supervise.scripted_group import ScriptedGroup

Run = Callable[..., MultiprocessContext]


def test_a_sign_of_life_of_one_rank_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(stalls, "time", SimpleNamespace(monotonic=lambda: now[0]))
    group = ScriptedGroup(2, 4)
    watch = StallWatch(10.0)
    watch.look(group)
    for moment in (106.0, 114.0):
        now[0] = moment
        group.prints(1, "a line\n")
        watch.look(group)
        assert not watch.has_stalled
        assert watch.describe() == ""
    assert watch.due == 115.0

    group.prints(0, "not looked at before it is due\n")
    watch.look(group)
    now[0] = 115.0
    watch.look(group)
    now[0] = 125.0
    watch.look(group)

    assert watch.has_stalled
    assert watch.describe() == (
        "no rank reported or printed anything for 10 s, and they were stopped (stall_timeout). "
        "Last heard of: rank 4 10.0 s ago, rank 5 11.0 s ago.\n"
    )
    watch.close()
    group.close()


def report_once_and_stall() -> None:
    if jobs.rank() == 1:
        rankspawn.report(step=1)
    jobs.sleep_for_ever()


def test_ranks_that_have_stalled_are_stopped(run: Run) -> None:
    with pytest.raises(SpawnTimeoutError, match=r"^no rank .* for 0.2 s") as caught:
        run(report_once_and_stall, nprocs=2, stall_timeout=0.2)

    assert "Last heard of: rank " in str(caught.value)
    assert {0, 1} >= set(caught.value.stacks)


def fail_after(others: Any) -> None:
    """Rank 0 fails once the others are where they stay: rank 1 somewhere else than the rest."""
    if jobs.rank() == 0:
        for _ in range(3):
            others.get(timeout=DEADLOCK)
        raise ValueError("on purpose")
    others.put(None)
    others.close()
    others.join_thread()
    if jobs.rank() == 1:
        signal.pause()
    jobs.sleep_for_ever()


def test_an_error_has_the_stacks_of_those_that_were_stopped(start_method: str) -> None:
    import multiprocessing

    queue = multiprocessing.get_context(start_method).Queue()
    options: Any = {"nprocs": 4, "backend": "gloo", "start_method": start_method}
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(fail_after, args=(queue,), **options)
    queue.close()

    stacks = caught.value.stacks
    assert 0 not in stacks
    # Those that answer at once; on a busy machine, not all may.
    assert all("fail_after" in text for text in stacks.values())
    assert str(caught.value).endswith("ValueError: on purpose")


def test_they_are_not_taken_if_nobody_wants_them(run: Run) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        run(jobs.rank_fails, args=(0, "raise"), nprocs=2, stacks=False)
    assert caught.value.stacks == {}


WAITING = 'Thread 0x7f{} (most recent call first):\n  File "train.py", line 9 in all_reduce\n'
BUSY = 'Thread 0x7f1 (most recent call first):\n  File "train.py", line 3 in load_batch\n'


def test_only_ranks_that_differ_are_shown() -> None:
    alike = {rank: WAITING.format(rank) for rank in (0, 2, 3)}
    assert describe_survivors(alike) == describe_survivors({}) == ""
    assert describe_survivors({**alike, 1: BUSY}) == (
        f"meanwhile rank 1 was not where the other 3 were:\n--- rank 1 ---\n{BUSY}---\n"
    )


KEPT = """
    import os, time
    import rankspawn

    def work():
        if rankspawn.get_rank() == 1:
            raise ValueError("on purpose")
        time.sleep(600)

    if __name__ == "__main__":
        rankspawn.spawn(work, nprocs=2, backend="gloo", keep_alive_on_failure=True)
"""


def test_after_a_failure_all_is_kept_until_ctrl_c(tmp_path: Path) -> None:
    program = [sys.executable, script(tmp_path, KEPT)]
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    with subprocess.Popen(
        program, cwd=tmp_path, env=environ, stderr=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stderr is not None
        told = parent.stderr.readline()
        found = re.search(
            r"rank 1 failed, and nothing is stopped .* rank 0 is (\d+).* Ctrl-C stops", told
        )
        assert found, told
        kept = psutil.Process(int(found[1]))
        assert kept.is_running()
        parent.send_signal(signal.SIGINT)
        assert parent.stderr.read().rstrip().endswith("ValueError: on purpose")
    assert not kept.is_running()
