"""What a start costs, counted rather than timed: a stopwatch on a busy machine tells nothing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from operator import le
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.options import SpawnOptions
from rankspawn.plan.job import make_plan, resolve
from rankspawn.portable import is_portable
from rankspawn.workers.outcome_file import TakenReport, take_report
from rankspawn.workers.payload import Payload, write_payload
from rankspawn.workers.report import HEADER_WORDS, PARENT_WORDS
from tests import jobs
from tests.jobs import DEADLOCK
from tests.plan.conftest import FakeMachine
from tests.scripts import SOURCE, python, script

Run = Callable[..., MultiprocessContext]

LIST_MODULES = "import sys; open({path!r}, 'w').write(' '.join(sys.modules))"
# What a worker that needs nothing loads beyond a bare interpreter. Each name here is paid by
# every rank of every job: think before adding one.
OF_A_WORKER = {
    "__future__",
    "_ctypes",
    "atexit",
    "faulthandler",
    "gc",
    "rankspawn",
    "rankspawn.workers",
    "rankspawn.workers.child",
    "rankspawn.cpython",
    "rankspawn.workers.parcel",
    "rankspawn.workers.report",
}
OF_PICKLE = {
    *("_pickle", "_compat_pickle", "copyreg", "_collections", "_functools", "_operator"),
    *("collections", "functools", "itertools", "keyword", "operator", "reprlib", "types"),
    *("_types", "collections.abc"),  # from Python 3.14 on
}


def test_modules_that_a_worker_loads(tmp_path: Path) -> None:
    bare, worker = tmp_path / "bare", tmp_path / "worker"
    code = LIST_MODULES.format(path=str(bare))
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLOCK)

    rankspawn.spawn(exec, args=(LIST_MODULES.format(path=str(worker)),), nprocs=1, backend="gloo")

    loaded = set(worker.read_text().split()) - set(bare.read_text().split())
    assert loaded <= OF_A_WORKER | OF_PICKLE


# Tells what a launcher has loaded when it starts its first worker; `-u` is the worker's.
LIST_BEFORE_FIRST = """
import os, sys
start = os.posix_spawn
def list_and_start(path, argv, *rest, **more):
    if "-u" in argv and not os.path.exists({path!r}):
        open({path!r}, "w").write(" ".join(sys.modules))
    return start(path, argv, *rest, **more)
