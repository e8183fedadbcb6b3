"""Exceptions and results of every kind on their way from a worker to its caller."""

from __future__ import annotations

import asyncio
import errno
import pickle
from collections.abc import Callable
from typing import Any

import pytest

import rankspawn
from rankspawn import ProcessExitedException, ProcessRaisedException
from rankspawn.option_types import StartMethod
from tests import jobs
from tests.faults import strange
from tests.faults.conftest import AssertNothingLeft
from tests.faults.strange import throw

pytestmark = [pytest.mark.usefixtures("_nothing_is_left_running"), pytest.mark.untraced]


@pytest.fixture
def _nothing_is_left_running(assert_nothing_left: AssertNothingLeft) -> Any:
    yield
    assert_nothing_left()


def caught_from(
    func: Callable[..., object], *args: object, start_method: StartMethod = "spawn"
) -> ProcessRaisedException:
    """What the caller of a failing function gets; checked for what holds for every one."""
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(func, args=args, nprocs=1, backend="gloo", start_method=start_method)
    error = caught.value
    assert str(error).startswith("Process 0 terminated with the following error:\n")
    assert error.rank == 0
    assert error.traceback.strip()
    assert error.traceback.strip() in str(error)
    assert isinstance(error.exception, BaseException)
    assert error.__cause__ is error.exception
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.traceback) == (str(error), error.traceback)
    return error


def last_line(error: ProcessRaisedException) -> str:
    return str(error).splitlines()[-1]


def original(error: ProcessRaisedException) -> Any:
    return error.exception


def caught_while_rank_0_waits(
    func: Callable[..., object], *args: object, start_method: StartMethod
) -> ProcessRaisedException:
    """What the caller gets of rank 1, which has half a second to write its report."""
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(
            func,
            args=args,
            nprocs=2,
            backend="gloo",
            start_method=start_method,
            grace_period=0.5,
            timeout=jobs.DEADLOCK,
        )
    assert caught.value.rank == 1
    return caught.value


# --- how str() goes wrong


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (strange.StrRaises, "<exception str() failed>"),
        (strange.StrExits, "<exception str() failed>"),
        (strange.StrIsNoText, "<exception str() failed>"),
        (strange.StrRecurses, "<exception str() failed>"),
        (strange.ReprRaises, "given"),
        (strange.StrIsUnreadable, "unreadable"),
    ],
)
def test_str_that_goes_wrong_costs_only_the_text(kind: type[Exception], text: str) -> None:
    error = caught_from(throw, lambda: kind("given"))

    assert last_line(error) == f"tests.faults.strange.{kind.__name__}: {text}"
    assert "in throw" in error.traceback
    assert type(error.exception) is kind
    assert original(error).args == ("given",)


def test_sys_exit_with_a_code_whose_str_raises() -> None:
    with pytest.raises(ProcessExitedException, match=r"exit code 1: .*StrRaises"):
        rankspawn.spawn(strange.exit_with_strange_code, nprocs=1, backend="gloo")


# --- how attributes go wrong


@pytest.mark.parametrize(
    "kind",
    [
        strange.ClassIsSystemExit,
        strange.ClassRaises,
        strange.AttributesRaise,
        strange.AttributesExit,
    ],
)
def test_attributes_that_go_wrong_do_not_hide_the_exception(kind: type[Exception]) -> None:
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(throw, args=(lambda: kind("given"),), nprocs=1, backend="gloo")

    assert kind.__name__ in last_line(caught.value)
    assert "in throw" in caught.value.traceback
    assert issubclass(type(caught.value.exception), BaseException)
    assert type(caught.value.exception).__name__ == kind.__name__


# --- limits


def test_a_text_that_does_not_fit_is_cut_not_lost() -> None:
    error = caught_from(strange.raise_more_than_fits)

    assert last_line(error).endswith("xxx the end")
    assert "`ulimit -f`" in str(error)


def test_a_result_that_does_not_fit_is_an_error_with_the_reason() -> None:
    error = caught_from(strange.return_more_than_fits)

    assert "result cannot be sent back to the parent" in last_line(error)
    assert "File too large: the limit on the size of files is 50000 bytes" in last_line(error)
    assert "`ulimit -f " in last_line(error)


# --- how pickling and unpickling go wrong


def test_what_cannot_be_pickled_comes_back_with_what_can(start_method: StartMethod) -> None:
    error = caught_from(throw, strange.make_lock, start_method=start_method)

    assert type(error.exception) is jobs.HoldsLock
    assert original(error).text == "holds a lock"
    assert "lock" in original(error).lock, "its repr stands for what could not be sent"


