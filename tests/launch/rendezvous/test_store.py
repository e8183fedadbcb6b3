"""What every store does: the embedded master's, and a real etcd."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.master import Master
from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    LeaseExpiredError,
    RevisionGoneError,
    Store,
    StoreUnreachableError,
)
from rankspawn.launch.rendezvous.wire import derive_key
from tests.jobs import DEADLOCK
from tests.launch.rendezvous.etcds import Etcd, running_etcd, why_no_etcd


@pytest.fixture(scope="module", autouse=True)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Etcd | None]:
    """One etcd for all tests, begun before the first: it is nobody's leftover."""
    is_needed = any(item.get_closest_marker("slow") for item in request.session.items)
    if why_no_etcd() or not is_needed:
        yield None
        return
    with running_etcd(tmp_path_factory.mktemp("etcd"), 1) as etcd:
        yield etcd


@pytest.fixture
def etcd(server: Etcd | None) -> Etcd:
    if server is None:
        pytest.skip(why_no_etcd())
    return server


@pytest.fixture(params=["master", pytest.param("etcd", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest) -> Iterator[Store]:
    if request.param == "master":
        key = derive_key("a secret of sixteen letters", "job")
        master = Master("127.0.0.1", 0, key)
        store: Store = MasterStore(master.host, master.port, key, answer_within=DEADLOCK)
        yield store
        store.close()
        master.close()
    else:
        etcd: Etcd = request.getfixturevalue("etcd")
        from rankspawn.launch.rendezvous.etcd import EtcdStore

        store = EtcdStore(etcd.endpoints, answer_within=DEADLOCK)
        for entry in store.prefix("test/").entries:
            store.delete(entry.key)
        yield store
        store.close()


def test_entries(store: Store) -> None:
    assert store.get("test/a") is None
    first = store.put("test/a", "größer\n")
    second = store.put("test/b", "2")
    assert second > first
    entry = store.get("test/a")
    assert entry is not None
    assert (entry.value, entry.created, entry.revision) == ("größer\n", first, first)
    found = store.prefix("test/")
    assert {entry.key: entry.value for entry in found.entries} == {
        "test/a": "größer\n",
        "test/b": "2",
    }
    assert found.revision >= second
    store.delete("test/a")
    store.delete("test/a")
    assert [entry.key for entry in store.prefix("test/").entries] == ["test/b"]


def test_swap(store: Store) -> None:
    first = store.swap("test/a", 0, "1")
    assert first is not None
    assert store.swap("test/a", 0, "other") is None
    second = store.swap("test/a", first, "2")
    assert second is not None
    assert store.swap("test/a", first, "3") is None
    assert store.swap("test/a", first, None) is None
    assert store.swap("test/a", second, None) is not None
    assert store.get("test/a") is None


def test_of_many_who_swap_one_wins(store: Store) -> None:
    won: list[str] = []

    def race(name: str) -> None:
        if store.swap("test/leader", 0, name) is not None:
            won.append(name)

    threads = [threading.Thread(target=race, args=(f"node{index}",)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    leader = store.get("test/leader")
    assert leader is not None
    assert won == [leader.value]


@pytest.mark.slow
def test_a_lease_takes_its_entries_with_it(store: Store) -> None:
    lease = store.grant(2.0)
    assert lease.seconds >= 2.0
    store.put("test/a", "1", lease=lease.id)
    store.swap("test/b", 0, "1", lease=lease.id)
    store.renew(lease.id)
    revision = store.prefix("test/").revision

    gone: set[str] = set()
    while gone != {"test/a", "test/b"}:
        changes = store.changes("test/", revision, wait=DEADLOCK)
        revision = changes.revision
        gone |= set(changes.deleted)

    for use in (lambda: store.renew(lease.id), lambda: store.put("x", "1", lease=lease.id)):
        with pytest.raises(LeaseExpiredError):
            use()
    with pytest.raises(LeaseExpiredError):
        store.swap("test/c", 0, "1", lease=lease.id)


def test_a_revoked_lease_is_gone_at_once(store: Store) -> None:
    lease = store.grant(60.0)
    store.put("test/a", "1", lease=lease.id)
    store.revoke(lease.id)
    store.revoke(lease.id)
    assert store.get("test/a") is None


class TestChanges:
    def test_are_found_later(self, store: Store) -> None:
        before = store.put("test/a", "1")
        store.put("test/a", "2")
        store.put("test/b", "1")
        store.delete("test/b")
        store.put("elsewhere", "1")
        changes = collect(store, before, {"test/a", "test/b"})
        assert [(entry.key, entry.value) for entry in changes.entries] == [("test/a", "2")]
        assert changes.deleted == ("test/b",)

    def test_are_waited_for(self, store: Store) -> None:
        before = store.put("test/a", "1")
        writer = threading.Timer(0.2, store.put, ("test/a", "2"))
        writer.start()
        changes = store.changes("test/", before, wait=DEADLOCK)
        assert [entry.value for entry in changes.entries] == ["2"]
        assert changes.revision > before
        writer.join()

    def test_are_none_after_the_wait(self, store: Store) -> None:
        before = store.put("test/a", "1")
        changes = store.changes("test/", before, wait=0.1)
        assert (changes.entries, changes.deleted) == ((), ())
        assert changes.revision >= before

    def test_end_with_the_store(self, store: Store) -> None:
        before = store.put("test/a", "1")
        failed: list[Exception] = []

        def wait() -> None:
            try:
                store.changes("test/", before, wait=DEADLOCK)
            except StoreUnreachableError as error:
                failed.append(error)

        waiting = threading.Thread(target=wait)
        waiting.start()
        # However far the other thread has come, closing ends it.
        threading.Event().wait(0.2)
        store.close()
        waiting.join(DEADLOCK)
        assert failed
        with pytest.raises(StoreUnreachableError):
            store.get("test/a")


def collect(store: Store, after: int, keys: set[str]) -> Changes:
    """The changes of these keys together; a store may tell of them in any number of answers."""
    entries: dict[str, Entry] = {}
    deleted: set[str] = set()
    while not keys <= entries.keys() | deleted:
        changes = store.changes("test/", after, wait=DEADLOCK)
        after = changes.revision
        for entry in changes.entries:
            entries[entry.key] = entry
            deleted.discard(entry.key)
        for key in changes.deleted:
            entries.pop(key, None)
            deleted.add(key)
    return Changes(after, tuple(entries.values()), tuple(deleted))


@pytest.mark.slow
def test_etcds_forgotten_revisions_are_recognised(etcd: Etcd) -> None:
    from rankspawn.launch.rendezvous.etcd import EtcdStore

    store = EtcdStore(etcd.endpoints, answer_within=DEADLOCK)
    before = store.put("test/old", "1")
    last = [store.put("test/old", str(number)) for number in range(5)][-1]
    store._ask("kv/compaction", {"revision": str(last)})
    with pytest.raises(RevisionGoneError):
        store.changes("test/", before - 1, wait=DEADLOCK)
    store.close()
