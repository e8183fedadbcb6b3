"""The embedded master among strangers, slow and hostile clients."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from unittest.mock import ANY

import pytest

from rankspawn.launch.rendezvous import wire
from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.connections import LONGEST_REQUEST
from rankspawn.launch.rendezvous.keyvalues import Limits
from rankspawn.launch.rendezvous.master import ConnectionLimits, Master
from rankspawn.launch.rendezvous.store import StoreRefusedError, StoreUnreachableError
from tests.jobs import DEADLOCK
from tests.launch.rendezvous.hostile import hostile_requests

KEY = wire.derive_key("a secret of sixteen letters", "job")


@pytest.fixture
def master() -> Iterator[Master]:
    with closing_master() as master:
        yield master


@contextlib.contextmanager
def closing_master(
    connection_limits: ConnectionLimits | None = None, limits: Limits | None = None
) -> Iterator[Master]:
    master = Master("127.0.0.1", 0, KEY, connection_limits=connection_limits, limits=limits)
    try:
        yield master
    finally:
        master.close()


@pytest.fixture
def store(master: Master) -> Iterator[MasterStore]:
    with closing_store(master) as store:
        yield store


@contextlib.contextmanager
def closing_store(master: Master, key: bytes = KEY) -> Iterator[MasterStore]:
    store = MasterStore(master.host, master.port, key, answer_within=DEADLOCK)
    try:
        yield store
    finally:
        store.close()


def connect(master: Master) -> socket.socket:
    return socket.create_connection((master.host, master.port), timeout=DEADLOCK)


def connections(master: Master) -> tuple[int, int]:
    """How many clients there are, and how many strangers."""
    return len(master._connections) - len(master._strangers), len(master._strangers)


def read_all(sock: socket.socket) -> bytes:
    """Everything until the other side closes."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := sock.recv(65536):
            data += chunk
    return data


