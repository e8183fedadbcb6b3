"""The driver's end of all channels: one thread that reads, writes and keeps the time.

It gives what it reads to the driver's state, and sends what follows from that. Nobody else touches
a channel, so ranks print, fail and end, and links are watched, whatever the program does meanwhile.
"""

from __future__ import annotations

import os
import selectors
import threading
import time
from collections.abc import Callable, Sequence

from rankspawn.cluster.driver import PING_NS, Driver
from rankspawn.cluster.frames import FrameReader, GarbledError, Outbox, read_some
from rankspawn.descriptors import Waker, close_in_forks

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.engine import Channel

# What an agent printed before it was lost, as far as an error quotes it.
_QUOTED = 2000


class Link:
    """One channel, and what goes over it."""

    def __init__(self, number: int, channel: Channel) -> None:
        self.number = number
        self.channel = channel
        self.reader: FrameReader = FrameReader()
        self.outbox: Outbox = Outbox()
        self.read: int = channel.read_fileno()
        self.write: int = channel.write_fileno()
        self.is_writing = False
        self.is_open = True
        for fd in (self.read, self.write):
            os.set_blocking(fd, False)


class Links:
    """All channels of one group, and the thread that serves them.

    Args:
        channels: In the order of the nodes.
        driver: Whose state it is.
        note: Called in the thread after each look, with :attr:`lock` held.
        tell: Called in the thread after that, without the lock.

    Attributes:
        lock: Whoever touches the driver's state has it.
    """

    def __init__(
        self,
        channels: Sequence[Channel],
        driver: Driver,
        note: Callable[[], None],
        tell: Callable[[], None],
    ) -> None:
        self.lock: threading.RLock = threading.RLock()
        self._driver = driver
        self._note, self._tell = note, tell
        self._waker = Waker()
        self._is_over = False
        self._waiting: dict[int, Link] = {}  # those that have something to write
        self._lost: list[tuple[Link, str, int]] = []
        self._next_look = 0
        self._selector = selectors.DefaultSelector()
        close_in_forks(self._selector)
        self._selector.register(self._waker, selectors.EVENT_READ)
        self._links = [Link(number, channel) for number, channel in enumerate(channels)]
        for link in self._links:
            self._selector.register(link.read, selectors.EVENT_READ, link)
        # A daemon: at exit groups are settled after Python waited for all other threads.
        self._thread = threading.Thread(target=self._run, name="rankspawn-cluster", daemon=True)

    def start(self) -> None:
        """Begin to serve the channels."""
        self._thread.start()

    def send(self) -> None:
        """Have sent what the state wants to be sent; from any thread, with the lock held."""
        self._collect_sends()
        self._waker.wake()

    def kill(self, number: int) -> None:
        """Give up a node whose agent does not answer."""
        self._links[number].channel.kill()

    def close(self) -> None:
        """End all agents, and let go of their channels."""
        with self.lock:
            for link in self._links:
                if link.is_open:
                    link.outbox.put({"is": "bye"})
                    self._waiting[link.number] = link
            self._is_over = True
        self._waker.wake()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join()
        for link in self._links:
            link.channel.close()
        self._waker.close()

    def _run(self) -> None:
        """Runs in the thread."""
        try:
            while True:
                ready = self._selector.select(self._seconds_to_wait())
                with self.lock:
                    is_over = self._is_over
                    for key, events in ready:
                        if key.data is None:
                            if key.fd == self._waker.fileno():
                                self._waker.clear()
                            continue
                        if events & selectors.EVENT_WRITE:
                            self._waiting[key.data.number] = key.data
                        if events & selectors.EVENT_READ and key.data.is_open:
                            self._read(key.data)
                    self._look_at_time()
                    self._collect_sends()
                    waiting, self._waiting = self._waiting, {}
                    for link in waiting.values():
                        if link.is_open:
                            self._write(link)
                    self._note()
                self._tell()
                self._explain_losses()
                if is_over:
                    return
        finally:
            self._selector.close()

    def _seconds_to_wait(self) -> float | None:
        # Clocks that differ drift, and links may be cut: both want to be looked at.
        return None if self._driver.needs_no_time else PING_NS / 4e9

    def _collect_sends(self) -> None:
        sends, self._driver.sends = self._driver.sends, []
        for send in sends:
            link = self._links[send.node]
            if not link.is_open:
                continue
            self._waiting[link.number] = link
            if send.offset is not None:
                link.outbox.put_pieces(send.header, send.blob, send.offset)
            elif send.is_last:
                link.outbox.put_last(send.header, send.blob)
            else:
                link.outbox.put(send.header, send.blob)

    def _read(self, link: Link) -> None:
        data = read_some(link.read)
        if data is None:
            return
        if not data:
            self._lose(link, "")
            return
        now = time.monotonic_ns()
        try:
            for header, blob in link.reader.feed(data):
                self._driver.hear(link.number, header, blob, now)
        except (GarbledError, KeyError, TypeError, ValueError) as error:
            self._lose(link, f"what it says makes no sense ({type(error).__name__}: {error})")

    def _write(self, link: Link) -> None:
        try:
            is_left = link.outbox.write_to(link.write)
        except OSError:  # its end is, or will be, read as well, with what it said before
            link.outbox = Outbox()
            is_left = False
        if is_left == link.is_writing:
            return
        link.is_writing = is_left
        if link.read == link.write:
            both = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.modify(link.read, both if is_left else selectors.EVENT_READ, link)
        elif is_left:
            self._selector.register(link.write, selectors.EVENT_WRITE, link)
        else:
            self._selector.unregister(link.write)

    def _look_at_time(self) -> None:
        now = time.monotonic_ns()
        if now < self._next_look:
            return
        self._next_look = now + PING_NS // 4
        for number in self._driver.tick(now):
            link = self._links[number]
            self._lose(link, f"nothing was heard of it for {self._driver.terms.lease:g} s")
            link.channel.kill()

    def _lose(self, link: Link, why: str) -> None:
        """The channel has ended, or is of no use any more."""
        now = time.monotonic_ns()
        link.is_open = False
        self._selector.unregister(link.read)
        if link.is_writing and link.read != link.write:
            self._selector.unregister(link.write)
        link.is_writing = False
        if self._driver.expects(link.number):
            self._lost.append((link, why, now))

    def _explain_losses(self) -> None:
        """Ask the engine about lost nodes, which may take it a while, and note what it says."""
        while self._lost:
            link, why, when = self._lost.pop(0)
            said = [why, link.channel.why_lost()]
            if link.reader.preamble.strip():
                text = link.reader.preamble[-_QUOTED:].decode("utf-8", "replace").strip()
                said.append(f"it printed: {text}")
            with self.lock:
                self._driver.lose(link.number, "; ".join(filter(None, said)), when)
                self._collect_sends()
                self._note()
            self._tell()
            self._waker.wake()
