"""Exceptions and results of every kind; workers raise and return them.

Top-level and light, so that it goes by reference and a worker need not import pytest.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import multiprocessing
import os
import resource
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

from tests import jobs


def throw(make: Callable[[], BaseException]) -> NoReturn:
    raise make()


# --- how str() goes wrong


class StrRaises(Exception):
    def __str__(self) -> str:
        raise ZeroDivisionError("in __str__")


class StrExits(Exception):
    def __str__(self) -> str:  # noqa: PLE0307 - that is what is wrong with it
        sys.exit(9)


class StrIsNoText(Exception):
    def __str__(self) -> str:
        return 42  # type: ignore[return-value]  # noqa: PLE0307


class StrRecurses(Exception):
    def __str__(self) -> str:
        return f"{self}"


class ReprRaises(Exception):
    def __repr__(self) -> str:
        raise ZeroDivisionError("in __repr__")


class UnreadableText(str):
    """Text that pickles, and cannot be unpickled."""

    def __reduce__(self) -> Any:
        return _explode, ()


class StrIsUnreadable(Exception):
    def __str__(self) -> str:
        return UnreadableText("unreadable")


def _explode() -> NoReturn:
    raise ZeroDivisionError("while unpickling")


# --- how attributes go wrong


class ClassIsSystemExit(Exception):
    __class__ = SystemExit  # type: ignore[assignment]


class ClassRaises(Exception):
    @property  # type: ignore[misc]  # which is what is wrong with it
    def __class__(self) -> Any:
        raise ZeroDivisionError("in __class__")


class AttributesRaise(Exception):
    def __getattribute__(self, name: str) -> Any:
        raise ZeroDivisionError("in __getattribute__")


class AttributesExit(Exception):
    def __getattribute__(self, name: str) -> Any:
        sys.exit(9)


class AttributesHang(Exception):
    def __getattribute__(self, name: str) -> Any:
        jobs.sleep_for_ever()


# --- how pickling and unpickling go wrong


class UnreadableEverywhere(Exception):
    def __reduce__(self) -> Any:
        return _explode, ()


class UnreadableInParent(Exception):
    def __init__(self, text: str, how: str) -> None:
        super().__init__(text, how)
        self.how = how

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> Any:
        return _remake_in_worker_only, (str(self), self.how)


def _remake_in_worker_only(text: str, how: str) -> UnreadableInParent:
    if "RANK" not in os.environ:
        raise SystemExit(9) if how == "exit" else ZeroDivisionError("in the parent")
    return UnreadableInParent(text, how)


class KillsItsReader(Exception):
    """Whoever unpickles it ends; reading is tried in the worker first."""

    def __reduce__(self) -> Any:
        return os._exit, (9,)


class KillsInSetState(Exception):
    def __setstate__(self, state: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class HangsWhenPickled(Exception):
    def __reduce__(self) -> Any:
        jobs.sleep_for_ever()
        raise AssertionError("awake")


class ExitsWhenPickled(Exception):
    def __reduce__(self) -> Any:
        sys.exit(0)


class ComesBackAsAnother(Exception):
    def __reduce__(self) -> Any:
        return str, ("not an exception",)


# --- classes that are built in unusual ways


class Meta(type):
    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)


class WithMetaclass(Exception, metaclass=Meta):
    pass


class WithSlots(Exception):
    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class KeywordOnly(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@dataclasses.dataclass(frozen=True)
class Frozen(Exception):
    code: int


class WantsArgumentOfSubclass(Exception):
    code: int

    def __init_subclass__(cls, *, code: int) -> None:
        cls.code = code


class AnArgsProperty(Exception):
    @property
    def args(self) -> NoReturn:  # type: ignore[override]
        raise ZeroDivisionError("in args")


class NoOrdinaryException(BaseException):
    pass


class OwnGroup(ExceptionGroup[Exception]):
    """With an attribute, and made as the docs of Python say."""

    def __new__(cls, message: str, members: list[Exception], code: int) -> OwnGroup:
        self = super().__new__(cls, message, members)
        self.code = code
        return self

    code: int


def make_subclass_instance() -> BaseException:
    """Of a class that goes by value, from a base that cannot be subclassed just like that."""

    class Local(WantsArgumentOfSubclass, code=3):
        def __reduce__(self) -> Any:
            raise ValueError("will not be pickled")

    return Local("its text")


def make_lambda() -> BaseException:
    return ValueError("holds", lambda: 42)


def make_lock() -> BaseException:
    return jobs.HoldsLock("holds a lock")


# --- chains and groups


def raise_chain(depth: int) -> NoReturn:
    """Each is the cause of the next; ``link 0`` is the innermost."""
    error = ValueError("link 0")
    for number in range(1, depth):
        outer = ValueError(f"link {number}")
        outer.__cause__ = error
        error = outer
    raise error


def raise_in_handler() -> None:
    try:
        os.environ["NO_SUCH_VARIABLE"]
    except KeyError:
        raise jobs.TwoArguments(7, "second")  # noqa: B904 - the context is the subject


def raise_from_none() -> None:
    try:
        os.environ["NO_SUCH_VARIABLE"]
    except KeyError:
        raise ValueError("second") from None


def raise_circle() -> NoReturn:
    first, second = ValueError("first"), ValueError("second")
    first.__cause__, second.__cause__ = second, first
    raise first


def make_nested_groups(depth: int, leaf: Callable[[], Exception]) -> BaseException:
    error = leaf()
    for number in range(depth):
        error = ExceptionGroup(f"level {number}", [error, ValueError(number)])
    return error


def make_deep_groups() -> BaseException:
    return make_nested_groups(5, lambda: jobs.TwoArguments(7, "leaf"))


def make_too_deep_groups() -> BaseException:
    return make_nested_groups(30, lambda: jobs.HoldsLock("leaf"))


def make_base_group() -> BaseException:
    return BaseExceptionGroup("several", [KeyboardInterrupt("a"), NoOrdinaryException("b")])


def make_own_group() -> BaseException:
    return OwnGroup("own", [ValueError(1)], 3)


def make_noted() -> BaseException:
    error = ValueError("noted")
    error.add_note("one note")
    error.add_note("another")
    return error


def make_huge(size: int) -> BaseException:
    return ValueError("x" * size)


# --- of Python itself


def raise_syntax_error() -> NoReturn:
    compile("value = = 1\n", "some_file.py", "exec")
    raise AssertionError("compiled")


def raise_recursion_error() -> NoReturn:
    raise_recursion_error()


def raise_unicode_error() -> NoReturn:
    b"\xff\xfe".decode("utf-8")
    raise AssertionError("decoded")


def raise_file_not_found() -> NoReturn:
    os.rename("/no/such/source", "/no/such/target")
    raise AssertionError("renamed")


def raise_connection_error() -> NoReturn:
    raise OSError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))


def raise_stop_iteration() -> NoReturn:
    next(iter(()))
    raise AssertionError("there was one")


def make_stop_iteration() -> BaseException:
    return StopIteration("value")


def make_generator_exit() -> BaseException:
    return GeneratorExit("closed")


def make_cancelled() -> BaseException:
    return asyncio.CancelledError("cancelled")


def make_surrogate() -> BaseException:
    return ValueError("half a character: \ud800")


def exit_with_strange_code() -> NoReturn:
    sys.exit(StrRaises())  # type: ignore[arg-type]


def raise_while_pickling_hangs_and_others_wait() -> None:
    if jobs.rank() == 1:
        raise HangsWhenPickled("its text")
    jobs.sleep_for_ever()


class HangsWhenShown(Exception):
    def __str__(self) -> str:
        jobs.sleep_for_ever()
        raise AssertionError


class DiesWhenShown(Exception):
    def __str__(self) -> str:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def raise_what_cannot_be_shown_and_others_wait(kind: type[Exception]) -> None:
    if jobs.rank() == 1:
        raise kind
    jobs.sleep_for_ever()


def exit_in_a_thread() -> str:
    thread = threading.Thread(target=sys.exit, args=(5,))
    thread.start()
    thread.join()
    return "returned"


# --- results


class RefusesPickling:
    def __reduce__(self) -> Any:
        raise LookupError("no such luck")


class ReadsOnlyInWorkers:
    def __reduce__(self) -> Any:
        return _remake_in_worker_only, ("text", "raise")


def return_generator() -> dict[str, Iterator[int]]:
    return {"numbers": (number for number in range(3))}


class Table(dict[str, Any]):
    """A dictionary with attributes."""


def return_table() -> dict[str, Any]:
    table = Table(waiting=deque([1]))
    table.lock = threading.Lock()  # type: ignore[attr-defined]
    return {"table": table}


def return_deque() -> dict[str, Any]:
    return {"waiting": deque([1, threading.Lock()])}


def return_locks() -> list[Any]:
    return [1, (2, threading.RLock())]


def return_pipe_end() -> list[Any]:
    return [1, multiprocessing.Pipe()[0]]


def raise_with_pipe_end() -> NoReturn:
    error = ValueError("holds a pipe")
    error.end = multiprocessing.Pipe()[0]  # type: ignore[attr-defined]
    raise error


def return_refusing() -> list[Any]:
    return [1, {"inner": RefusesPickling()}]


def return_deep() -> list[Any]:
    result: list[Any] = []
    for _ in range(100_000):
        result = [result]
    return result


def return_unreadable_on_rank_1() -> object:
    return ReadsOnlyInWorkers() if jobs.rank() == 1 else jobs.rank()


def return_exception() -> Exception:
    return ValueError("returned, not raised")


# --- limits


def raise_more_than_fits() -> NoReturn:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    raise ValueError("x" * 1_000_000 + " the end")


def return_more_than_fits() -> bytes:
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
    return bytes(1_000_000)
