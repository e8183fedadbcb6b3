"""Classes that no name leads to come back as the parent's own."""

from __future__ import annotations

import collections
import dataclasses
import enum
import gc
import subprocess
import sys
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import rankspawn
from rankspawn import MultiprocessContext, ProcessRaisedException
from rankspawn.workers.known_classes import KnownClasses
from tests.jobs import DEADLOCK

Run = Callable[..., MultiprocessContext]

fork = partial(rankspawn.spawn, backend="gloo", start_method="fork", nprocs=1)


def make_class(value: int = 0) -> Any:
    """A class that only whoever called this has."""

    class Config:
        number = value

        def __init__(self, text: str) -> None:
            self.text = text

    return Config


def give_back(*args: Any) -> Any:
    return args


def test_kinds_of_local_classes(run: Run) -> None:
    class Color(enum.Enum):
        RED = 1

    @dataclasses.dataclass
    class Point:
        x: int

    # Of this module, by its name, where there is no such thing.
    pair = collections.namedtuple("pair", "a b")
    made, config = type("Made", (), {}), make_class()
    sent = {"deep": [Color.RED, Point(1)], "class": made, "pair": pair(1, 2)}

    ((back, instance),) = run(give_back, args=(sent, config("kept")), nprocs=1).results()

    assert back == sent
    assert back["class"] is made
    assert type(back["pair"]) is pair
    assert type(instance) is config
    assert instance.text == "kept"


def test_exceptions_of_local_classes() -> None:
    class FirstError(Exception):
        pass

    class SecondError(Exception):
        def __init__(self) -> None:
            super().__init__("a constructor that pickle cannot call")

    def fail() -> None:
        raise SecondError from FirstError("first")

    with pytest.raises(ProcessRaisedException) as caught:
        fork(fail)

    assert type(caught.value.exception) is SecondError
    assert type(caught.value.exception.__cause__) is FirstError


def test_a_class_that_was_made_in_the_worker_goes_by_value() -> None:
    config = make_class(1)

    def work() -> Any:
        class Special(config):  # type: ignore[misc, valid-type]  # it is a value
            pass

        return Special("sub"), make_class(2)("other"), config("same")

    ctx = fork(work, join=False)
    # In the parent these get the places in memory that the worker's have in the worker.
    mine = [make_class(3) for _ in range(10)]
    ((special, other, same),) = ctx.results()

    assert isinstance(special, config)
    assert type(special) is not config
    assert type(other) not in (config, *mine)
    assert other.number == 2
    assert type(same) is config


def test_a_class_that_cannot_go_by_value() -> None:
    class Holder:
        generator = (number for number in range(3))

    (back,) = fork(Holder).results()

    assert type(back) is Holder


def test_a_class_of_a_worker_in_a_worker() -> None:
    config = make_class()

    def outer() -> Any:
        return fork(lambda: config("inner")).results()[0]

    (back,) = fork(outer).results()

    assert type(back) is config


def test_a_class_with_a_hostile_metaclass() -> None:
    class Meta(type):
        def __eq__(cls, other: object) -> bool:
            return True

        def __hash__(cls) -> int:
            return hash(object)

        def __subclasses__(cls) -> Any:
            raise RuntimeError

    class Hostile(metaclass=Meta):
        pass

    (back,) = fork(Hostile).results()

    assert type(back) is Hostile


def test_the_main_modules_classes_beside_one_of_the_worker() -> None:
    code = """
import rankspawn
class Mine: pass
def work():
    class New: pass
    return Mine(), New()
((mine, new),) = rankspawn.spawn(work, nprocs=1, backend="gloo", start_method="fork").results()
assert type(mine) is Mine
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=DEADLOCK)


def test_classes_are_let_go_of_with_the_context() -> None:
    config = make_class()
    ctx = fork(give_back, args=(config("x"),))
    assert type(ctx.results()[0][0]) is config
    seen = weakref.ref(config)
    del config, ctx

    gc.collect()

    assert seen() is None


def test_many_bases_are_listed_once() -> None:
    """Each of these doubles the ways from ``object`` to the last one."""
    kind: Any = type("Top", (), {})
    for depth in range(40):
        left, right = type(f"L{depth}", (kind,), {}), type(f"R{depth}", (kind,), {})
        kind = type(f"B{depth}", (left, right), {})

    known = KnownClasses()

    assert known.refer_to(kind) is not None
    assert known.refer_to(make_class()) is None