os.posix_spawn = list_and_start
from rankspawn.launch.cli import main
sys.exit(main())
"""
# What rankrun loads of this package before its first worker. Each name is paid by every job: what
# only an error, a second machine, a terminal or the end needs is loaded then.
OF_RANKRUN = {
    *("rankspawn", "cpython", "descriptors", "file_limit", "file_systems", "handlers"),
    *("interrupts", "machine", "option_values", "portable", "supervise", "supervise.outcome"),
    *("telling", "values"),
    *("plan", "plan.devices", "plan.environ", "plan.ports", "plan.resources", "plan.topology"),
    *("launch", "launch.agent", "launch.backoff", "launch.cli", "launch.command_line"),
    *("launch.config", "launch.console", "launch.controllers", "launch.controllers.collective"),
    *("launch.flag", "launch.flag_values", "launch.flags", "launch.limits", "launch.log_folder"),
    *("launch.merging", "launch.node", "launch.pod", "launch.programs", "launch.scheduler_values"),
    *("launch.schedulers", "launch.scripts", "launch.session"),
    *(
        "workers",
        "workers.assembling",
        "workers.board",
        "workers.execution",
        "workers.follow",
        "workers.group",
        "workers.guardian",
    ),
    *("workers.inherited", "workers.logs", "workers.marker", "workers.meeting"),
    *("workers.outcome_file", "workers.parcel", "workers.popen", "workers.report"),
    *("workers.running", "workers.tail", "workers.teardown", "workers.worker"),
}
NOT_OF_RANKRUN = {
    *("argparse", "ast", "asyncio", "dataclasses", "inspect", "json", "logging", "psutil"),
    *("queue", "shutil", "tempfile", "traceback", "typing"),
}


@pytest.mark.untraced
def test_modules_that_rankrun_loads_before_its_first_worker(tmp_path: Path) -> None:
    listed = tmp_path / "listed"
    (tmp_path / "empty.py").touch()
    code = LIST_BEFORE_FIRST.format(path=str(listed))
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    flags = ["--device_type", "cpu", "--nproc_per_node", "2"]
    subprocess.run(
        [sys.executable, "-S", "-c", code, *flags, "empty.py"],
        cwd=tmp_path,
        env=environ,
        check=True,
        capture_output=True,
        timeout=DEADLOCK,
    )

    loaded = set(listed.read_text().split())
    ours = {name.removeprefix("rankspawn.") for name in loaded if name.startswith("rankspawn")}
    assert ours <= OF_RANKRUN | ({"workers.watched"} if is_portable() else set())
    if not is_portable():
        assert loaded.isdisjoint(NOT_OF_RANKRUN)


@pytest.mark.untraced
def test_modules_that_an_agent_does_not_load() -> None:
    code = "import rankspawn.cluster.agent_loop, sys; print(*sys.modules)"
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent / "src")}
    done = subprocess.run(
        [sys.executable, "-S", "-c", code],
        env=environ,
        check=True,
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
    )
    loaded = set(done.stdout.split())
    unwanted = ("dataclasses", "inspect", "logging", "psutil", "rankspawn.view.viewer")
    assert loaded.isdisjoint(unwanted)
    # What only the driver has, which waits for the agents.
    assert loaded.isdisjoint({f"rankspawn.cluster.{name}" for name in ("driver", "group", "ssh")})


@pytest.fixture
def payloads(monkeypatch: pytest.MonkeyPatch) -> list[Payload]:
    """Every payload that is written."""
    written: list[Payload] = []

    def write_and_keep(*args: Any) -> Payload:
        written.append(write_payload(*args))
        return written[-1]

    monkeypatch.setattr("rankspawn.workers.start.write_payload", write_and_keep)
    return written


def test_bytes_written_for_each_rank(payloads: list[Payload], run: Run, start_method: str) -> None:
    for nprocs in (2, 10):
        run(jobs.do_nothing, args=(b"x" * 100_000,), nprocs=nprocs)

    if start_method == "fork":
        assert payloads == []
        return
    few, many = (payload.end for payload in payloads)
    assert few > 100_000
    # A fresh interpreter gets its environment from the system, a fork only what differs.
    assert many - few <= (8 * 2_000 if start_method == "forkserver" else 0)


def test_bytes_that_a_rank_without_a_result_writes(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = []

    def measure_and_take(fd: int) -> TakenReport:
        sizes.append(os.fstat(fd).st_size)
        return take_report(fd)

    monkeypatch.setattr("rankspawn.workers.worker.take_report", measure_and_take)
    run(jobs.do_nothing, nprocs=2)

    assert sizes == [(HEADER_WORDS + PARENT_WORDS) * 8] * 2


def test_descriptors_of_the_parent_for_each_rank(run: Run) -> None:
    run(jobs.do_nothing, nprocs=1)  # a fork server or tracker is started once
    counts = []
    for nprocs in (1, 5):
        with run(jobs.sleep_for_ever, nprocs=nprocs, join=False):
            counts.append(len(os.listdir("/proc/self/fd")))

    assert counts[1] - counts[0] == 4 * 3  # a sentinel, an outcome, a port


def test_descriptors_of_a_worker(run: Run) -> None:
    (names,) = run(jobs.open_files, nprocs=1).results()

    ours = [name for name in names if "memfd:rankspawn" in name or "eventfd" in name]
    # The outcome, once for the report and once for stacks; the failure event; a fork's mark.
    assert len(ours) <= 4, names


# What the parent does not load for a start that goes well.
NOT_OF_A_START = (
    *("dataclasses", "logging", "uuid", "platform", "traceback", "cloudpickle", "psutil"),
    *("rankspawn.workers.culprit", "rankspawn.workers.preloading", "rankspawn.view"),
)
START = """
import json, os, sys
import rankspawn

def pages():
    import resource
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def numbers():
    return os.getpid(), os.getppid()

if __name__ == "__main__":
    what, method, nprocs = globals()[sys.argv[1]], sys.argv[2], int(sys.argv[3])
    ranks = rankspawn.spawn(what, nprocs=nprocs, backend="gloo", start_method=method)
    found = {"parent": os.getpid(), "ranks": ranks.results(), "modules": sorted(sys.modules)}
    print(json.dumps(found))
