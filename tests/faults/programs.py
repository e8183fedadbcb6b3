"""Programs that start workers in bad surroundings.

``python -m tests.faults.programs FD NAME ARGUMENTS`` runs one of them; what it returned, and
what was left behind, goes to the descriptor as JSON, because standard output may be closed.
"""

from __future__ import annotations

import asyncio
import gc
import json
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import psutil

import rankspawn
from rankspawn.option_types import StartMethod
from rankspawn.workers import assembling, forkserver
from rankspawn.workers.marker import find_marked, new_mark
from tests import jobs
from tests.jobs import DEADLOCK

_marks: list[str] = []


def main() -> None:
    answer, name, *arguments = sys.argv[1:]
    assembling.new_mark = _note_mark  # type: ignore[attr-defined]  # imported there, not exported
    resource_tracker_is_nobodys_leak()
    with left_behind() as left:
        outcome = PROGRAMS[name](*arguments)
    with open(int(answer), "w", encoding="utf-8") as file:
        json.dump({"outcome": outcome, "left": left}, file)


def _note_mark() -> str:
    _marks.append(new_mark())
    return _marks[-1]


def resource_tracker_is_nobodys_leak() -> None:
    from multiprocessing import resource_tracker

    resource_tracker.ensure_running()


@contextmanager
def left_behind() -> Iterator[list[str]]:
    """Gets what is there after the block and was not before: processes and descriptors."""
    children = {one.pid for one in psutil.Process().children(recursive=True)}
    before = _descriptors()
    left: list[str] = []
    yield left
    left += [f"marked {pid}" for mark in _marks for pid in find_marked(mark)]
    forkserver.stop_servers()
    gc.collect()
    for one in psutil.Process().children(recursive=True):
        if one.pid not in children:
            left.append(f"{one.status()} process {one.pid} {one.name()}")
            one.kill()
    after = _descriptors()
    left += [f"descriptor {fd} {what}" for fd, what in after.items() if before.get(fd) != what]


def _descriptors() -> dict[int, str]:
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except FileNotFoundError:
            continue
    return found


def attempt(start_method: StartMethod, nprocs: int = 2, **options: Any) -> Any:
    """The results of workers that return their rank, or the error with its notes."""
    try:
        return rankspawn.spawn(
            jobs.return_rank, nprocs=nprocs, backend="gloo", start_method=start_method, **options
        ).results()
    except Exception as error:
        return _described(error)


def _described(error: Exception) -> str:
    return "\n".join([type(error).__name__, str(error), *getattr(error, "__notes__", [])])


# --- limits


def limit_open_files(soft: int, hard: int | None = None) -> None:
    _, before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before if hard is None else hard))


def too_few_open_files(start_method: StartMethod) -> Any:
    limit_open_files(100, 100)
    return attempt(start_method, nprocs=50)


def descriptors_run_out(start_method: StartMethod) -> Any:
    """Something else takes all but a few descriptors when the start has begun."""
    logging.disable()  # that the guardian could not be started is logged
    limit_open_files(300, 300)
    stories: dict[int, tuple[Any, list[str]]] = {}
    for spare in range(20):
        taken: list[int] = []
        with left_behind() as left:
            outcome = attempt(start_method, 4, env=partial(_take_descriptors, spare, taken))
            for fd in taken:
                os.close(fd)
        stories[spare] = (outcome, left)
    return stories


def _take_descriptors(spare: int, taken: list[int], rank: int) -> dict[str, str]:
    if rank == 0:
        reserve = [os.dup(0) for _ in range(spare)]
        while True:
            try:
                taken.append(os.dup(0))
            except OSError:
                break
        for fd in reserve:
            os.close(fd)
    return {}


def processes_run_out(start_method: StartMethod, spare: str) -> Any:
    """None of the workers ends before all have been started."""
    go = multiprocessing.get_context("spawn").Event()
    with limited_processes(int(spare)):
        try:
            context = rankspawn.spawn(
                _return_when_told,
                args=(go,),
                nprocs=4,
                backend="gloo",
                start_method=start_method,
                join=False,
            )
        except OSError as error:
            return _described(error)
        go.set()
        return context.results()


def _return_when_told(go: Any) -> int:
    assert go.wait(DEADLOCK)
    return jobs.rank()


@contextmanager
def limited_processes(spare: int) -> Iterator[None]:
    """So many more processes and no more: by user where that binds, else by control group."""
    if os.geteuid() != 0:
        own = sum(
            one.num_threads()
            for one in psutil.process_iter()
            if one.uids().effective == os.geteuid()
        )
        resource.setrlimit(resource.RLIMIT_NPROC, (own + spare, own + spare))
        yield
        return
    folder = process_limit_folder()
    assert folder is not None
    os.mkdir(folder)
    try:
        _write(f"{folder}/pids.max", str(1 + spare))
        _write(f"{folder}/cgroup.procs", str(os.getpid()))
        yield
    finally:
        _write(f"{os.path.dirname(folder)}/cgroup.procs", str(os.getpid()))
        forkserver.stop_servers()
        _remove_group(folder)


def _remove_group(folder: str) -> None:
    """Killed orphans stay in it until init has reaped them."""
    deadline = time.monotonic() + DEADLOCK / 2
    while _read(f"{folder}/cgroup.procs").strip() and time.monotonic() < deadline:
        os.sched_yield()
    os.rmdir(folder)