def test_what_cannot_be_unpickled_comes_back_in_pieces(start_method: StartMethod) -> None:
    error = caught_from(
        throw, lambda: strange.UnreadableEverywhere("its text"), start_method=start_method
    )

    assert last_line(error) == "tests.faults.strange.UnreadableEverywhere: its text"
    assert type(error.exception) is strange.UnreadableEverywhere
    assert original(error).args == ("its text",)


@pytest.mark.parametrize("how", ["raise", "exit"])
def test_what_only_the_parent_cannot_unpickle_has_a_stand_in(
    start_method: StartMethod, how: str
) -> None:
    """Neither does SystemExit while unpickling end the caller's program."""
    error = caught_from(
        throw, lambda: strange.UnreadableInParent("its text", how), start_method=start_method
    )

    assert last_line(error) == "tests.faults.strange.UnreadableInParent: its text"
    assert type(error.exception).__name__ == "UnreadableInParent"
    assert str(error.exception) == "its text"


@pytest.mark.parametrize("kind", [strange.KillsItsReader, strange.KillsInSetState])
def test_unpickling_that_kills_the_reader_does_not_kill_the_parent(
    start_method: StartMethod, kind: type[Exception]
) -> None:
    def make() -> Exception:
        error = kind("its text")
        error.state = "so that __setstate__ is called"  # type: ignore[attr-defined]
        return error

    error = caught_from(throw, make, start_method=start_method)

    assert last_line(error) == f"tests.faults.strange.{kind.__name__}: its text"
    assert "in throw" in error.traceback
    assert type(error.exception).__name__ == kind.__name__
    assert str(error.exception) == "its text"


def test_pickling_that_exits_is_still_a_failure(start_method: StartMethod) -> None:
    error = caught_from(
        throw, lambda: strange.ExitsWhenPickled("its text"), start_method=start_method
    )

    assert last_line(error) == "tests.faults.strange.ExitsWhenPickled: its text"


def test_pickling_that_hangs_does_not_hold_the_group(start_method: StartMethod) -> None:
    error = caught_while_rank_0_waits(
        strange.raise_while_pickling_hangs_and_others_wait, start_method=start_method
    )

    assert last_line(error) == "tests.faults.strange.HangsWhenPickled: its text"


@pytest.mark.parametrize("kind", [strange.HangsWhenShown, strange.DiesWhenShown])
def test_an_exception_that_cannot_be_shown_does_not_hold_the_group(
    start_method: StartMethod, kind: type[Exception]
) -> None:
    error = caught_while_rank_0_waits(
        strange.raise_what_cannot_be_shown_and_others_wait, kind, start_method=start_method
    )

    unknown = "(its text is not known: the process ended, or had to be ended, before it wrote that)"
    assert last_line(error) == f"{kind.__name__} {unknown}"
    assert "in raise_what_cannot_be_shown_and_others_wait" in error.traceback
    assert len(error.failures) == 1


@pytest.mark.slow
def test_attributes_that_hang_do_not_hold_the_group() -> None:
    error = caught_while_rank_0_waits(
        strange.raise_what_cannot_be_shown_and_others_wait,
        strange.AttributesHang,
        start_method="fork",
    )

    assert last_line(error).startswith("AttributesHang (its text is not known")


def test_a_pickle_of_something_else_is_not_taken_for_the_exception() -> None:
    error = caught_from(throw, lambda: strange.ComesBackAsAnother("its text"))

    assert type(error.exception) is strange.ComesBackAsAnother
    assert str(error.exception) == "its text"


def test_the_end_of_a_pipe_is_not_taken_for_a_descriptor_of_the_parent(
    start_method: StartMethod,
) -> None:
    error = caught_from(strange.raise_with_pipe_end, start_method=start_method)

    assert isinstance(error.exception, ValueError)
    assert "Connection object" in error.exception.end  # type: ignore[attr-defined]


def test_a_lambda_among_the_args_comes_back() -> None:
    error = caught_from(throw, strange.make_lambda)

    text, function = original(error).args
    assert (text, function()) == ("holds", 42)


# --- classes that are built in unusual ways


@pytest.mark.parametrize(
    ("make", "attributes"),
    [
        (lambda: strange.WithMetaclass("text"), {"args": ("text",)}),
        (lambda: strange.WithSlots(3), {"code": 3}),
        (lambda: strange.KeywordOnly(code=3), {"code": 3, "args": ("code 3",)}),
        (lambda: strange.Frozen(3), {"code": 3}),
        (lambda: strange.NoOrdinaryException("text"), {"args": ("text",)}),
        (lambda: jobs.TwoArguments(7, "bad luck"), {"code": 7, "reason": "bad luck"}),
    ],
    ids=["metaclass", "slots", "keyword-only", "frozen", "BaseException", "two arguments"],
)
def test_unusual_classes_come_back_as_themselves(
    make: Callable[[], BaseException], attributes: dict[str, object]
) -> None:
    error = caught_from(throw, make)

    assert type(error.exception) is type(make())
    assert {name: getattr(error.exception, name) for name in attributes} == attributes


