"""The pytest plugin: ``@pytest.mark.ranks(4)`` runs a test once per rank, in workers.

Every rank is a pytest of its own that runs this one test, with all of its fixtures; pytest's
reports of the ranks become one report here. So fixtures, introspection of assertions, skips
and captured output are pytest's in each rank, and nothing has to be sent over but text.

Every run of pytest imports this module, so what only a marked test needs is imported there.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from typing import Any

    from rankspawn.pytest_plugin.merged_report import MergedReport
    from rankspawn.pytest_plugin.messages import Assignment
    from rankspawn.pytest_plugin.run_ranks import Run
    from rankspawn.pytest_plugin.warm_process import WarmProcess

ASSIGNMENT: pytest.StashKey[Assignment] = pytest.StashKey()
"""Set in the configuration of a rank's pytest, which runs marked tests like any other."""
WARM_PROCESS: pytest.StashKey[WarmProcess] = pytest.StashKey()
"""Set once a test has ranks that may be copies of a warm process."""

_MARKER = (
    "ranks(n, *, timeout, start_method, backend='gloo', ...): run the test once per rank in n "
    "worker processes; it passes if all of them pass. More options are those of rankspawn.spawn."
)
_MERGED_REPORT: pytest.StashKey[MergedReport] = pytest.StashKey()
# All that the parent itself does of a marked test's fixtures; the ranks do the rest.
_FIXTURES_OF_PARENT = ["tmp_path_factory"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Make known the defaults for tests whose marker does not say."""
    parser.addini(
        "rankspawn_timeout",
        "seconds for one test with ranks, start of the workers included; 0 for no limit",
        default="120",
    )
    parser.addini(
        "rankspawn_start_method",
        "how the ranks of a test are started: warm, spawn, fork or forkserver",
        default="warm",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known."""
    config.addinivalue_line("markers", _MARKER)


def pytest_unconfigure(config: pytest.Config) -> None:
    """End the warm process."""
    warm = config.stash.get(WARM_PROCESS, None)
    if warm is not None:
        warm.stop()


@pytest.fixture(scope="session")
def rank() -> int:
    """The rank that this test runs as; 0 in a test without ``ranks``."""
    from rankspawn.parallel_env import get_rank

    return get_rank()


@pytest.fixture(scope="session")
def world_size() -> int:
    """How many ranks run this test; 1 in a test without ``ranks``."""
    from rankspawn.parallel_env import get_world_size

    return get_world_size()


@pytest.fixture
def shared_tmp_path(request: pytest.FixtureRequest) -> Path:
    """A folder that is empty at first and the same for all ranks, unlike ``tmp_path``."""
    assignment = request.config.stash.get(ASSIGNMENT, None)
    if assignment is not None:
        return Path(assignment.shared_folder)
    path: Path = request.getfixturevalue("tmp_path")
    return path


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave the fixtures of a marked test to its ranks."""
    if not _runs_in_ranks(item):
        return
    if not isinstance(item, pytest.Function) or hasattr(item, "_testcase"):
        pytest.fail(
            "ranks is for test functions and methods of plain classes, not for this kind of test "
            f"({type(item).__name__}): write it as a function",
            pytrace=False,
        )
    # A list of its own, since parameters of one test share theirs.
    item.fixturenames = list(_FIXTURES_OF_PARENT)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> object | None:
    """Run the ranks in place of the function."""
    if not _runs_in_ranks(pyfuncitem):
        return None
    from rankspawn.pytest_plugin.merged_report import merge_reports
    from rankspawn.pytest_plugin.request import StartError, read_request
    from rankspawn.pytest_plugin.run_ranks import run_ranks

    run: Run | str
    try:
        run = run_ranks(pyfuncitem, read_request(pyfuncitem))
    except StartError as error:
        run = str(error)
    if isinstance(run, str):  # outside of the handler, for a message without its own cause
        pytest.fail(run, pytrace=False)
    pyfuncitem.stash[_MERGED_REPORT] = merged = merge_reports(run)
    if merged.exception is not None:
        raise merged.exception
    return True


@pytest.hookimpl(hookwrapper=True)  # not the newer kind, which would break older pytests
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, Any, None]:
    """Show what the ranks reported, in place of the parent's own traceback."""
    outcome = yield
    merged = item.stash.get(_MERGED_REPORT, None) if call.when == "call" else None
    if merged is None:
        return
    del item.stash[_MERGED_REPORT]
    report: pytest.TestReport = outcome.get_result()
    if call.excinfo is not None and call.excinfo.value is merged.exception:
        report.longrepr = merged.longrepr
    report.sections += merged.sections
    report.user_properties += merged.user_properties


def _runs_in_ranks(item: pytest.Item) -> bool:
    """Whether this process has to start the ranks of ``item``, and is none of them."""
    return item.get_closest_marker("ranks") is not None and ASSIGNMENT not in item.config.stash
