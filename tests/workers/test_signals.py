"""Signals to the launcher, noted in this very process."""

from __future__ import annotations

import select
import signal
from collections.abc import Iterator

import pytest

from rankspawn import handlers
from rankspawn.interrupts import ENDING, PASSED_ON, ImpatientError, Signals


@pytest.fixture(autouse=True)
def _actions() -> Iterator[None]:
    """Default actions before, whatever a shell left; and those of before, after."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in (*ENDING, *PASSED_ON)}
    yield
    for number, action in before.items():
        signal.signal(number, action)


def is_readable(signals: Signals) -> bool:
    return bool(select.select([signals], [], [], 0)[0])


@pytest.mark.parametrize("number", ENDING)
def test_a_request_to_end(number: signal.Signals) -> None:
    with Signals() as signals:
        assert not is_readable(signals)
        signal.raise_signal(number)
        assert signals.ending == number
        assert is_readable(signals)
        signals.clear()
        assert not is_readable(signals)


def test_the_first_one_counts() -> None:
    with Signals() as signals:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)
        assert signals.ending == signal.SIGTERM


@pytest.mark.parametrize("number", PASSED_ON)
def test_what_is_for_the_workers(number: signal.Signals) -> None:
    with Signals() as signals:
        signal.raise_signal(number)
        assert is_readable(signals)
        assert signals.take_to_pass_on() == [number]
        assert signals.take_to_pass_on() == []
        assert signals.ending is None


def test_ignored_ones_stay_ignored() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with Signals() as signals:
        signal.raise_signal(signal.SIGHUP)
        assert signals.ending is None


def test_actions_are_put_back() -> None:
    before = [signal.getsignal(number) for number in (*ENDING, signal.SIGCHLD)]
    with Signals():
        pass
    assert [signal.getsignal(number) for number in (*ENDING, signal.SIGCHLD)] == before
    assert signal.set_wakeup_fd(-1) == -1


def test_who_asked_is_not_heard_after_the_answer() -> None:
    """Or the process would end by the signal, in place of its exit code."""
    with Signals():
        signal.raise_signal(signal.SIGINT)
    assert {signal.getsignal(number) for number in ENDING} == {signal.SIG_IGN}
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


class TestImpatience:
    @pytest.fixture(autouse=True)
    def _no_echo(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(handlers, "_ECHO", 0.0)

    def test_the_same_signal_right_after_the_first_is_none(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``timeout`` sends its signal twice."""
        monkeypatch.setattr(handlers, "_ECHO", 1000.0)
        with Signals() as signals:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGTERM)
            with signals.impatient():
                signal.raise_signal(signal.SIGTERM)
            with pytest.raises(ImpatientError), signals.impatient():
                signal.raise_signal(signal.SIGINT)

    def test_a_further_request_raises_once(self) -> None:
        with Signals() as signals:
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(ImpatientError), signals.impatient():
                signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGTERM)

    def test_nothing_is_raised_in_the_middle_of_the_kill_that_it_leads_to(self) -> None:
        def stop() -> None:
            try:
                signal.raise_signal(signal.SIGINT)
            finally:
                signal.raise_signal(signal.SIGINT)
                killed.append(True)

        killed: list[bool] = []
        with Signals() as signals, pytest.raises(ImpatientError), signals.impatient(at_first=True):
            stop()
        assert killed

    def test_one_that_came_before(self) -> None:
        with Signals() as signals:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(ImpatientError), signals.impatient():
                pytest.fail("it should not get here")
            with signals.impatient():
                pass

    def test_the_first_one_alone_is_none(self) -> None:
        with Signals() as signals:
            signal.raise_signal(signal.SIGTERM)
            with signals.impatient():
                pass

    def test_the_first_one_is_none_whatever_is_under_way(self) -> None:
        """A scheduler ends all nodes; this one is stopping its workers because another left."""
        with Signals() as signals:
            with signals.impatient():
                signal.raise_signal(signal.SIGTERM)
            assert signals.ending == signal.SIGTERM
            with pytest.raises(ImpatientError), signals.impatient():
                signal.raise_signal(signal.SIGTERM)

    def test_the_first_one_interrupts_what_may_be_given_up(self) -> None:
        with Signals() as signals:
            with pytest.raises(ImpatientError), signals.impatient(at_first=True):
                signal.raise_signal(signal.SIGTERM)
            with signals.impatient(at_first=True):
                pass

    def test_a_closing_terminal_is_none(self) -> None:
        with Signals() as signals:
            signal.raise_signal(signal.SIGHUP)
            signal.raise_signal(signal.SIGHUP)
            with signals.impatient():
                signal.raise_signal(signal.SIGHUP)