def process_limit_folder() -> str | None:
    """A control group of one's own below the one of this process, if there can be one."""
    for line in _read("/proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "pids":
            parent = f"/sys/fs/cgroup/pids{path.rstrip('/')}"
            folder = f"{parent}/rankspawn-test-{os.getpid()}"
            return folder if os.access(f"{parent}/cgroup.procs", os.W_OK) else None
    return None


def _write(path: str, text: str) -> None:
    with open(path, "w", encoding="ascii") as file:
        file.write(text)


def _read(path: str) -> str:
    with open(path, encoding="ascii") as file:
        return file.read()


def many_workers(start_method: StartMethod, nprocs: str) -> bool:
    """Workers that do nothing; they need not even import anything."""
    limit_open_files(1024)
    results = rankspawn.spawn(
        os.getenv, args=("RANK",), nprocs=int(nprocs), backend="gloo", start_method=start_method
    ).results()
    return results == [str(rank) for rank in range(int(nprocs))]


# --- folders, streams, environment


def plain(start_method: StartMethod) -> Any:
    return attempt(start_method)


def deleted_folder(start_method: StartMethod, path: str) -> Any:
    os.chdir(path)
    os.rmdir(path)
    sys.path.insert(0, "")  # as in a REPL, a notebook or python -c
    return attempt(start_method)


def closed_streams(start_method: StartMethod, *streams: str) -> Any:
    print("buffered", end="")
    for stream in streams:
        os.close(int(stream))
    outcome = attempt(start_method)
    sys.stdout = None  # Python itself would stumble over it at exit
    return outcome


def large_variable(start_method: StartMethod, size: str, where: str) -> Any:
    value = "x" * int(size)
    if where == "parent":
        os.environ["LARGE"] = value
        return attempt(start_method)
    return attempt(start_method, env={"LARGE": value})


def many_variables(start_method: StartMethod) -> Any:
    for number in range(30):
        os.environ[f"LARGE_{number}"] = "x" * 100_000
    return attempt(start_method)


# --- what else goes on in the program


def start_method_set_by_others(start_method: StartMethod, theirs: str) -> Any:
    multiprocessing.set_start_method(theirs)
    outcome = attempt(start_method)
    assert multiprocessing.get_start_method() == theirs
    return outcome


def threads_in_parent(start_method: StartMethod) -> Any:
    """How many warnings there are."""
    end = threading.Event()
    threads = [threading.Thread(target=end.wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        outcome = attempt(start_method, nprocs=4)
    end.set()
    for thread in threads:
        thread.join()
    return outcome, [str(one.message) for one in caught]


def in_asyncio(start_method: StartMethod) -> Any:
    async def start() -> Any:
        blocking = attempt(start_method)
        context = rankspawn.spawn(
            jobs.return_rank, nprocs=2, backend="gloo", start_method=start_method, join=False
        )
        await context
        return blocking, context.results()

    return asyncio.run(start())


def in_daemonic_process(start_method: StartMethod, theirs: str) -> Any:
    mp: Any = multiprocessing.get_context(theirs)
    ours, end = mp.Pipe(duplex=False)
    with ours, end:
        process = mp.Process(target=_send_outcome, args=(end, start_method), daemon=True)
        process.start()
        assert ours.poll(DEADLOCK), "no outcome came"
        outcome = ours.recv()
        process.join()
        process.close()
    if theirs == "forkserver":
        from multiprocessing import forkserver as mp_forkserver

        mp_forkserver._forkserver._stop()  # type: ignore[attr-defined]
    return outcome


def _send_outcome(end: Any, start_method: StartMethod) -> None:
    end.send(attempt(start_method))
    forkserver.stop_servers()


def sigchld_ignored(start_method: StartMethod) -> Any:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    return attempt(start_method), _failure(start_method, "raise"), _failure(start_method, "SIGKILL")


def sigchld_ignored_and_workers_gone_at_once(start_method: StartMethod) -> Any:
    """The worker ended, and nobody had to reap it, before we could get hold of it."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    pidfd_open = os.pidfd_open

    def open_late(pid: int, flags: int = 0) -> int:
        while pid != os.getpid() and is_there(pid):
            os.sched_yield()
        return pidfd_open(pid, flags)

    def is_there(pid: int) -> bool:
        try:
            state = _read(f"/proc/{pid}/stat").rpartition(") ")[2][0]
        except (FileNotFoundError, ProcessLookupError):
            return False
        # A fork server reaps on request, so there is nothing to wait for.
        return start_method != "forkserver" or state != "Z"

    os.pidfd_open = open_late
    return attempt(start_method)


def others_wait_for_every_child(start_method: StartMethod) -> Any:
    end = threading.Event()

    def wait_for_every_child() -> None:
        while not end.is_set():
            try:
                if os.waitpid(-1, os.WNOHANG) == (0, 0):
                    os.sched_yield()
            except ChildProcessError:
                os.sched_yield()

    thread = threading.Thread(target=wait_for_every_child)
    thread.start()
    try:
        return (
            [attempt(start_method) for _ in range(5)],
            _failure(start_method, "raise"),
            _failure(start_method, "SIGKILL"),
        )
    finally:
        end.set()
        thread.join()


def _failure(start_method: StartMethod, how: str) -> str:
    try:
        rankspawn.spawn(
            jobs.rank_fails, args=(1, how), nprocs=2, backend="gloo", start_method=start_method
        )
    except rankspawn.ProcessException as error:
        return f"{type(error).__name__} of rank {error.rank}: {error}"
    return "no failure"


PROGRAMS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        too_few_open_files,
        descriptors_run_out,
        processes_run_out,
        many_workers,
        plain,
        deleted_folder,
        closed_streams,
        large_variable,
        many_variables,
        start_method_set_by_others,
        threads_in_parent,
        in_asyncio,
        in_daemonic_process,
        sigchld_ignored,
        sigchld_ignored_and_workers_gone_at_once,
        others_wait_for_every_child,
    )
}

if __name__ == "__main__":
    main()
