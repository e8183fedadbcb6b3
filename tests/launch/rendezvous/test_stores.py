"""Who serves the store, where, and what is refused."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import closing

import pytest

from rankspawn.launch.rendezvous import stores
from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.stores import (
    AddressError,
    OpenStore,
    address_towards,
    machine_id,
    open_store,
    read_master,
)
from rankspawn.launch.rendezvous.wire import derive_key
from rankspawn.plan.ports import HeldPorts
from tests.jobs import DEADLOCK


class FakeMachine:
    """A machine with these addresses, and names for some."""

    def __init__(self, *addresses: str, **names: str) -> None:
        self._addresses = frozenset(addresses)
        self._names = names

    def device_count(self, device_type: str) -> int:
        raise NotImplementedError(device_type)

    def gpu_vendor(self) -> str | None:
        raise NotImplementedError

    def cpus(self) -> int:
        raise NotImplementedError

    def addresses(self) -> frozenset[str]:
        return self._addresses | {"127.0.0.1", "::1"}

    def resolve(self, host: str) -> frozenset[str]:
        return frozenset({self._names.get(host, host)})


HERE = FakeMachine("10.0.0.1")


class TestRead:
    @pytest.mark.parametrize(
        ("text", "is_etcd", "endpoints"),
        [
            ("10.0.0.1:6070", False, (("10.0.0.1", 6070),)),
            ("node-1.example:80", False, (("node-1.example", 80),)),
            ("http://10.0.0.1:6070", False, (("10.0.0.1", 6070),)),
            ("http://10.0.0.1:6070/", False, (("10.0.0.1", 6070),)),
            ("[fe80::1]:6070", False, (("fe80::1", 6070),)),
            ("etcd://a:2379", True, (("a", 2379),)),
            ("etcd://a,b:2380", True, (("a", 2379), ("b", 2380))),
            ("etcd://[::1]", True, (("::1", 2379),)),
        ],
    )
    def test_what_can_be_meant(
        self, text: str, is_etcd: bool, endpoints: tuple[tuple[str, int], ...]
    ) -> None:
        where = read_master(text)
        assert (where.is_etcd, where.endpoints) == (is_etcd, endpoints)

    @pytest.mark.parametrize(
        "text", ["", "host", "host:", ":6070", "host:0", "host:65536", "host:x", "etcd://"]
    )
    def test_what_cannot(self, text: str) -> None:
        with pytest.raises(AddressError, match="is no host:port"):
            read_master(text)

    def test_another_scheme(self) -> None:
        with pytest.raises(AddressError, match="ftp://"):
            read_master("ftp://host:21")

    def test_several_without_etcd(self) -> None:
        with pytest.raises(AddressError, match="only etcd"):
            read_master("a:1,b:2")


class TestAddresses:
    def test_the_way_to_oneself_is_loopback(self) -> None:
        assert address_towards("127.0.0.1", 9) == "127.0.0.1"
        assert address_towards("no such host.invalid", 9) is None

    def test_a_machine_is_itself(self) -> None:
        assert machine_id() == machine_id()


@pytest.fixture
def port() -> Iterator[int]:
    with closing(HeldPorts(1)) as held:
        yield held.ports[0]


class TestOpen:
    def open(self, master: str | None, **others: object) -> OpenStore:
        arguments: dict[str, object] = {
            "secret": "sixteen letters!",
            "job_id": "job",
            "machine": HERE,
            **others,
        }
        return open_store(master, **arguments)  # type: ignore[arg-type]

    def test_the_first_one_on_the_masters_machine_serves(self, port: int) -> None:
        first = self.open(f"127.0.0.1:{port}")
        second = self.open(f"127.0.0.1:{port}")
        assert first.master is not None
        assert (first.master.host, first.master.port) == ("127.0.0.1", port)
        assert second.master is None
        assert (first.host, second.host) == ("127.0.0.1", "127.0.0.1")
        assert second.store.put("a", "1")
        second.close()
        first.close()

    def test_a_node_with_another_rank_never_serves(self, port: int) -> None:
        opened = self.open(f"127.0.0.1:{port}", node_rank=1)
        assert opened.master is None
        opened.close()

    def test_without_an_address_it_serves_and_says_where(self) -> None:
        opened = self.open(None, host="127.0.0.1")
        assert opened.master is not None
        assert opened.address == f"127.0.0.1:{opened.master.port}"
        opened.close()

    def test_node_0_behind_a_translated_address_serves_on_all_of_its_own(self, port: int) -> None:
        opened = self.open(f"192.0.2.7:{port}", node_rank=0, host="10.0.0.1")
        assert opened.master is not None
        assert opened.master.host == "0.0.0.0"
        assert opened.host == "10.0.0.1"
        assert opened.store.put("a", "1"), "it reaches itself without the translation"
        opened.close()

    def test_another_address_is_somebody_elses(self, port: int) -> None:
        opened = self.open(f"192.0.2.7:{port}")
        assert opened.master is None
        opened.close()

    def test_a_name_that_means_loopback_only_here_is_served_on_all_addresses(
        self, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        """As on systems that have their own name at 127.0.1.1: others know it by one of these."""
        monkeypatch.setattr(stores, "outward_address", lambda: "127.0.0.2")
        machine = FakeMachine("10.0.0.1", "192.168.0.1", node1="127.0.1.1")
        opened = self.open(f"node1:{port}", machine=machine)
        assert opened.master is not None
        key = derive_key("sixteen letters!", "job")
        for address in ("127.0.0.2", "127.0.0.3"):
            with closing(MasterStore(address, port, key, answer_within=DEADLOCK)) as other:
                assert other.put("a", "1")
        assert opened.host == "127.0.0.2"
        assert "node1 is a loopback address on this machine" in caplog.text
        assert "127.0.0.2" in caplog.text
        assert "--host" in caplog.text
        opened.close()

    def test_a_name_that_means_loopback_only_here_and_one_way_to_it(
        self, port: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(stores, "outward_address", lambda: "10.0.0.1")
        opened = self.open(f"node1:{port}", machine=FakeMachine("10.0.0.1", node1="127.0.1.1"))
        assert opened.host == "10.0.0.1"
        assert not caplog.records
        opened.close()

    def test_a_port_in_use_by_something_else_is_not_served(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as other:
            opened = self.open(f"127.0.0.1:{other.getsockname()[1]}")
            assert opened.master is None
            opened.close()

    def test_a_loopback_master_of_a_job_with_other_machines_is_refused(self) -> None:
        with pytest.raises(AddressError, match=r"means this machine only.*10\.0\.0\.2"):
            self.open("127.0.0.1:6070", expected=["10.0.0.1", "10.0.0.2"])

    def test_a_loopback_master_of_a_node_that_is_not_here_is_refused(self) -> None:
        """Its address is translated on the way, so there is a way to other machines."""
        with pytest.raises(AddressError, match=r"means this machine only.*10\.0\.0\.2"):
            self.open("127.0.0.1:6070", host="10.0.0.2")

    def test_a_loopback_host_with_a_master_elsewhere_is_refused(self) -> None:
        with pytest.raises(AddressError, match=r"--host 127\.0\.0\.1"):
            self.open("10.0.0.2:6070", host="127.0.0.1")
