"""The ranks of one start on all nodes, as a supervisor has a group of local processes.

What happens is noted by one thread (``links``); whoever waits for the group waits for that. There
is no descriptor for any rank, unless somebody asks for its sentinel or its output.
"""

from __future__ import annotations

import selectors
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from rankspawn.cluster.links import Links
from rankspawn.cluster.measured import Measured
from rankspawn.cluster.node_state import Phase
from rankspawn.cluster.remote import Received, RemoteProcess
from rankspawn.descriptors import Waker
from rankspawn.handlers import handlers_held, handlers_let_through
from rankspawn.interrupts import patiently, sigint_let_through, woken_by_signals
from rankspawn.supervise.context import RankProcess
from rankspawn.supervise.outcome import STATES, Outcome, failures_in
from rankspawn.workers.outcome_file import EMPTY_REPORT, TakenReport
from rankspawn.workers.running import running

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.driver import Driver
    from rankspawn.cluster.engine import Channel
    from rankspawn.cluster.node_state import NodeState
    from rankspawn.cluster.printed import Printed
    from rankspawn.supervise.group import RankOutput

# After the grace period, for killed ranks to be gone and their node to say so.
_TIME_TO_KILL = 10.0
# For a node to answer with the stacks of its ranks, of which each gets 3 s; 0.3 s if it is asked
# for those that come quickly.
_TIME_FOR_STACKS, _TIME_FOR_QUICK_STACKS = 6.0, 1.0


