"""How a collective is called: who may, one at a time, in rounds, and what a failure means."""

from __future__ import annotations

from time import perf_counter
from typing import TypeVar

from rankspawn.parallel.collectives import Collectives
from rankspawn.parallel.pieces import check_timeout, rounds_for

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable

    from rankspawn.parallel.announcing import Call
    from rankspawn.parallel.lockstep import Lockstep

T = TypeVar("T")


class Calling(Collectives):
    """What all collectives in memory have in common."""

    def __init__(self, step: Lockstep, backend: str, timeout: float | None) -> None:
        super().__init__(step.rank, step.size, backend, timeout)
        self._step = step

    @property
    def _failure(self) -> BaseException | None:
        return self._step.broken

    def _run(self, call: Call, body: Callable[[], T], timeout: float | None = None) -> T:
        """One call of a collective, from its announcement to its end."""
        step, limit = self._step, call.timeout if timeout is None else timeout
        if limit is not None:
            check_timeout(limit)
        with self._using:
            self._check_usable(call.name)
            self._is_busy = True
            try:
                began = perf_counter()
                step.announce(call, self._timeout if limit is None else limit)
                result = body()
                step.tally.called(call.name, call.nbytes, perf_counter() - began)
            except BaseException as error:
                # Others are or will be waiting for this rank in the middle of a call.
                step.break_off(error)
                raise
            else:
                return result
            finally:
                self._is_busy = False

    def agree(self, call: Call, timeout: float | None = None) -> None:
        """Make sure that all ranks call the same, and do no more."""
        self._run(call, self._step.agree, timeout)

    def find_loss(self, name: str) -> Exception | None:
        """Why nothing more is to be expected of one of the ranks; None if all are at work."""
        step = self._step
        found = (step.losses.find(rank, name) for rank in range(self.size) if rank != self.rank)
        return next((error for error in found if error is not None), None)

    def break_off(self, error: BaseException) -> None:
        """This rank cannot go on: tell the others."""
        if not self._closed:
            self._step.break_off(error)

    def _alone(self, call: Call, body: Callable[[], T]) -> T:
        """Do something while no other thread does, and count it."""
        check_timeout(call.timeout)
        with self._using:
            self._check_usable(call.name)
            self._is_busy = True
            try:
                if call.timeout is None:
                    call.timeout = self._timeout
                began = perf_counter()
                result = body()
                self._step.tally.called(call.name, call.nbytes, perf_counter() - began)
                return result
            finally:
                self._is_busy = False

    def _exchange(
        self,
        call: Call,
        nbytes: int,
        width: int,
        fill: Callable[[memoryview, int], None],
        drain: Callable[[list[memoryview], int], None],
    ) -> None:
        """Rounds in which some ranks fill their slots, and then some read those of all.

        Args:
            call: What is called.
            nbytes: What goes through each rank's slots, or each rank's part of them, in all.
            width: How much of it in each round.
            fill: Writes into this rank's slot what belongs there in a round.
            drain: Takes out of all ranks' slots what this one wants of a round.
        """
        step = self._step
        room = step.slot if self._is_small(call.nbytes) else step.stage

        def body() -> None:
            for number in range(rounds_for(nbytes, width)):
                fill(room(self.rank, step.parity), number)
                if number == 0:
                    step.agree()
                else:
                    step.meet()
                parity = step.phase & 1
                drain([room(rank, parity) for rank in range(self.size)], number)

        self._run(call, body)

    def _is_small(self, nbytes: int) -> bool:
        """It fits into what goes with an announcement."""
        return nbytes <= self._step.region.layout.inline

    def _width(self, nbytes: int, itemsize: int) -> int:
        """How much of so many bytes goes through a slot at once: whole elements."""
        layout = self._step.region.layout
        return layout.inline if self._is_small(nbytes) else layout.chunk // itemsize * itemsize
