"""In a real kernel: functions of cells, output in the cell, the Stop button, the live view.

Interop, since a kernel is a framework of its own; ``.ci/run`` has an environment for it.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

from tests.jobs import DEADLOCK  # noqa: E402  # only where there are notebooks

pytestmark = [
    pytest.mark.interop,
    # Those of the libraries that talk to the kernel.
    pytest.mark.filterwarnings("ignore"),
]

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "notebook.ipynb"
# Where and how long they ran differs; what they show does not.
_NUMBERS = re.compile(r"\b\d+(\.\d+)? (s|MiB|KiB)\b|\bCPU \d+%")

FUNCTION = """
import os, sys, time
import rankspawn

class Point:
    def __init__(self, x):
        self.x = x

def work(scale):
    rank = rankspawn.get_rank()
    print("print", rank)
    print("error", rank, file=sys.stderr)
    os.write(1, f"write {rank}\\n".encode())
    os.system(f"echo shell {rank}")
    return Point(rank * scale)
"""
CALL = """
points = rankspawn.spawn(work, args=(10,), nprocs=2, backend="gloo").results()
[type(point) is Point for point in points], [point.x for point in points]
"""
PROGRESS = """
def steps(go):
    rankspawn.report(step=3, total=4, loss=0.5)
    while not os.path.exists(go):
        time.sleep(0.01)
    print("rank", rankspawn.get_rank(), "goes")

context = rankspawn.spawn(steps, args=({go!r},), nprocs=2, backend="gloo", progress=True)
"""
WAIT = """
import pathlib

def wait(folder):
    rank = rankspawn.get_rank()
    print("waiting", rank)
    (pathlib.Path(folder) / str(os.getpid())).touch()
    time.sleep(600)

rankspawn.spawn(wait, args=({folder!r},), nprocs=2, backend="gloo")
"""


@pytest.fixture(scope="module", autouse=True)
def _event_loop_of_the_client() -> None:
    """Made once, and never closed: it is nobody's leak."""
    nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=DEADLOCK).execute()


@pytest.fixture(autouse=True)
def _as_without_pytest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_CURRENT_TEST", raising=False)  # ipykernel behaves differently


@pytest.fixture
def client() -> Iterator[Any]:
    """A kernel; cells are added and run one by one."""
    kernel = nbclient.NotebookClient(nbformat.v4.new_notebook(), timeout=DEADLOCK)
    with kernel.setup_kernel():
        yield kernel


def run(client: Any, code: str) -> Any:
    cell = nbformat.v4.new_code_cell(code)
    client.nb.cells.append(cell)
    client.execute_cell(cell, len(client.nb.cells) - 1)
    return cell


def printed(cell: Any) -> str:
    return "".join(output["text"] for output in cell.outputs if output["output_type"] == "stream")


def test_functions_of_cells_and_all_they_print(client: Any) -> None:
    run(client, FUNCTION)
    for _ in range(3):
        cell = run(client, CALL)
        assert cell.outputs[-1]["data"]["text/plain"] == "([True, True], [0, 10])"
        lines = printed(cell).splitlines()
        for rank in range(2):
            own = [line for line in lines if line.endswith(str(rank))]
            assert own == [f"{word} {rank}" for word in ("print", "error", "write", "shell")]
        assert len(lines) == 8


def test_a_prefix_as_anywhere_else(client: Any) -> None:
    run(client, FUNCTION)
    cell = run(client, CALL.replace("nprocs=2", "nprocs=2, tee='1'"))
    assert printed(cell).splitlines() == [
        f"[rank 1] {word} 1" for word in ("print", "error", "write", "shell")
    ]
    # All ranks are shown here, so that no tee is needed for one.
    cell = run(client, CALL.replace("nprocs=2", "nprocs=2, prefix='{rank}> '"))
    assert {line[:3] for line in printed(cell).splitlines()} == {"0> ", "1> "}