def test_a_base_that_wants_arguments_of_its_subclasses_does_not_matter() -> None:
    error = caught_from(throw, strange.make_subclass_instance)

    assert last_line(error).endswith("Local: its text")
    assert str(error.exception) == "its text"


def test_args_that_raise_lose_nothing_else() -> None:
    error = caught_from(throw, strange.AnArgsProperty)

    assert last_line(error) == "tests.faults.strange.AnArgsProperty"
    assert type(error.exception).__name__ == "AnArgsProperty"


# --- chains and groups


def test_a_chain_of_50_causes_is_whole_in_the_text_and_begins_in_the_exception(
    start_method: StartMethod,
) -> None:
    error = caught_from(strange.raise_chain, 50, start_method=start_method)

    assert last_line(error) == "ValueError: link 49"
    assert all(f"ValueError: link {number}\n" in error.traceback for number in range(50))
    link, number = error.exception, 49
    while link is not None:
        assert str(link) == f"link {number}"
        link, number = link.__cause__, number - 1
    assert number < 30, "at least 20 of them are sent as exceptions"


def test_a_very_long_chain_costs_nothing_else() -> None:
    error = caught_from(strange.raise_chain, 3000)

    assert str(error.exception) == "link 2999"


def test_the_context_comes_back() -> None:
    exception = original(caught_from(strange.raise_in_handler))

    assert type(exception) is jobs.TwoArguments
    assert repr(exception.__context__) == "KeyError('NO_SUCH_VARIABLE')"
    assert (exception.__cause__, exception.__suppress_context__) == (None, False)


def test_a_suppressed_context_stays_suppressed() -> None:
    error = caught_from(strange.raise_from_none)

    assert original(error).__suppress_context__
    assert "KeyError" not in error.traceback


def test_causes_in_a_circle_come_to_an_end() -> None:
    error = caught_from(strange.raise_circle)

    assert str(error.exception) == "first"
    assert str(original(error).__cause__) == "second"


def test_nested_groups_come_back(start_method: StartMethod) -> None:
    exception: Any = caught_from(
        throw, strange.make_deep_groups, start_method=start_method
    ).exception

    for number in (4, 3, 2, 1, 0):
        assert type(exception) is ExceptionGroup
        assert exception.message == f"level {number}"
        exception, sibling = exception.exceptions
        assert sibling.args == (number,)
    assert type(exception) is jobs.TwoArguments
    assert exception.code == 7


def test_groups_nested_too_deep_are_cut_not_lost() -> None:
    error = caught_from(throw, strange.make_too_deep_groups)

    assert isinstance(error.exception, ExceptionGroup)
    assert error.exception.message == "level 29"


def test_a_group_of_base_exceptions_comes_back() -> None:
    exception = original(caught_from(throw, strange.make_base_group))

    assert type(exception) is BaseExceptionGroup
    kinds = [type(one) for one in exception.exceptions]
    assert kinds == [KeyboardInterrupt, strange.NoOrdinaryException]


def test_a_group_of_ones_own_class_comes_back() -> None:
    exception = original(caught_from(throw, strange.make_own_group))

    assert type(exception) is strange.OwnGroup
    assert (exception.message, exception.code) == ("own", 3)


def test_notes_come_back() -> None:
    error = caught_from(throw, strange.make_noted)

    assert original(error).__notes__ == ["one note", "another"]
    assert str(error).endswith("ValueError: noted\none note\nanother")


def test_a_message_of_100_mb_comes_back() -> None:
    size = 100_000_000
    with pytest.raises(ProcessRaisedException) as caught:
        rankspawn.spawn(
            throw,
            args=(lambda: strange.make_huge(size),),
            nprocs=1,
            backend="gloo",
            grace_period=jobs.DEADLOCK,  # it is written in two seconds of a CPU, which may be busy
        )

    assert len(str(caught.value.exception)) == size
    assert len(str(caught.value)) > size


# --- of Python itself


def test_syntax_error_keeps_its_place() -> None:
    error = caught_from(strange.raise_syntax_error)

    exception = original(error)
    assert (type(exception), exception.filename, exception.lineno) == (
        SyntaxError,
        "some_file.py",
        1,
    )
    assert "value = = 1" in error.traceback