"""
# Without site: what an environment has installed there is loaded by every interpreter.
ALONE = ("-S",)
BARE_PAGES = "import resource; print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)"
# Pages that a rank touches, or has copied, until its function runs; of a fresh interpreter those
# beyond a bare one's. Each is ten percent above the most that was seen when this was written.
PAGES = {
    (3, 11): {"fork": 640, "forkserver": 1070, "spawn": 530},
    (3, 12): {"fork": 565, "forkserver": 670, "spawn": 535},
    (3, 13): {"fork": 590, "forkserver": 720, "spawn": 640},
}
OF_OTHER_PYTHONS = {"fork": 750, "forkserver": 1150, "spawn": 1000}
# System calls of a rank (55, 67, and 606 beyond a bare interpreter's); and for each of them those
# of the parent (40 to 46, 46 to 49, 54 to 63) and of the server (12 to 16). The first are the same
# in each run; the others have a third of room: both are woken more often on a busy machine.
CALLS = {"fork": 58, "forkserver": 70, "spawn": 630}
OF_THE_PARENT = {"fork": 62, "forkserver": 66, "spawn": 82}
OF_THE_SERVER = 24
# Modules of the parent: ours, and those that a bare interpreter has not.
OURS, OTHERS = 57, 90


@pytest.fixture
def compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_method: str) -> None:
    """All modules that a start imports are compiled, whoever may write where they are."""
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "compiled"))
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    _start(tmp_path, "pages", start_method, 1)


@pytest.mark.untraced
def test_modules_that_a_start_loads_in_the_parent(tmp_path: Path) -> None:
    loaded = set(_start(tmp_path, "pages", "spawn", 1)["modules"])
    code = "import sys; print(*sys.modules)"
    bare = set(python(*ALONE, "-c", code, cwd=tmp_path).stdout.split())

    assert loaded.isdisjoint(NOT_OF_A_START)
    ours = {name for name in loaded if name.startswith("rankspawn")}
    assert len(ours) <= OURS + 2 * is_portable()
    assert len(loaded - ours - bare) <= OTHERS + 15 * is_portable()


@pytest.mark.untraced
@pytest.mark.usefixtures("compiled")
def test_pages_that_a_rank_touches(tmp_path: Path, start_method: str) -> None:
    found = _start(tmp_path, "pages", start_method, 3)
    least = min(found["ranks"])
    if start_method == "spawn":
        least -= int(python(*ALONE, "-c", BARE_PAGES, cwd=tmp_path).stdout)

    limits = PAGES.get(sys.version_info[:2], OF_OTHER_PYTHONS)
    assert least <= (OF_OTHER_PYTHONS if is_portable() else limits)[start_method]


@pytest.mark.slow
@pytest.mark.untraced
@pytest.mark.usefixtures("compiled")
@pytest.mark.skipif(is_portable(), reason="the portable way has calls of its own, uncounted")
def test_system_calls_for_each_rank(tmp_path: Path, start_method: str) -> None:
    # By process: what the guardian's interpreter comes to, until all is over, is chance. So is how
    # often the others are woken, which only adds calls: the least of up to three times counts.
    limits = (CALLS[start_method], 8 * OF_THE_PARENT[start_method], 8 * OF_THE_SERVER)
    least = (sys.maxsize,) * len(limits)
    for turn in range(3):
        few, many = (_calls(tmp_path / str(turn), start_method, nprocs) for nprocs in (1, 9))
        more = (many["parent"] - few["parent"], many["server"] - few["server"])
        least = tuple(map(min, least, (many["rank"], *more)))
        if all(map(le, least, limits)):
            return

    pytest.fail(f"calls of a rank, and of parent and server for eight: {least} of {limits}")


def _start(folder: Path, what: str, method: str, nprocs: int) -> dict[str, Any]:
    """What a program finds that starts so many ranks."""
    done = python(*ALONE, script(folder, START), what, method, str(nprocs), cwd=folder)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def _calls(folder: Path, method: str, nprocs: int) -> dict[str, int]:
    """System calls of the rank that has the fewest, of its parent, and of a fork server."""
    traces = folder / f"traces of {nprocs}"
    traces.mkdir(parents=True)
    found = json.loads(_traced(traces, script(folder, START), "numbers", method, str(nprocs)))

    def calls(pid: int) -> list[str]:
        text = (traces / f"trace.{pid}").read_text(errors="replace")
        return [line for line in text.splitlines() if not line.startswith(("---", "+++"))]

    rank = min(len(calls(pid)) for pid, _ in found["ranks"])
    if method == "spawn":
        _traced(traces, "-c", "pass", into="bare")
        bare = next(traces.glob("bare.*"))
        rank -= len(bare.read_text().splitlines())
    starter = found["ranks"][0][1]
    if starter == found["parent"]:
        return {"rank": rank, "parent": len(calls(starter)), "server": 0}
    # Of the server until its last fork: how it ends is chance, too.
    forks = [n for n, line in enumerate(calls(starter)) if line.startswith(("clone", "fork"))]
    return {"rank": rank, "parent": len(calls(found["parent"])), "server": forks[-1]}


def _traced(folder: Path, *arguments: str, into: str = "trace") -> str:
    """What an interpreter prints whose system calls are written to files, one for each process."""
    strace = shutil.which("strace")
    if strace is None or subprocess.run([strace, "-o", os.devnull, "true"], check=False).returncode:
        pytest.skip("needs strace (Debian: strace), and that a process may be traced")
    command = [strace, "-ff", "-qq", "-o", str(folder / into), sys.executable, *ALONE, *arguments]
    environ = {**os.environ, "PYTHONPATH": SOURCE}
    done = subprocess.run(
        command,
        cwd=folder.parent,
        env=environ,
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        timeout=DEADLOCK,
    )
    return done.stdout


def test_processes_and_descriptors_of_a_group(run: Run) -> None:
    run(jobs.do_nothing, nprocs=1)  # a fork server or tracker is started once
    before = len(os.listdir("/proc/self/fd")), len(_descendants(os.getpid()))
    with run(jobs.sleep_for_ever, nprocs=3, join=False):
        now = len(os.listdir("/proc/self/fd")), len(_descendants(os.getpid()))

    # A sentinel, an outcome and a port for each rank; the group's selector, its failure event, its
    # meeting place, the guardian's lifeline and table.
    assert now[0] - before[0] <= 3 * 3 + 5
    assert now[1] - before[1] == 3 + 1, "the ranks, and the guardian"


IDLE = """
import sys
import rankspawn
from tests import jobs

