"""The embedded master's memory: revisions, leases, limits."""

from __future__ import annotations

import pytest

from rankspawn.launch.rendezvous.keyvalues import KeyValues, Limits
from rankspawn.launch.rendezvous.store import (
    LeaseExpiredError,
    RevisionGoneError,
    StoreRefusedError,
)


def test_an_entry_knows_its_first_and_its_last_revision() -> None:
    values = KeyValues(first_revision=100)
    assert values.put("a", "1") == 101
    assert values.put("b", "1") == 102
    assert values.put("a", "2") == 103
    entry = values.get("a")
    assert entry is not None
    assert (entry.value, entry.created, entry.revision) == ("2", 101, 103)


class TestSwap:
    def test_only_from_the_expected_revision(self) -> None:
        values = KeyValues()
        first = values.swap("a", 0, "1")
        assert first is not None
        assert values.swap("a", 0, "2") is None
        second = values.swap("a", first, "2")
        assert second is not None
        assert values.swap("a", first, "3") is None
        assert values.swap("a", second, None) is not None
        assert values.get("a") is None

    def test_deleting_nothing_is_fine_if_nothing_is_expected(self) -> None:
        assert KeyValues(5).swap("a", 0, None) == 5


class TestLeases:
    def test_take_their_entries_with_them(self) -> None:
        values = KeyValues()
        lease = values.grant(10, now=0).id
        values.put("a", "1", lease=lease)
        values.put("b", "1")
        assert values.expire(9.9) == 10
        assert values.get("a") is not None
        assert values.expire(10) is None
        assert values.get("a") is None
        assert values.get("b") is not None
        with pytest.raises(LeaseExpiredError):
            values.renew(lease, 10)
        with pytest.raises(LeaseExpiredError):
            values.put("a", "1", lease=lease)

    def test_last_their_whole_time_again_when_renewed(self) -> None:
        values = KeyValues()
        lease = values.grant(10, now=0).id
        other = values.grant(10, now=5).id
        values.renew(lease, 8)
        assert values.expire(12) == 15
        assert values.expire(16) == 18
        with pytest.raises(LeaseExpiredError):
            values.renew(other, 16)
        assert values.expire(18) is None

    def test_let_go_of_an_entry_that_is_written_without_them(self) -> None:
        values = KeyValues()
        lease = values.grant(10, now=0).id
        values.put("a", "1", lease=lease)
        values.put("a", "2")
        values.revoke(lease)
        assert values.get("a") is not None

    def test_can_be_prolonged_all_at_once(self) -> None:
        values = KeyValues()
        values.grant(10, now=0)
        values.prolong(100)
        assert values.expire(50) == 110


class TestChanges:
    def test_are_the_newest_of_each_key(self) -> None:
        values = KeyValues()
        before = values.put("x/a", "1")
        values.put("x/a", "2")
        values.put("x/a", "3")
        values.put("y/a", "1")
        values.put("x/b", "1")
        values.delete("x/b")
        changes = values.changes("x/", before)
        assert [entry.value for entry in changes.entries] == ["3"]
        assert changes.deleted == ("x/b",)
        assert changes.revision == values.revision

    def test_of_too_long_ago_are_gone(self) -> None:
        values = KeyValues(limits=Limits(history=3))
        before = values.put("a", "0")
        for number in range(3):
            values.put("a", str(number))
        assert values.changes("", before).entries
        values.put("a", "more")
        with pytest.raises(RevisionGoneError):
            values.changes("", before)

    def test_of_another_store_are_not_taken_for_ones_own(self) -> None:
        old, new = KeyValues(first_revision=1000), KeyValues(first_revision=2000)
        old.put("a", "1")
        new.put("a", "1")
        with pytest.raises(RevisionGoneError):
            new.changes("", old.revision)
        with pytest.raises(RevisionGoneError):
            old.changes("", new.revision)


class TestLimits:
    def test_of_keys_values_and_all_together(self) -> None:
        values = KeyValues(limits=Limits(keys=2, key_bytes=4, value_bytes=10, total_bytes=20))
        with pytest.raises(StoreRefusedError, match="key"):
            values.put("äää", "")
        with pytest.raises(StoreRefusedError, match="value"):
            values.put("a", "x" * 11)
        values.put("a", "x" * 10)
        values.put("a", "y" * 10)
        with pytest.raises(StoreRefusedError, match="20 bytes"):
            values.put("b", "x" * 10)
        values.put("b", "x")
        with pytest.raises(StoreRefusedError, match="2 keys"):
            values.put("c", "")
        values.delete("a")
        values.put("c", "x" * 10)

    def test_of_leases(self) -> None:
        values = KeyValues(limits=Limits(leases=1))
        values.grant(1, now=0)
        with pytest.raises(StoreRefusedError):
            values.grant(1, now=0)
        values.expire(2)
        values.grant(1, now=2)


def test_leases_that_come_and_go_leave_nothing_behind() -> None:
    values = KeyValues(limits=Limits(leases=10))
    for _ in range(1000):
        values.revoke(values.grant(3600, 0).id)
    assert len(values._ends) <= 20
    kept = values.grant(5, 0)
    values.put("a", "1", lease=kept.id)
    assert values.expire(4) == 5
    values.expire(5)
    assert values.get("a") is None