def test_recursion_error(start_method: StartMethod) -> None:
    error = caught_from(strange.raise_recursion_error, start_method=start_method)

    assert type(error.exception) is RecursionError
    assert last_line(error).startswith("RecursionError: maximum recursion depth exceeded")
    assert "Previous line repeated" in error.traceback


def test_unicode_error_keeps_what_was_decoded() -> None:
    exception = original(caught_from(strange.raise_unicode_error))

    assert type(exception) is UnicodeDecodeError
    assert (exception.object, exception.start, exception.encoding) == (b"\xff\xfe", 0, "utf-8")


def test_os_errors_keep_number_and_files() -> None:
    missing = original(caught_from(strange.raise_file_not_found))
    assert type(missing) is FileNotFoundError
    assert (missing.errno, missing.filename, missing.filename2) == (
        errno.ENOENT,
        "/no/such/source",
        "/no/such/target",
    )
    refused = original(caught_from(strange.raise_connection_error))
    assert type(refused) is ConnectionRefusedError
    assert refused.errno == errno.ECONNREFUSED


@pytest.mark.parametrize(
    ("func", "args", "kind"),
    [
        (strange.raise_stop_iteration, (), StopIteration),
        (throw, (strange.make_stop_iteration,), StopIteration),
        (throw, (strange.make_generator_exit,), GeneratorExit),
        (throw, (strange.make_cancelled,), asyncio.CancelledError),
        (throw, (MemoryError,), MemoryError),
    ],
    ids=["iterator", "StopIteration", "GeneratorExit", "CancelledError", "MemoryError"],
)
def test_exceptions_with_a_meaning_of_their_own_are_plain_failures(
    func: Callable[..., object], args: tuple[object, ...], kind: type[BaseException]
) -> None:
    assert type(caught_from(func, *args).exception) is kind


@pytest.mark.parametrize("make", [strange.make_stop_iteration, strange.make_cancelled])
def test_such_exceptions_do_not_confuse_asyncio(make: Callable[[], BaseException]) -> None:
    async def wait() -> None:
        await rankspawn.spawn(throw, args=(make,), nprocs=1, backend="gloo", join=False)

    with pytest.raises(ProcessRaisedException) as caught:
        asyncio.run(wait())

    assert type(caught.value.exception) is type(make())


def test_text_that_is_no_utf_8_comes_back() -> None:
    error = caught_from(throw, strange.make_surrogate)

    assert last_line(error) == "ValueError: half a character: \\ud800"
    assert original(error).args == ("half a character: \ud800",)


def test_system_exit_in_a_thread_ends_the_thread_only(start_method: StartMethod) -> None:
    context = rankspawn.spawn(
        strange.exit_in_a_thread, nprocs=1, backend="gloo", start_method=start_method
    )

    assert context.results() == ["returned"]


# --- results


@pytest.mark.parametrize(
    ("func", "words"),
    [
        (strange.return_generator, 'TypeError: result["numbers"] cannot be sent back'),
        (strange.return_locks, "TypeError: result[1][1] cannot be sent back"),
        (strange.return_deque, 'TypeError: result["waiting"][1] cannot be sent back'),
        (strange.return_table, 'TypeError: result["table"].lock cannot be sent back'),
        (strange.return_pipe_end, "TypeError: result[1] cannot be sent back"),
        (strange.return_refusing, 'TypeError: result[1]["inner"] cannot be sent back'),
        (strange.return_deep, "TypeError: result[0][0]"),
    ],
)
def test_a_result_that_cannot_be_pickled_names_the_culprit(
    func: Callable[[], object], words: str, start_method: StartMethod
) -> None:
    error = caught_from(func, start_method=start_method)

    assert last_line(error).startswith(words)


def test_what_the_reduce_of_a_result_raised_is_said() -> None:
    assert "no such luck" in last_line(caught_from(strange.return_refusing))


def test_a_result_that_only_the_parent_cannot_unpickle(start_method: StartMethod) -> None:
    """It costs that result, each time anew, and none of the others."""
    context = rankspawn.spawn(
        strange.return_unreadable_on_rank_1, nprocs=3, backend="gloo", start_method=start_method
    )

    assert context.join()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in the parent"):
            context.results()
    assert context.return_queues[0].get() == 0
    with pytest.raises(ZeroDivisionError, match="in the parent"):
        context.return_queues[1].get()
    assert context.return_queues[2].get() == 2


def test_an_exception_that_is_returned_is_a_result() -> None:
    (result,) = rankspawn.spawn(strange.return_exception, nprocs=1, backend="gloo").results()

    assert repr(result) == "ValueError('returned, not raised')"
