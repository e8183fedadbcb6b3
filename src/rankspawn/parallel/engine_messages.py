"""Messages between two ranks over an engine, or in memory where it cannot carry them."""

from __future__ import annotations

from rankspawn.parallel.announcing import Call
from rankspawn.parallel.buffers import DeviceFlat, Flat
from rankspawn.parallel.engine_calls import EngineCalling
from rankspawn.parallel.pieces import check_tag

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.parallel.shared_memory import SharedMemory

# A message up to this size does not wait until it is taken.
_SMALL = 64 << 10


class EngineMessages(EngineCalling):
    """The messages of a communicator over an engine."""

    def _send(self, flat: Flat, dst: int, tag: int, timeout: float | None) -> None:
        carrier = self._carrier(dst)
        if carrier is not None and not isinstance(flat, DeviceFlat):
            carrier[0].send(flat, carrier[1], tag, timeout=timeout)
            return

        def body(wait: float | None) -> None:
            if flat.nbytes > _SMALL or isinstance(flat, DeviceFlat):
                self._engine.send(flat.data, dst, tag, wait)
            elif flat.nbytes:
                self._engine.post(flat.data, dst, tag)

        self._guard(Call("send"), flat.nbytes, timeout, body)

    def _receive(self, flat: Flat, src: int, tag: int, timeout: float | None) -> None:
        carrier = self._carrier(src)
        if carrier is not None and not isinstance(flat, DeviceFlat):
            carrier[0].recv(flat, carrier[1], tag, timeout=timeout)
        else:
            self._guard(
                Call("recv"), flat.nbytes, timeout, lambda wait: self._take(flat, src, tag, wait)
            )

    def _take(self, flat: Flat, src: int, tag: int, wait: float | None) -> None:
        if flat.nbytes:
            self._engine.recv(flat.data, src, tag, wait)

    def _check_message(self, rank: int, name: str, tag: int) -> int:
        check_tag(tag)
        rank = self._check_peer(rank, name)
        if self._carrier(rank) is not None:
            return rank
        if not self._engine.has_messages:
            raise RuntimeError(
                f"messages between two of {self.size} ranks do not arrive over {self.backend}: use "
                "a collective"
            )
        if tag and not self._engine.has_tags:
            raise ValueError(f"tag={tag}: messages over {self.backend} have no tags")
        return rank

    def _carrier(self, rank: int) -> tuple[SharedMemory, int] | None:
        """Memory for messages that the engine cannot carry, and this rank's place in it."""
        if self._engine.has_messages and self._engine.has_tags:
            return None
        found = self._agreement
        if found is None or found.local is None or rank not in found.members:
            return None
        return found.local, found.members.index(rank)
