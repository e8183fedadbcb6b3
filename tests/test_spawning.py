"""What a caller of spawn() gets, under every start method."""

from __future__ import annotations

import functools
import os
import queue
import sys
import threading
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import rankspawn
from rankspawn import MultiprocessContext
from rankspawn.option_types import StartMethod
from tests import jobs
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]


def test_results_come_back_by_rank(run: Run) -> None:
    context = run(jobs.return_rank, nprocs=3)

    assert context.results() == [0, 1, 2]
    assert [queue.get() for queue in context.return_queues] == [0, 1, 2]
    assert context.exitcodes() == [0, 0, 0]
    assert context.sentinels == {}


def test_args_kwargs_and_rank_args_are_put_together(run: Run) -> None:
    context = run(
        jobs.echo, args=[1, "a"], nprocs=2, kwargs={"key": None}, rank_args=[("x",), ("y", "z")]
    )

    assert context.results() == [
        ((1, "a", "x"), {"key": None}),
        ((1, "a", "y", "z"), {"key": None}),
    ]


def test_function_only_starts_one_worker_per_cpu(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CPU_NUM", "2")

    assert run(jobs.return_rank).results() == [0, 1]


def test_falling_back_to_the_cpu_is_said_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")

    with pytest.warns(UserWarning, match="CPU") as caught:
        rankspawn.spawn(jobs.return_rank, nprocs=1)

    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_selected_devices_reach_the_workers(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")

    context = rankspawn.spawn(
        jobs.variable,
        args=("FLAGS_selected_gpus",),
        nprocs=2,
        gpus="5,7",
        start_method=run.keywords["start_method"],  # type: ignore[attr-defined]
    )

    assert context.results() == ["1", "3"]


def test_env_wins_and_none_unsets(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEFT_OVER", "parent's")
    monkeypatch.setenv("http_proxy", "http://proxy:1")

    context = run(
        jobs.environment,
        nprocs=2,
        env=lambda rank: {"LEFT_OVER": None, "RANK": f"r{rank}", "OMP_NUM_THREADS": "9"},
    )

    for rank, environ in enumerate(context.results()):
        assert environ["RANK"] == f"r{rank}"
        assert environ["OMP_NUM_THREADS"] == "9"
        assert environ.keys().isdisjoint({"LEFT_OVER", "http_proxy"})
    assert os.environ["LEFT_OVER"] == "parent's"


def test_the_environment_is_there_before_the_interpreter_starts() -> None:
    context = rankspawn.spawn(
        jobs.variable,
        args=("PYTHONHASHSEED",),
        nprocs=1,
        backend="gloo",
        env={"PYTHONHASHSEED": "7"},
    )
    hashes = rankspawn.spawn(
        hash, args=("text",), nprocs=2, backend="gloo", env={"PYTHONHASHSEED": "7"}
    )

    assert context.results() == ["7"]
    assert len(set(hashes.results())) == 1


@pytest.mark.parametrize("size", [0, 65_536, 70_000, 50_000_000])
def test_results_of_any_size_come_back(run: Run, size: int) -> None:
    context = run(jobs.make_bytes, args=(size,), nprocs=2)

    assert [len(result) for result in context.results()] == [size, size]


def test_arrays_go_both_ways_and_are_ones_own(run: Run) -> None:
    array = np.arange(100_000, dtype=np.float64)

    context = run(add_rank, args=(array,), nprocs=2)

    for rank, result in enumerate(context.results()):
        assert np.array_equal(result, np.arange(100_000) + rank)
        result[0] = -1.0  # writable
    assert array[0] == 0.0


def add_rank(array: Any) -> Any:
    array += jobs.rank()  # in place: each rank's array is its own
    return array


@pytest.mark.slow
def test_one_huge_result(start_method: StartMethod) -> None:
    size = 1 << 30
    context = rankspawn.spawn(
        jobs.make_bytes, args=(size,), nprocs=1, backend="gloo", start_method=start_method
    )

    assert len(context.return_queues[0].get()) == size


class TestByValue:
    """What plain pickle refuses."""

    def test_closure(self, run: Run) -> None:
        base = [1]

        assert run(lambda: [*base, jobs.rank()], nprocs=2).results() == [[1, 0], [1, 1]]

    def test_partial_and_bound_method(self, run: Run) -> None:
        assert run(functools.partial(jobs.echo, 1, k=2), nprocs=1).results() == [((1,), {"k": 2})]
        assert run(jobs.Point(3, 4).norm, nprocs=1).results() == [25]

    def test_local_class_comes_back_as_itself(self, run: Run) -> None:
        class Local:
            def __init__(self, value: int) -> None:
                self.value = value

        (result,) = run(lambda: Local(5), nprocs=1).results()

        assert result.value == 5
        # Under fork nothing was sent, so nothing ties the two classes together.
        assert type(result) is Local or run.keywords["start_method"] == "fork"  # type: ignore[attr-defined]

    def test_references_shared_between_function_and_arguments_stay_shared(self, run: Run) -> None:
        shared: list[int] = []

        context = run(lambda given: given is shared, args=(shared,), nprocs=1)

        assert context.results() == [True]

    def test_function_of_a_module_that_workers_cannot_import(self, run: Run) -> None:
        module = type(sys)("made_in_memory")
        exec("def answer():\n    return 42", module.__dict__)
        sys.modules["made_in_memory"] = module
        try:
            assert run(module.answer, nprocs=1).results() == [42]
        finally:
            del sys.modules["made_in_memory"]


def test_callables_are_pickled_once_for_all_ranks() -> None:
    counted = Counted()

    assert rankspawn.spawn(counted, nprocs=4, backend="gloo").results() == [0, 1, 2, 3]
    assert Counted.pickled == 1


class Counted:
    pickled = 0

    def __call__(self) -> int:
        return jobs.rank()

    def __getstate__(self) -> dict[str, Any]:
        Counted.pickled += 1
        return {}


@pytest.mark.untraced
def test_a_worker_that_needs_neither_imports_neither() -> None:
    (modules,) = rankspawn.spawn(jobs_free_modules, nprocs=1, backend="gloo").results()

    assert "rankspawn.workers.child" in modules
    assert modules.isdisjoint({"cloudpickle", "psutil", "multiprocessing", "pickle", "typing"})


jobs_free_modules = functools.partial(eval, "set(__import__('sys').modules)")


def test_multiprocessing_knows_who_a_worker_is(run: Run) -> None:
    context = run(mp_identity, nprocs=2)

    for rank, (name, parent_pid, lives, key, daemon) in enumerate(context.results()):
        assert (name, parent_pid, lives, daemon) == (f"rank-{rank}", os.getpid(), True, False)
        assert key == bytes(__import__("multiprocessing").current_process().authkey)


def mp_identity() -> tuple[str, int | None, bool, bytes, bool]:
    import multiprocessing

    current, parent = multiprocessing.current_process(), multiprocessing.parent_process()
    assert parent is not None
    lives = parent.is_alive()
    return current.name, parent.pid, lives, bytes(current.authkey), current.daemon


def test_daemon_flag(run: Run) -> None:
    with run(jobs.sleep_for_ever, nprocs=1, join=False, daemon=True) as context:
        assert context.processes[0].daemon


def test_nested_spawn(run: Run, start_method: StartMethod) -> None:
    assert run(jobs.nested, args=(start_method,), nprocs=2).results() == [[0, 1], [10, 11]]


def test_two_groups_at_the_same_time_have_different_ports(run: Run) -> None:
    one = run(jobs.variable, args=("PADDLE_TRAINER_ENDPOINTS",), nprocs=2, join=False)
    two = run(jobs.variable, args=("PADDLE_TRAINER_ENDPOINTS",), nprocs=2, join=False)

    ports = [result.split(",") for result in (one.results()[0], two.results()[0])]

    assert len(set(ports[0]) | set(ports[1])) == 4


def test_spawn_from_several_threads_at_once(run: Run) -> None:
    results: queue.Queue[list[int]] = queue.Queue()
    threads = [
        threading.Thread(target=lambda: results.put(run(jobs.return_rank, nprocs=2).results()))
        for _ in range(4)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # fork in a program with threads
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(DEADLOCK)

    assert [results.get(timeout=DEADLOCK) for _ in threads] == [[0, 1]] * 4


class TestBadInput:
    """Refused before any process starts."""

    @pytest.mark.parametrize(
        ("arguments", "error", "words"),
        [
            ({"func": 3}, TypeError, "func must be callable"),
            ({"args": "text"}, TypeError, r"args=\(value,\)"),
            ({"args": 3}, TypeError, r"args=\(value,\)"),
            ({"nprocs": 0}, ValueError, "nprocs"),
            ({"nprocs": -2}, ValueError, "nprocs"),
            ({"nprocs": True}, TypeError, "nprocs"),
            ({"nprocs": 1.5}, TypeError, "nprocs"),
            ({"start_metod": "fork"}, ValueError, "start_method"),
            ({"rank_args": [(1,)]}, ValueError, "rank_args"),
            ({"gpus": "0", "backend": "gloo"}, ValueError, "gpus"),
        ],
        ids=str,
    )
    def test_refused(self, arguments: dict[str, Any], error: type[Exception], words: str) -> None:
        usual: dict[str, Any] = {"func": jobs.return_rank, "nprocs": 2, "backend": "gloo"}
        with pytest.raises(error, match=words):
            rankspawn.spawn(**(usual | arguments))

    @pytest.mark.parametrize("option", ["func", "args", "nprocs", "backend", "timeout", "env"])
    def test_a_value_without_a_repr_is_refused_as_others_are(self, option: str) -> None:
        class HasNone:
            def __repr__(self) -> str:
                raise ZeroDivisionError("in __repr__")

        usual: dict[str, Any] = {"func": jobs.return_rank, "nprocs": 1, "backend": "gloo"}
        with pytest.raises(TypeError, match=f"^{option} must be"):
            rankspawn.spawn(**(usual | {option: HasNone()}))

    def test_ips_that_are_overridden_are_said_to_be(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cloud = {"PADDLE_TRAINERS": "10.0.0.1", "POD_IP": "10.0.0.1", "PADDLE_TRAINER_ID": "0"}
        for name, value in {**cloud, "TRAINER_PORTS_NUM": "1"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr("rankspawn.spawning.start_context", lambda *_, **__: None)
        with pytest.warns(UserWarning, match="ips='10.9.9.1' is not used") as caught:
            rankspawn.spawn(jobs.return_rank, nprocs=1, backend="gloo", ips="10.9.9.1")

        assert caught.list[0].filename == __file__

    @pytest.mark.parametrize("method", ["spawn", "forkserver"])
    @pytest.mark.parametrize(
        ("make", "path"),
        [
            (lambda lock: {"args": (_trainer_with(lock),)}, r"args\[0\]\.trainer\.lock"),
            (lambda lock: {"kwargs": {"a": [1, lock]}}, r'kwargs\["a"\]\[1\]'),
            (lambda lock: {"rank_args": [(1,), (lock,)]}, r"rank_args\[1\]\[0\]"),
            (lambda lock: {"func": lambda: lock}, r"func \(its variable 'lock'\)"),
            (lambda lock: {"func": functools.partial(jobs.echo, lock)}, r"func\.args\[0\]"),
            (lambda lock: {"args": (_settings_with(lock),)}, r"args\[0\]\.lock"),
            (lambda lock: {"args": (_local_class(lock)(),)}, r"args\[0\]\.__class__\.lock"),
        ],
        ids=["args", "kwargs", "rank_args", "closure", "partial", "attribute of a dict", "class"],
    )
    def test_the_path_to_what_cannot_be_pickled_is_named(
        self, method: StartMethod, make: Callable[[Any], dict[str, Any]], path: str
    ) -> None:
        usual: dict[str, Any] = {"func": jobs.echo, "nprocs": 2, "backend": "gloo"}
        with pytest.raises(TypeError, match=f"^{path} cannot be sent to a worker: lock object"):
            rankspawn.spawn(**(usual | make(threading.Lock())), start_method=method)


def _trainer_with(lock: Any) -> jobs.Point:
    point, trainer = jobs.Point(1, 2), jobs.Point(3, 4)
    point.trainer = trainer  # type: ignore[attr-defined]
    trainer.lock = lock  # type: ignore[attr-defined]
    return point


class Settings(dict[str, int]):
    lock: Any


def _settings_with(lock: Any) -> Settings:
    settings = Settings(size=3)
    settings.lock = lock
    return settings


def _local_class(lock: Any) -> Any:
    class Trainer(jobs.Point):
        def __init__(self) -> None:
            super().__init__(1, 2)

    Trainer.lock = lock  # type: ignore[attr-defined]
    return Trainer