class ClusterGroup:
    """Ranks on nodes; a :class:`rankspawn.supervise.group.Group`."""

    def __init__(
        self,
        driver: Driver,
        channels: Sequence[Channel],
        printed: Printed,
        grace: float,
        daemon: bool,
    ) -> None:
        self.owner: weakref.ref[object] | None = None
        self.deadline: float | None = None
        self.listeners: set[Callable[[], None]] = set()
        # For a group that nobody joins.
        self.grace = grace
        self.is_daemonic = daemon
        self.stops_on_failure = True
        self.queued: float = 0.0
        self.what = ""
        self.outlives_driver: bool = False
        self.lost: Outcome | None = None
        self.closed: bool = False
        self._is_closing = False
        self.processes: list[RankProcess] = []
        self._driver = driver
        self.printed = printed
        self.measured: Measured = Measured(driver)
        self._news = Waker()
        # For the next wait: made before anything runs, as a file may have a name for a moment.
        self._idle = [Waker()]
        self._stopping = threading.RLock()
        self._reaped: set[int] = set()
        self._sentinels: dict[int, Waker] = {}
        self._links = Links(channels, driver, self._note, self._tell)

    # The start.

    def start(
        self, counts: Sequence[int], deadline: float | None, hello_within: float | None
    ) -> None:
        """Have all ranks started on all nodes; after an exception nothing is left.

        Args:
            counts: How many each node will have; -1 for one per device of it.
            deadline: When the time of the whole run is over, on the monotonic clock.
            hello_within: Seconds that an agent may take to say a word.
        """
        driver = self._driver
        try:
            with self._links.lock:
                driver.begin(counts)
                self._links.send()
            self._links.start()
            limit = None if hello_within is None else time.monotonic() + hello_within
            with sigint_let_through():
                self._wait_for_start(limit, deadline)
        except BaseException:
            self._give_up()
            raise
        for node in driver.nodes:
            for local in range(node.count):
                self.processes.append(self._make_process(node, local))
        running.add(self)

    def _wait_for_start(self, limit: float | None, deadline: float | None) -> None:
        driver = self._driver
        limits = [each for each in (limit, deadline) if each is not None]

        def has_come() -> bool:
            return driver.error is not None or all(
                node.phase is not Phase.CALLED for node in driver.nodes
            )

        if not self._wait(has_come, min(limits, default=None)):
            self._raise_late(deadline, [n for n in driver.nodes if n.phase is Phase.CALLED])
        if not self._wait(lambda: driver.error is not None or driver.is_started, deadline):
            self._raise_late(deadline, [n for n in driver.nodes if n.phase is not Phase.STARTED])
        if driver.error is not None:
            raise driver.error

    def _raise_late(self, deadline: float | None, late: list[NodeState]) -> None:
        from rankspawn.errors import NodeLostError, SpawnTimeoutError

        # Those that have come less far are the ones that the others wait for.
        order = list(Phase)
        least = min((order.index(node.phase) for node in late), default=0)
        late = [node for node in late if order.index(node.phase) == least]
        names = ", ".join(node.host or str(node.number) for node in late)
        if deadline is not None and time.monotonic() >= deadline:
            raise SpawnTimeoutError(
                f"the time was over before all ranks were started: {names} had not answered"
            )
        raise NodeLostError(
            f"no agent has come up on {names}: nothing was heard of it in time. Try by hand "
            "whether the engine can start a program there",
            host=late[0].host,
        )

    def _give_up(self) -> None:
        """End what was started of a start that failed."""
        self.closed = self._is_closing = True
        self._links.close()
        self.printed.close()
        self._close_wakers()

    def _close_wakers(self) -> None:
        self._news.close()
        while self._idle:
            self._idle.pop().close()

    def _make_process(self, node: NodeState, local: int) -> RankProcess:
        process = RankProcess(node.first + local, self.is_daemonic)
        process.has_started(
            RemoteProcess(self, process.rank, node.pids[local], node.host_of(local))
        )
        return process

    # What the thread notes.

    def _note(self) -> None:
        """Called with the lock."""
        driver = self._driver
        printed, driver.printed = driver.printed, []
        if printed:
            self.printed.add(printed)
        shown, driver.shown = driver.shown, []
        for text in shown:
            print(text, flush=True)  # noqa: T201 - what print_config is for
        for index, sentinel in self._sentinels.items():
            if driver.has_ended(index):
                sentinel.wake()

    def _tell(self) -> None:
        """Called without the lock."""
        self._news.wake()
        for tell in list(self.listeners):
            tell()

    # What a supervisor asks.

    @property
    def outcomes(self) -> dict[int, Outcome]:
        """Index to outcome; grows as ranks end, or report a failure before they end."""
        return self._driver.outcomes

    @property
    def failures(self) -> list[tuple[int, Outcome]]:
        """Index and outcome of the ranks that failed by themselves, the first in time first."""
        with self._links.lock:
            return failures_in(self._driver.outcomes)

    @property
    def all_ended(self) -> bool:
        """No rank runs any more."""
        return self._driver.all_ended

    @property
    def has_failed(self) -> bool:
        """One of the outcomes is a failure."""
        return self._driver.has_failed

    @property
    def sentinels(self) -> dict[int, int]:
        """Sentinel to index of those that run; made now, for whoever asks."""
        count = len(self.processes)
        running_ones = [index for index in range(count) if not self.has_ended(index)]
        return {self.sentinel_of(index): index for index in running_ones}

    def sentinel_of(self, index: int) -> int:
        """A descriptor that is readable once this rank has ended."""
        with self._links.lock:
            if index not in self._sentinels:
                self._sentinels[index] = Waker()
                if self._driver.has_ended(index):
                    self._sentinels[index].wake()
            return self._sentinels[index].fileno()

    def wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        """Block until the condition holds or the (monotonic) deadline passes; say which."""
        with handlers_held():
            return self._wait(lambda: self.closed or condition(), deadline)

    def _wait(self, condition: Callable[[], bool], deadline: float | None) -> bool:
        if condition():
            self.collect()
            return True
        try:
            news = self._idle.pop()
        except IndexError:  # another thread waits
            news = Waker()
        self.listeners.add(news.wake)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(news, selectors.EVENT_READ)
                while not condition():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    with woken_by_signals(selector), handlers_let_through():
                        selector.select(None if left is None else min(left, 86_400.0))
                    news.clear()
        finally:
            self.listeners.discard(news.wake)
            if self._idle or self.closed:
                news.close()
            else:
                news.clear()
                self._idle.append(news)
        self.collect()
        return True

    def collect(self) -> None:
        """Take note of what happened: the thread has, but for multiprocessing's list."""
        if not self._news.closed:
            self._news.clear()
        made = len(self.processes)  # a rank may have ended before there was a process for it
        with self._links.lock:
            outcomes = self._driver.outcomes
            new = [i for i in outcomes if i < made and i not in self._reaped and self.has_ended(i)]
            self._reaped.update(new)
        for index in new:
            self.processes[index].join()

    def fileno(self) -> int:
        """The one descriptor that is readable when :meth:`collect` has something to do."""
        return self._news.fileno()

    def stop(self, grace: float, *, interrupted: bool = False) -> None:  # noqa: ARG002 - not them
        """End every rank that still runs, and what ranks started; blocks until they are gone."""
        with patiently(self._stopping):
            self.collect()
            if self.closed or (self.all_ended and not self.has_failed):
                return
            deadline = time.monotonic() + grace + _TIME_TO_KILL
            with self._links.lock:
                self._driver.stop(grace, time.monotonic_ns())
                self._links.send()
            try:
                self._wait(lambda: self._driver.all_stopped, deadline)
            finally:  # a second Ctrl-C cuts it short
                if not self._driver.all_stopped:
                    self.kill()
                    with handlers_held(firmly=True):
                        self._wait(
                            lambda: self._driver.all_stopped, time.monotonic() + _TIME_TO_KILL
                        )
                    self._give_up_silent()
            self.collect()

    def end_because(self, why: str) -> None:
        """Have the ranks stopped because somebody else wants it: that is a loss."""
        with self._links.lock:
            for node in self._driver.nodes:
                node.why_ending = node.why_ending or why
            self._driver.stop(self.grace, None)
            self._links.send()

    def _give_up_silent(self) -> None:
        """Nodes that do not say that their ranks are gone: have the engine end their agents."""
        with self._links.lock:
            silent = [n.number for n in self._driver.nodes if n.phase is Phase.STARTED]
            for number in silent:
                self._links.kill(number)
                why = "it did not say in time that its ranks are gone"
                self._driver.lose(number, why, time.monotonic_ns())
            self._note()

    def kill(self) -> None:
        """End the ranks that run by force, without waiting; it hurries a :meth:`stop`."""
        with self._links.lock:
            self._driver.kill(time.monotonic_ns())
            self._links.send()

    def close(self) -> None:
        """Let go of what running ranks needed; what they left stays readable."""
        with handlers_held(firmly=True):
            with self._links.lock:
                if self._is_closing:
                    return
                self._is_closing = True
            self.collect()
            self._links.close()
            self.printed.finish()
            self.closed = True  # now: who shows what was printed then shows the rest
            self._close_wakers()
            for tell in list(self.listeners):
                tell()
            for sentinel in self._sentinels.values():
                sentinel.close()
            running.discard(self)

    def has_ended(self, index: int) -> bool:
        """The rank is gone, and its outcome and report are final."""
        return self._driver.has_ended(index)

    def report_of(self, index: int) -> TakenReport:
        """What a rank that has an outcome said."""
        node = self._driver.node_of(index)
        report = node.reports.get(index - node.first)
        if report is None:
            return EMPTY_REPORT
        pickled = None if report.sizes is None else Received(report.pieces())
        return TakenReport(report.text, pickled, report.steps, report.crash)

    def last_lines(self, index: int) -> str:
        """What a rank printed last, for its error."""
        node = self._driver.node_of(index)
        report = node.reports.get(index - node.first)
        return self.printed.last_lines(index, "" if report is None else report.tail)

    def stacks(self, *, quickly: bool = False) -> dict[int, str]:
        """Rank to the Python stacks of all its threads, of the ranks that run."""
        seconds = _TIME_FOR_QUICK_STACKS if quickly else _TIME_FOR_STACKS
        with self._links.lock:
            self._driver.ask_for_stacks(quickly=quickly)
            self._links.send()
        self.wait(lambda: self._driver.has_stacks, time.monotonic() + seconds)
        with self._links.lock:
            return dict(sorted(self._driver.stacks.items()))

    def state_of(self, index: int) -> str:
        """One word for what a rank does, as far as it is known."""
        outcome = self._driver.outcomes.get(index)
        if outcome is not None:
            return STATES.get(outcome.end, "failed")
        node = self._driver.node_of(index)
        return node.steps.get(index - node.first, (b"", "running"))[1]

    def steps_of(self, index: int) -> bytes:
        """What the rank said last with ``rankspawn.report``, as a record."""
        node = self._driver.node_of(index)
        report = node.reports.get(index - node.first)
        return report.steps if report is not None else node.steps.get(index - node.first, (b"",))[0]

    def open_output(self, index: int) -> RankOutput | None:
        """Where what the rank prints can be read."""
        with self._links.lock:
            return self.printed.open(index)

    def signal(self, index: int, number: int) -> None:
        """Have a signal sent to one rank."""
        with self._links.lock:
            if not self.closed:
                self._driver.signal(index, number)
                self._links.send()
