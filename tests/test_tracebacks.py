"""What a program prints that dies of an error of ours: its own lines, and hardly any of ours."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scripts import SOURCE, python, script

pytestmark = pytest.mark.untraced  # os._exit is another function then, and has frames of its own

# Each way in at which an error can come out; what is printed has to end in these words.
CALLS = {
    "spawn": ("spawn(fail, **cpu)", "ValueError: at work"),
    "join": ("spawn(fail, join=False, **cpu).join()", "ValueError: at work"),
    "results": ("spawn(fail, join=False, **cpu).results()", "ValueError: at work"),
    "queue": ("spawn(fail, join=False, **cpu).return_queues[0].get()", "ValueError: at work"),
    "no wait": (
        "spawn(time.sleep, (60,), join=False, daemon=True, **cpu).error_queues[0].get_nowait()",
        "Empty",
    ),
    "await": ("asyncio.run(wait(spawn(fail, join=False, **cpu)))", "ValueError: at work"),
    "exit": ("spawn(os._exit, (7,), **cpu)", "e.g. by os._exit"),
    "timeout": ("spawn(time.sleep, (60,), timeout=0.5, **cpu)", "time.sleep"),
    "option": ("spawn(fail, bakend='gloo')", "did you mean 'backend'?"),
    "value": ("spawn(fail, timeout='3')", "not '3' (str)"),
    "args": ("spawn(fail, 'text')", "here args=('text',)"),
    "nprocs": ("spawn(fail, nprocs=0)", "one process per visible device"),
    "machine": ("spawn(fail, nprocs=1, gpus='5')", ""),
    "unsendable": ("spawn(fail, (threading.Lock(),), **cpu)", ""),
    "wait": (
        "spawn(time.sleep, (60,), join=False, daemon=True, **cpu).join(timeout='3')",
        "not '3' (str)",
    ),
    "grace": (
        "spawn(time.sleep, (60,), join=False, daemon=True, **cpu).terminate('3')",
        "not '3' (str)",
    ),
    "torch": ("torch.spawn(fail, ())", "ValueError: at work\n"),
    "torch later": ("torch.spawn(fail, join=False).join()", "ValueError: at work\n"),
    "torch value": ("torch.start_processes(fail, nprocs=0)", ""),
}

PROGRAM = """
    import asyncio, os, threading, time
    from rankspawn import spawn
    from rankspawn.compat import torch

    cpu = {{"backend": "gloo", "nprocs": 1}}

    def fail(*_):
        raise ValueError("at work")

    async def wait(context):
        await context

    if __name__ == "__main__":
        {call}
"""


def ours(printed: str) -> list[str]:
    """The frames of this package in a traceback."""
    # Stacks of workers, which a timeout shows, are written without a comma before "in".
    return [
        line for line in printed.splitlines() if f'"{SOURCE}/rankspawn' in line and ", in " in line
    ]


@pytest.mark.parametrize("call", CALLS)
def test_an_error_shows_at_most_one_frame_of_ours(tmp_path: Path, call: str) -> None:
    code, ending = CALLS[call]
    name = script(tmp_path, PROGRAM.format(call=code))

    printed = python(name, cwd=tmp_path, fails=True).stderr

    assert len(ours(printed)) <= 1, printed
    assert code in printed
    assert ending.strip() in printed


def test_the_same_error_does_not_grow(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    from rankspawn import ProcessException, spawn

    def fail():
        raise ValueError("at work")

    if __name__ == "__main__":
        context = spawn(fail, nprocs=1, backend="gloo", join=False)
        for ask in (context.join, context.results, context.return_queues[0].get) * 3:
            try:
                ask()
            except ProcessException:
                pass
        context.join()  # the last
    """,
    )

    printed = python(name, cwd=tmp_path, fails=True).stderr

    assert len(ours(printed)) <= 1
    assert [line.strip() for line in printed.splitlines() if "()" in line] == [
        "context.join()  # the last"
    ]


def test_frames_of_the_user_behind_ours_stay(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    from rankspawn import spawn

    def variables(rank):
        return {}["missing"]

    if __name__ == "__main__":
        spawn(print, nprocs=1, backend="gloo", env=variables)
    """,
    )

    printed = python(name, cwd=tmp_path, fails=True).stderr

    assert len(ours(printed)) <= 1, printed
    assert 'return {}["missing"]' in printed
    assert printed.splitlines()[-1] == "KeyError: 'missing'"


BROKEN = """
    import rankspawn.spawning

    if __name__ == "__main__":
        rankspawn.spawning.os = {wrong}
        rankspawn.spawn(print, nprocs=1, backend="gloo")
"""


def test_a_mistake_of_our_own_shows_all_frames(tmp_path: Path) -> None:
    name = script(tmp_path, BROKEN.format(wrong="None"))

    printed = python(name, cwd=tmp_path, fails=True).stderr

    assert (
        printed.splitlines()[-1] == "AttributeError: 'NoneType' object has no attribute 'environ'"
    )
    assert len(ours(printed)) > 1


def test_all_frames_can_be_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANKSPAWN_FULL_TRACEBACK", "1")
    name = script(tmp_path, PROGRAM.format(call="spawn(fail, timeout='3')"))

    assert len(ours(python(name, cwd=tmp_path, fails=True).stderr)) > 1


def test_ctrl_c_shows_the_line_that_waited(tmp_path: Path) -> None:
    name = script(
        tmp_path,
        """
    import os, signal, time
    from rankspawn import spawn

    def interrupt(parent):
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        os.kill(parent, signal.SIGINT)
        time.sleep(60)

    if __name__ == "__main__":
        spawn(interrupt, (os.getpid(),), nprocs=1, backend="gloo", grace_period=0.1)
    """,
    )

    printed = python(name, cwd=tmp_path, fails=True).stderr

    assert len(ours(printed)) <= 1, printed
    assert "spawn(interrupt, (os.getpid(),)" in printed
    assert printed.splitlines()[-1] == "KeyboardInterrupt"
