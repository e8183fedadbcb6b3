"""Which failures of a test beside a framework are the framework's own."""

from __future__ import annotations

import pytest

from tests.interop.own_faults import own_fault

pytest_plugins = ["pytester"]

SEEN = (
    "RuntimeError: [/paddle/third_party/gloo/gloo/transport/tcp/pair.cc:584] TIMEOUT "
    "self_rank = 0 pair_rank = 0 peer_str = [127.0.0.1]:19595"
)
SEEN_AS_CODE = f"RuntimeError({SEEN.removeprefix('RuntimeError: ')!r})"
OUTER = """
import pytest

from tests.interop.own_faults import run_beside_framework

tries = []

def pytest_runtest_protocol(item, nextitem):
    return run_beside_framework(item, nextitem)

@pytest.fixture
def number():
    tries.append(1)
    return len(tries)
"""


def test_a_fault_of_the_framework_is_known_by_its_words() -> None:
    assert own_fault(f"Traceback\n{SEEN}") == "Paddle's gloo did not connect two ranks"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AssertionError: assert 1 == 2",
        "RuntimeError: TIMEOUT",
        "rankspawn.errors.SpawnTimeoutError: TIMEOUT",
        SEEN.replace("RuntimeError: ", "Process 0 said: "),
    ],
)
def test_other_failures_are_not(text: str) -> None:
    assert own_fault(text) is None


@pytest.fixture
def outer(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makeconftest(OUTER)
    return pytester


def test_such_a_test_is_run_once_more_and_told(outer: pytest.Pytester) -> None:
    outer.makepyfile(f"def test_it(number):\n    if number == 1:\n        raise {SEEN_AS_CODE}\n")

    done = outer.runpytest_inprocess("-p", "no:randomly")

    done.assert_outcomes(passed=1)
    done.stdout.fnmatch_lines(["*is run again: Paddle's gloo did not connect two ranks*"])


def test_it_fails_if_it_fails_again(outer: pytest.Pytester) -> None:
    outer.makepyfile(f"def test_it(number):\n    raise {SEEN_AS_CODE}\n")

    done = outer.runpytest_inprocess("-p", "no:randomly")

    done.assert_outcomes(failed=1)


def test_another_failure_is_not_run_again(outer: pytest.Pytester) -> None:
    outer.makepyfile("def test_it(number):\n    assert number == 2\n")

    done = outer.runpytest_inprocess("-p", "no:randomly")

    done.assert_outcomes(failed=1)
