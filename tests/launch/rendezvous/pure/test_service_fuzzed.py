"""Whatever somebody with the job's token asks for, what the master keeps is bounded and whole."""

from __future__ import annotations

import json
import logging
import random

import pytest

from rankspawn.launch.rendezvous.keyvalues import KeyValues, Limits
from rankspawn.launch.rendezvous.service import LONGEST_WAIT, Service, WaitingRequest

_LIMITS = Limits(keys=5, value_bytes=400, total_bytes=2000, leases=4, history=6)
_OPERATIONS = ("get", "prefix", "put", "swap", "delete", "grant", "renew", "revoke", "changes")
_KEYS = ("", "a", "b", "b/1", "b/2", "c", "d", "\ud800", "\0", "é" * 300, "k" * 512, "k" * 513)
_VALUES: tuple[object, ...] = (None, "", "x", "y" * 300, "é" * 300, "\udfff", "z" * 401, 7, [], {})
# Numbers of leases and revisions that there are, were and will be, and some that can never be.
_NUMBERS = (*range(12), 0, 0, 0, -1, 1 << 63, 10**400, 1.0, True, None, "1")
_SECONDS = (0, 1, 0.5, 60, 3600, -0.0, -1, 60.001, 3601, 1e308, 10**400, float("nan"), None, "1")


@pytest.mark.parametrize("seed", range(20))
def test_any_requests(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    chance = random.Random(seed)
    service = Service(KeyValues(0, _LIMITS))
    now = 0.0
    waiting: list[WaitingRequest] = []
    with caplog.at_level(logging.WARNING):
        for _ in range(300):
            now += chance.choice((0.0, 0.1, 1.0, 100.0))
            service.values.expire(now)
            answer = service.answer(_request(chance), now)
            if isinstance(answer, WaitingRequest):
                assert now < answer.until <= now + LONGEST_WAIT
                waiting.append(answer)
            else:
                _check_answer(answer)
            _check_memory(service.values)
            for each in waiting:
                _check_answer(service.answer_waiting(each))
    # Each was refused for what it is, and none came as a surprise.
    assert not caplog.records


def _request(chance: random.Random) -> bytes:
    fields = {
        "op": chance.choice(_OPERATIONS),
        "key": chance.choice(_KEYS),
        "prefix": chance.choice(_KEYS),
        "value": chance.choice(_VALUES),
        **{name: chance.choice(_NUMBERS) for name in ("lease", "expected", "after")},
        **{name: chance.choice(_SECONDS) for name in ("seconds", "wait")},
    }
    if chance.random() < 0.1:
        del fields[chance.choice(list(fields))]
    return json.dumps(fields).encode()


def _check_answer(answer: bytes) -> None:
    told = json.loads(answer)
    assert told.keys() in ({"ok"}, {"error", "text"})
    assert told.get("error", "refused") in ("lease", "revision", "refused")


def _check_memory(values: KeyValues) -> None:
    entries = values.prefix("").entries
    sizes = [len(entry.key.encode()) + len(entry.value.encode()) for entry in entries]
    assert len(entries) <= _LIMITS.keys
    assert sum(sizes) == values._bytes <= _LIMITS.total_bytes
    assert len(values._leases) <= _LIMITS.leases
    assert len(values._ends) <= 2 * _LIMITS.leases + 1
    assert len(values._history) <= _LIMITS.history
    bound = {key: lease for lease, held in values._leases.items() for key in held.keys}
    assert bound == values._lease_of
    assert bound.keys() <= {entry.key for entry in entries}