def test_the_traceback_has_the_code_of_the_cell(client: Any) -> None:
    run(client, "import rankspawn\ndef fail():\n    raise ValueError('on purpose')")
    with pytest.raises(nbclient.exceptions.CellExecutionError) as caught:
        run(client, "rankspawn.spawn(fail, nprocs=2, backend='gloo')")
    assert re.search(
        r"line 3, in fail\n    raise ValueError\('on purpose'\)\nValueError: on purpose$",
        caught.value.evalue,
    )


def test_logging_looks_as_in_the_kernel(client: Any) -> None:
    run(
        client,
        "import logging, rankspawn\n"
        "logging.basicConfig(level='INFO', format='N %(message)s', force=True)\n"
        "def work():\n    logging.info('of a rank')",
    )
    for start_method in ("spawn", "fork", "forkserver"):
        options = f"nprocs=1, backend='gloo', start_method={start_method!r}"
        cell = run(client, f"_ = rankspawn.spawn(work, {options})")
        # A kernel has threads, and a fork says so.
        assert printed(cell).endswith("N of a rank\n")
        assert printed(cell).count("of a rank") == 1


def test_debug_is_refused(client: Any) -> None:
    run(client, FUNCTION)
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="needs a terminal"):
        run(client, CALL.replace("nprocs=2", "nprocs=2, debug=1"))


def test_the_live_view(client: Any, tmp_path: Path) -> None:
    run(client, FUNCTION)
    go = tmp_path / "go"
    enough = threading.Timer(2.5, go.touch)  # longer than what is not worth a view
    enough.start()
    cell = run(client, PROGRESS.format(go=str(go)))
    enough.join()

    (shown,) = [output for output in cell.outputs if output["output_type"] == "display_data"]
    text = shown["data"]["text/plain"]
    assert re.search(r"^rank 1 \(cpu\) done after \d s, 3/4 75% loss=0.5$", text, re.MULTILINE)
    assert ("<pre" in shown["data"].get("text/html", "")) == _has_rich()
    assert sorted(printed(cell).splitlines()) == ["[rank 0] rank 0 goes", "[rank 1] rank 1 goes"]


def _has_rich() -> bool:
    from importlib.util import find_spec

    return find_spec("rich") is not None


def test_the_stop_button_stops_all(client: Any, tmp_path: Path) -> None:
    run(client, FUNCTION)
    pids: list[int] = []

    def press_stop() -> None:
        limit = time.monotonic() + DEADLOCK
        while len(pids) < 2 and time.monotonic() < limit:
            pids[:] = [int(name) for name in os.listdir(tmp_path)]
            time.sleep(0.05)
        asyncio.run(client.km.interrupt_kernel())

    stop = threading.Thread(target=press_stop)
    stop.start()
    with pytest.raises(nbclient.exceptions.CellExecutionError, match="KeyboardInterrupt"):
        run(client, WAIT.format(folder=str(tmp_path)))
    stop.join()
    told, *lines = sorted(printed(client.nb.cells[-1]).splitlines())
    assert told.startswith("interrupted: 2 workers have")
    assert lines == ["waiting 0", "waiting 1"]
    assert len(pids) == 2
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]
    # The kernel is as good as before.
    assert run(client, "1 + 1").outputs[0]["data"]["text/plain"] == "2"


def outputs_of(notebook: Any) -> list[list[str]]:
    """What each cell shows, without what differs from run to run."""
    shown = []
    for cell in notebook.cells:
        texts = []
        for output in cell.get("outputs", []):
            if output["output_type"] == "stream":
                texts += sorted(output["text"].splitlines())
            elif output["output_type"] == "error":
                texts += [output["ename"], output["evalue"].splitlines()[-1]]
            else:
                texts.append(_NUMBERS.sub("", output["data"]["text/plain"]))
        shown.append(sorted(texts))
    return shown


def test_the_example_shows_what_it_shows_here() -> None:
    kept = nbformat.read(EXAMPLE, as_version=4)
    again = nbformat.read(EXAMPLE, as_version=4)
    nbclient.NotebookClient(again, timeout=DEADLOCK).execute()

    assert outputs_of(again) == outputs_of(kept)
    assert any(outputs_of(kept))
