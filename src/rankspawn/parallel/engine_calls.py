"""How a collective is called over an engine: who may, one at a time, and what a failure means."""

from __future__ import annotations

import time
from typing import Any, TypeVar

from rankspawn.errors import CollectiveMismatchError, CollectiveTimeoutError, RankLostError
from rankspawn.parallel.announcing import Call
from rankspawn.parallel.buffers import DeviceFlat, Flat, OnDeviceError
from rankspawn.parallel.collectives import Collectives
from rankspawn.parallel.pieces import check_timeout
from rankspawn.parallel.statistics import Tally

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rankspawn.parallel.agreeing import Agreement
    from rankspawn.parallel.engines import Engine

T = TypeVar("T")
# What engines raise, what is ours already, and how engines say that a connection is lost.
_OF_ENGINES = (RuntimeError, TimeoutError, OSError, SystemError)
_OURS = (RankLostError, CollectiveTimeoutError, CollectiveMismatchError)
_GONE = ("Connection closed by peer", "Connection reset", "Broken pipe", "Socket closed")


class EngineCalling(Collectives):
    """What all collectives over an engine have in common."""

    def __init__(
        self,
        engine: Engine,
        timeout: float | None = None,
        agreement: Agreement | None = None,
    ) -> None:
        super().__init__(engine.rank, engine.size, engine.name, timeout)
        self._engine = engine
        self._agreement = agreement
        self._check_timeout(timeout)
        self._tally = Tally(range(engine.size))
        self._broken: BaseException | None = None

    @property
    def _failure(self) -> BaseException | None:
        return self._broken

    # -- how a call is made

    def _run(
        self,
        name: str,
        what: str,
        nbytes: int,
        timeout: float | None,
        body: Callable[[float | None], T],
    ) -> T:
        """One call of a collective; ``body`` gets the seconds that it may wait.

        Args:
            name: The collective.
            what: All else that has to be the same on all ranks.
            nbytes: What this rank brings.
            timeout: As the caller gave it.
            body: Does it.
        """
        return self._guard(Call(name, what), nbytes, timeout, body, self._agreement)

    def _guard(
        self,
        call: Call,
        nbytes: int,
        timeout: float | None,
        body: Callable[[float | None], T],
        agreement: Agreement | None = None,
    ) -> T:
        """The same, or a message, on which not all ranks agree."""
        self._check_timeout(timeout)
        wait, name = self._timeout if timeout is None else timeout, call.name
        with self._using:
            self._check_usable(name)
            self._is_busy, began = True, time.perf_counter()
            try:
                if agreement is not None:
                    agreement.reach(call, wait)
                result = body(wait if self._engine.has_timeouts else None)
            except BaseException as error:
                self._broken = error
                explained = self._explain(error, name, wait, time.perf_counter() - began)
                if self._agreement is not None:
                    self._agreement.break_off(explained)
                if explained is error:
                    raise
                raise explained from error
            finally:
                self._is_busy = False
            self._tally.called(name, nbytes, time.perf_counter() - began)
            return result

    def _explain(
        self, error: BaseException, name: str, wait: float | None, seconds: float
    ) -> BaseException:
        """An engine's own error as ours, where it can be told what it means."""
        text = str(error)
        if isinstance(error, _OURS) or not isinstance(error, _OF_ENGINES):
            return error
        if wait is not None and seconds >= wait:
            return CollectiveTimeoutError(
                f"ranks did not come to {name} in {wait:g} s ({self.backend} does not say which)",
                collective=name,
            )
        lost = None if self._agreement is None else self._agreement.find_loss(name)
        if lost is not None:
            return lost
        if any(words in text for words in _GONE):
            return RankLostError(
                f"a rank is gone, {self.backend} does not say which; this rank waits in {name}: "
                f"{text}",
                collective=name,
            )
        return error

    def _check_timeout(self, timeout: float | None) -> None:
        check_timeout(timeout)
        # In memory they can be waited for as long as is wanted.
        is_local = self._agreement is not None and self._agreement.includes_all
        if timeout is not None and not self._engine.has_timeouts and not is_local:
            raise ValueError(f"timeout={timeout}: {self.backend} can only wait until all come")

    def _check_operation(self, flat: Flat, op: str) -> None:
        super()._check_operation(flat, op)
        if isinstance(flat, DeviceFlat) and not self._engine.reduces(flat, op):
            raise TypeError(f"{self.backend} has no op={op!r} for {flat.dtype} on a device")

    def _hold(self, source: Any, *, writable: bool) -> Flat:
        try:
            return super()._hold(source, writable=writable)
        except OnDeviceError:
            return self._engine.hold(source)

    def _make_like(self, flat: Flat, shape: Sequence[int]) -> Flat:
        if isinstance(flat, DeviceFlat):
            return self._engine.make_like(flat, shape)
        return super()._make_like(flat, shape)
