"""Systems without the calls of newer Linux: denied by the kernel, missing in Python, or by flag."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.denied import CALLS
from tests.jobs import DEADLOCK
from tests.rights import can_mount

ROOT = Path(__file__).parent.parent.parent

# What is promised anywhere: results, a rank's own error, and no rank or descendant that stays.
PROGRAM = """
import multiprocessing, os, subprocess, sys, time
import rankspawn
from rankspawn.portable import is_portable, missing_calls

def work():
    return rankspawn.get_rank(), multiprocessing.parent_process().is_alive()

def fail(pids):
    # Without /proc nobody would find it, nor would the test.
    command = "sleep 1000" if os.path.exists("/proc/self") else "exit"
    child = subprocess.Popen(["/bin/sh", "-c", command])
    pids.put(child.pid)
    if rankspawn.get_rank() == 1:
        raise ValueError("its own")
    time.sleep(1000)

def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True

def check(start_method):
    started = dict(nprocs=2, backend="gloo", start_method=start_method, grace_period=30)
    assert rankspawn.spawn(work, **started).results() == [(0, True), (1, True)]
    pids = multiprocessing.get_context("spawn").SimpleQueue()
    try:
        rankspawn.spawn(fail, (pids,), **started)
    except rankspawn.ProcessRaisedException as error:
        assert isinstance(error.__cause__, ValueError), error
    while not pids.empty():
        pid = pids.get()
        assert is_gone(pid), pid
    assert not multiprocessing.active_children()

if __name__ == "__main__":
    for start_method in sys.argv[1:]:
        check(start_method)
    print(is_portable(), *missing_calls())
"""


def run(
    tmp_path: Path, before: str, *start_methods: str, inside: Sequence[str] = (), **environ: str
) -> str:
    """What the program prints last; ``before`` comes before the import of rankspawn."""
    script = tmp_path / "program.py"
    script.write_text(PROGRAM)
    guarded = f"import runpy, sys\n{before}\nsys.argv[:] = sys.argv[1:]\n"
    guarded += "runpy.run_path(sys.argv[0], run_name='__main__')"
    done = subprocess.run(
        [*inside, sys.executable, "-c", guarded, str(script), *start_methods],
        timeout=DEADLOCK,
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}",
            "RANKSPAWN_PORTABLE": "0",
            **environ,
        },
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done.stdout.strip()


def deny(error: int, *names: str) -> str:
    """What has the kernel refuse these calls to the program and its workers."""
    return f"from tests.denied import deny\ndeny({list(names)}, {error})"


needs_filter = pytest.mark.skipif(not CALLS, reason="the numbers of its calls are not known here")


@needs_filter
@pytest.mark.parametrize(
    "error",
    [errno.ENOSYS, pytest.param(errno.EPERM, marks=pytest.mark.slow)],
    ids=errno.errorcode.get,
)
def test_a_kernel_or_sandbox_without_all_of_them(error: int, tmp_path: Path) -> None:
    told = run(tmp_path, deny(error, *CALLS), "spawn", "fork", "forkserver")

    # Python itself does without close_range.
    assert told == " ".join(["True", *[call for call in CALLS if call != "close_range"]])


@needs_filter
@pytest.mark.parametrize("call", CALLS)
def test_one_that_is_denied(call: str, tmp_path: Path) -> None:
    told = run(tmp_path, deny(errno.EPERM, call), "fork")

    assert told.startswith("False" if call == "close_range" else "True")
    assert call == "close_range" or call in told


# As far as one system can look like another: what each interpreter of the program loads first.
NONE_OF_LINUX = """
import fcntl, os, signal, sys, time
for module, names in (
    (os, "pidfd_open P_PIDFD memfd_create eventfd eventfd_read eventfd_write pipe2 waitid"),
    (os, "EFD_CLOEXEC EFD_NONBLOCK MFD_CLOEXEC MFD_ALLOW_SEALING O_PATH O_TMPFILE"),
    (os, "sched_getaffinity sched_setaffinity"),
    (signal, "pidfd_send_signal SIGRTMIN SIGRTMAX"),
    (fcntl, "F_ADD_SEALS F_GET_SEALS F_SEAL_SHRINK F_SEAL_GROW"),
    (time, "CLOCK_BOOTTIME"),
):
    for name in names.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
"""


def load_first(tmp_path: Path, code: str) -> str:
    """The PYTHONPATH by which workers load it, too."""
    (tmp_path / "sitecustomize.py").write_text(code)
    return os.pathsep.join(map(str, (tmp_path, ROOT, ROOT / "src")))


def test_a_python_without_any_of_them(tmp_path: Path) -> None:
    path = load_first(tmp_path, NONE_OF_LINUX)
    told = run(tmp_path, "", "spawn", "fork", PYTHONPATH=path)

    assert told.startswith("True pidfd_open")


@pytest.mark.parametrize("value", ["1", "0"])
def test_the_flag_decides_where_nothing_is_missing(value: str, tmp_path: Path) -> None:
    told = run(tmp_path, "", "fork", RANKSPAWN_PORTABLE=value)

    assert told == str(value == "1")


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount something for itself")
def test_without_proc(tmp_path: Path) -> None:
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    told = run(
        tmp_path,
        "",
        *("spawn", "fork", "forkserver"),
        inside=["unshare", "-m", "/bin/sh", "-c", hide, "sh"],
    )

    assert told == "True"


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount something for itself")
def test_without_proc_or_any_of_them(tmp_path: Path) -> None:
    hide = 'mount -t tmpfs none /proc && exec "$@"'
    told = run(
        tmp_path,
        "",
        *("spawn", "fork", "forkserver"),
        inside=["unshare", "-m", "/bin/sh", "-c", hide, "sh"],
        PYTHONPATH=load_first(tmp_path, NONE_OF_LINUX),
    )

    assert told.startswith("True pidfd_open")


FAILING_SCRIPT = """
import os, sys, time
if os.environ["RANK"] == "1":
    sys.exit(7)
time.sleep(1000)
"""


@needs_filter
@pytest.mark.parametrize("call", [None, pytest.param("close_range", marks=pytest.mark.slow)])
def test_rankrun_without_them(call: str | None, tmp_path: Path) -> None:
    (tmp_path / "fail.py").write_text(FAILING_SCRIPT)
    denied = deny(errno.EPERM, *(CALLS if call is None else (call,)))
    code = f"{denied}\nimport sys\nfrom rankspawn.launch.cli import main\nsys.exit(main())"
    done = subprocess.run(
        [sys.executable, "-c", code, "--nproc_per_node=2", "fail.py"],
        cwd=tmp_path,
        timeout=DEADLOCK,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}"},
    )

    assert done.returncode == 7, done.stderr
    assert "Errno" not in done.stderr


# The first file of all is looked for a folder, when there is no descriptor left to look with.
WITHOUT_DESCRIPTORS = """
import errno, os, resource, tempfile
from rankspawn import file_limit
from rankspawn.portable import open_event, open_unlinked
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
taken = []
while len(taken) < 32:
    try:
        taken.append(os.dup(1))
    except OSError:
        break
for open_one in (open_event, lambda: open_unlinked("one")):
    try:
        open_one()
    except OSError as error:
        print(errno.errorcode[error.errno])
"""


def test_descriptors_that_ran_out_are_named() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_DESCRIPTORS],
        timeout=DEADLOCK,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "RANKSPAWN_PORTABLE": "1"},
    )

    assert done.stdout.split() == ["EMFILE", "EMFILE"], done.stderr