class Client:
    """A client by hand, which can do what a well-behaved one does not."""

    def __init__(self, master: Master) -> None:
        self.socket = connect(master)
        greeting = self.receive(wire.GREETING_SIZE)
        self.master_nonce = wire.read_greeting(greeting)
        self.nonce = os.urandom(wire.NONCE_SIZE)
        self.proof = wire.prove_client(KEY, self.master_nonce, self.nonce)
        self.socket.sendall(self.proof)
        self.receive(wire.MASTER_PROOF_SIZE)
        to_master, to_client = wire.session_keys(KEY, self.master_nonce, self.nonce)
        self.sealer = wire.Sealer(to_master)
        self.opener = wire.Opener(to_client, 1 << 26)

    def receive(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            chunk = self.socket.recv(size - len(data))
            assert chunk
            data += chunk
        return data

    def seal(self, **request: object) -> bytes:
        return self.sealer.seal(json.dumps(request).encode())

    def answer(self) -> object:
        while (payload := self.opener.take()) is None:
            data = self.socket.recv(65536)
            assert data, "the master has hung up"
            self.opener.feed(data)
        return json.loads(payload)


class TestStrangers:
    def test_can_neither_read_nor_write(self, master: Master, store: MasterStore) -> None:
        store.put("secret", "value")
        request = b'{"op": "get", "key": "secret"}'
        for words in (
            request,
            wire.Sealer(KEY).seal(request),
            b"GET /secret HTTP/1.1\r\nHost: x\r\n\r\n" * 3,
            os.urandom(4096),
        ):
            with connect(master) as sock:
                sock.sendall(words.ljust(wire.PROOF_SIZE, b"\0"))
                heard = read_all(sock)
            # A random number, and that the token is wrong.
            assert len(heard) <= wire.GREETING_SIZE + wire.MASTER_PROOF_SIZE
            assert b"value" not in heard
        entry = store.get("secret")
        assert entry is not None
        assert entry.value == "value"

    def test_with_a_wrong_token_are_told_what_to_do(self, master: Master) -> None:
        with (
            closing_store(master, wire.derive_key("another secret", "job")) as stranger,
            pytest.raises(StoreRefusedError, match="RANKSPAWN_JOB_TOKEN"),
        ):
            stranger.get("secret")

    def test_are_reported_once(self, master: Master, caplog: pytest.LogCaptureFixture) -> None:
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                with connect(master) as sock:
                    sock.sendall(bytes(wire.PROOF_SIZE))
                    read_all(sock)
        assert [record.getMessage() for record in caplog.records] == [
            "the master has sent away 127.0.0.1: wrong token"
        ]
        assert master.sent_away == ("127.0.0.1",)

    def test_cannot_use_a_recorded_connection(self, master: Master, store: MasterStore) -> None:
        client = Client(master)
        put = client.seal(op="put", key="a", value="recorded", lease=0)
        client.socket.sendall(put)
        client.answer()
        store.put("a", "new")

        # On another connection, from the first byte to the last.
        with connect(master) as sock:
            sock.sendall(client.proof + put)
            heard = read_all(sock)
        assert len(heard) <= wire.GREETING_SIZE + wire.MASTER_PROOF_SIZE
        # On its own.
        client.socket.sendall(put)
        assert read_all(client.socket) == b""
        client.socket.close()
        # And on one of somebody who has the token.
        other = Client(master)
        other.socket.sendall(put)
        assert read_all(other.socket) == b""
        other.socket.close()

        entry = store.get("a")
        assert entry is not None
        assert entry.value == "new"

    def test_who_say_nothing_have_to_go(self) -> None:
        with (
            closing_master(ConnectionLimits(proof_seconds=0.2)) as master,
            closing_store(master) as store,
        ):
            silent = [connect(master) for _ in range(5)]
            for sock in silent:
                assert len(read_all(sock)) == wire.GREETING_SIZE
                sock.close()
            assert store.put("a", "1")

    def test_make_room_for_others(self) -> None:
        connection_limits = ConnectionLimits(strangers=8, proof_seconds=DEADLOCK)
        with closing_master(connection_limits) as master, closing_store(master) as store:
            strangers = [connect(master) for _ in range(50)]
            assert store.put("a", "1")
            assert connections(master)[1] <= 8
            for sock in strangers:
                sock.close()


@pytest.mark.slow
def test_ten_thousand_connections_do_not_stop_the_others(master: Master) -> None:
    """Half-open ones, from one address, as fast as they come; clients old and new go on."""
    with closing_store(master) as old:
        old.put("a", "1")
        flood = threading.Thread(target=open_many, args=(master, 10_000))
        flood.start()
        asked = 0
        while flood.is_alive():
            assert old.get("a") is not None
            asked += 1
        flood.join()
        assert asked > 10
        with closing_store(master) as new:
            assert new.get("a") is not None
        clients, strangers = connections(master)
        assert clients <= 2
        assert strangers <= ConnectionLimits().strangers


def open_many(master: Master, count: int) -> None:
    kept: list[socket.socket] = []
    for number in range(count):
        sock = socket.socket()
        sock.setblocking(False)
        sock.connect_ex((master.host, master.port))
        if number % 3 == 0:
            with contextlib.suppress(OSError):
                sock.send(os.urandom(10))
        kept.append(sock)
        if len(kept) > 500:
            kept.pop(0).close()
    for sock in kept:
        sock.close()


class TestTrusted:
    """Whoever has the token can still not take more than its share."""

    def test_a_message_that_is_too_long_ends_the_connection(self, master: Master) -> None:
        client = Client(master)
        client.socket.sendall(struct.pack(">IQ", LONGEST_REQUEST + 1, 1))
        assert read_all(client.socket) == b""
        client.socket.close()

    def test_one_that_asks_on_and_on_without_listening(
        self, master: Master, store: MasterStore
    ) -> None:
        store.put("large", "x" * 500_000)
        client = Client(master)
        client.socket.setblocking(False)
        # Until the master takes no more: it waits for its answers to be taken. More than the
        # system keeps for a connection is sent in any case.
        for _ in range(10_000):
            try:
                client.socket.send(client.seal(op="get", key="large", padding="x" * 10_000))
            except BlockingIOError:
                break
        else:
            raise AssertionError("the master keeps everything")
        assert store.get("large") is not None
        client.socket.close()

    def test_one_that_talks_while_its_last_request_waits(
        self, master: Master, store: MasterStore
    ) -> None:
        revision = store.put("a", "1")
        client = Client(master)
        wait = client.seal(op="changes", prefix="b", after=revision, wait=60)
        client.socket.sendall(wait)
        with contextlib.suppress(OSError):
            client.socket.sendall(bytes(3 * LONGEST_REQUEST))
        assert read_all(client.socket) == b""
        client.socket.close()
        assert store.get("a") is not None

    @pytest.mark.parametrize(
        "request_text",
        [
            '{"op":"grant","seconds":' + "9" * 400 + "}",
            '{"op":"changes","prefix":"a","after":0,"wait":' + "9" * 400 + "}",
        ],
        ids=["grant", "changes"],
    )
    def test_a_number_that_no_float_can_be_is_refused(
        self, master: Master, store: MasterStore, request_text: str
    ) -> None:
        client = Client(master)
        client.socket.sendall(client.sealer.seal(request_text.encode()))
        assert client.answer() == {"error": "refused", "text": ANY}
        client.socket.close()
        assert store.put("a", "1")

    def test_one_that_tries_everything_ends_nothing(
        self, master: Master, store: MasterStore, caplog: pytest.LogCaptureFixture
    ) -> None:
        client = Client(master)
        for payload in hostile_requests(seed=12, count=2000):
            client.socket.sendall(client.sealer.seal(payload))
            answer = client.answer()
            assert isinstance(answer, dict)
            assert "ok" in answer or "error" in answer
        client.socket.close()
        assert store.put("a", "1")
        # Each was refused for what it is, and none came as a surprise.
        assert not caplog.records

    def test_all_together_take_no_more_than_the_limit(self) -> None:
        connection_limits = ConnectionLimits(buffered_bytes=1 << 20)
        with closing_master(connection_limits) as master, closing_store(master) as store:
            clients = [Client(master) for _ in range(4)]
            for client in clients:
                # The beginning of a long message, whose end never comes.
                client.socket.sendall(struct.pack(">IQ", 1 << 20, 1) + bytes(600_000))
            gone = wait_for_one_end(clients)
            assert gone
            assert store.put("a", "1")
            for client in clients:
                client.socket.close()

    def test_the_store_is_bounded(self) -> None:
        limits = Limits(total_bytes=10_000)
        with closing_master(limits=limits) as master, closing_store(master) as store:
            for number in range(95):
                store.put(str(number), "x" * 100)
            with pytest.raises(StoreRefusedError, match="10000 bytes"):
                store.put("more", "x" * 1000)
            store.delete("0")
            store.put("0", "x" * 100)


def wait_for_one_end(clients: list[Client]) -> list[Client]:
    poller = select.poll()
    by_fd = {client.socket.fileno(): client for client in clients}
    for fd in by_fd:
        poller.register(fd, select.POLLIN | select.POLLHUP)
    return [by_fd[fd] for fd, _ in poller.poll(DEADLOCK * 1000)]


def test_a_paused_master_does_not_let_leases_end(store: MasterStore) -> None:
    """A launcher that was stopped, or a machine that slept: the holders could not renew."""
    lease = store.grant(5.0)
    store.put("a", "1", lease=lease.id)
    looked = threading.Event()
    real = time.monotonic
    offset = 0.0

    def jumping() -> float:
        looked.set()
        return real() + offset

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("rankspawn.launch.rendezvous.master.time.monotonic", jumping)
        offset = 100.0
        assert store.get("a") is not None
        store.renew(lease.id)
    assert looked.is_set()


def test_closing_ends_the_calls_of_clients(master: Master) -> None:
    store = MasterStore(master.host, master.port, KEY, answer_within=DEADLOCK)
    revision = store.put("a", "1")
    failures: list[BaseException] = []
    waiting = threading.Thread(target=wait_for_changes, args=(store, revision, failures))
    waiting.start()
    while connections(master)[0] < 2:
        select.select([], [], [], 0.01)
    master.close()
    waiting.join(DEADLOCK)
    assert isinstance(failures[0], StoreUnreachableError)
    with pytest.raises(StoreUnreachableError, match="closed the connection"):
        store.get("a")
    with pytest.raises(StoreUnreachableError, match="nobody listens"):
        store.get("a")
    store.close()


def wait_for_changes(store: MasterStore, after: int, failures: list[BaseException]) -> None:
    try:
        store.changes("", after, wait=50)
    except BaseException as error:
        failures.append(error)


def test_something_else_at_the_address_is_recognised() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        store = MasterStore("127.0.0.1", port, KEY, answer_within=DEADLOCK)
        greeter = threading.Thread(target=greet_as_ssh, args=(server,))
        greeter.start()
        with pytest.raises(StoreRefusedError, match=r"something else.*SSH-2\.0"):
            store.get("a")
        greeter.join()
        store.close()


def greet_as_ssh(server: socket.socket) -> None:
    sock, _ = server.accept()
    with sock:
        sock.sendall(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3\r\n".ljust(wire.GREETING_SIZE))


def test_a_silent_server_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        store = MasterStore("127.0.0.1", server.getsockname()[1], KEY, answer_within=0.2)
        with pytest.raises(StoreUnreachableError, match="does not answer"):
            store.get("a")
        store.close()


# A master in a process that may open few files; it prints its port.
POOR_MASTER = """
import resource, sys, time
from rankspawn.launch.rendezvous.master import Master
master = Master("127.0.0.1", 0, bytes.fromhex(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_NOFILE, (30, 30))
print(master.port, flush=True)
time.sleep(1000)
"""


def test_a_master_without_free_descriptors_sends_strangers_away() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", POOR_MASTER, KEY.hex()], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        port = int(process.stdout.readline())
        strangers = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        store = MasterStore("127.0.0.1", port, KEY, answer_within=DEADLOCK)
        assert store.put("a", "1")
        store.close()
        for sock in strangers:
            sock.close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