if __name__ == "__main__":
    rankspawn.spawn(jobs.never_wake_up, nprocs=4, backend="gloo", start_method=sys.argv[1])
"""


def test_an_idle_group_wakes_nobody(tmp_path: Path, start_method: str) -> None:
    script = tmp_path / "idle.py"
    script.write_text(IDLE)
    root = Path(__file__).parent.parent
    environ = {**os.environ, "PYTHONPATH": f"{root}{os.pathsep}{root / 'src'}"}
    with subprocess.Popen([sys.executable, str(script), start_method], env=environ) as parent:
        try:
            before = _settled_switches(parent.pid)
            time.sleep(2)  # what happens meanwhile is what is looked at
            assert _switches(parent.pid) == before
        finally:
            parent.terminate()


def _settled_switches(parent: int) -> dict[int, int]:
    """How often each process of the job has slept, once all of them do."""
    deadline = time.monotonic() + DEADLOCK
    seen: dict[int, int] = {}
    while time.monotonic() < deadline:
        time.sleep(0.5)
        now = _switches(parent)
        if now == seen and len(now) >= 6:  # the parent, its guardian and four workers
            return now
        seen = now
    raise AssertionError(f"it never came to rest: {seen}")


def _switches(parent: int) -> dict[int, int]:
    counts = {}
    for pid in [parent, *_descendants(parent)]:
        status = Path(f"/proc/{pid}/status").read_text()
        counts[pid] = sum(
            int(line.split()[1]) for line in status.splitlines() if "ctxt_switches" in line
        )
    return counts


def _descendants(pid: int) -> list[int]:
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [one for child in map(int, children) for one in (child, *_descendants(child))]


def test_a_plan_grows_with_the_number_of_ranks_only() -> None:
    calls = [_calls_to_plan(nprocs) for nprocs in (500, 1000)]

    assert calls[1] <= 2.1 * calls[0]


def test_ranks_share_what_is_the_same_for_all() -> None:
    job = resolve(1000, SpawnOptions(backend="gloo"), {}, FakeMachine())
    plan = make_plan(job, range(2000, 3000), run_id="job")

    # A thousand copies of a list of a thousand endpoints would be 20 MB.
    assert len({id(spec.env["PADDLE_TRAINER_ENDPOINTS"]) for spec in plan.ranks}) == 1


def _calls_to_plan(nprocs: int) -> int:
    """How many functions are called to plan so many ranks."""
    count = 0

    def note(*_: object) -> None:
        nonlocal count
        count += 1

    job = resolve(nprocs, SpawnOptions(backend="gloo"), {}, FakeMachine())
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        make_plan(job, range(2000, 2000 + nprocs), run_id="job")
    finally:
        sys.setprofile(before)
    return count
