"""Requests that no client of ours makes are answered with an error, and nothing else happens."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rankspawn.launch.rendezvous.keyvalues import KeyValues, Limits
from rankspawn.launch.rendezvous.service import Service, WaitingRequest
from rankspawn.launch.rendezvous.store import Changes
from tests.launch.rendezvous.hostile import hostile_requests


def ask(service: Service, payload: bytes | dict[str, Any]) -> dict[str, Any]:
    if isinstance(payload, dict):
        payload = json.dumps(payload).encode()
    answer = service.answer(payload, 0.0)
    assert isinstance(answer, bytes)
    decoded: dict[str, Any] = json.loads(answer)
    return decoded


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"op": "no such"}',
        b'{"op": ["get"]}',
        b'{"op": "get"}',
        b'{"op": "get", "key": 1}',
        b'{"op": "put", "key": "a", "value": null, "lease": 0}',
        b'{"op": "put", "key": "a", "value": "1", "lease": true}',
        b'{"op": "put", "key": "a", "value": "\\ud800", "lease": 0}',
        b'{"op": "swap", "key": "a", "expected": 0, "lease": 0}',
        b'{"op": "grant", "seconds": -1}',
        b'{"op": "grant", "seconds": NaN}',
        b'{"op": "grant", "seconds": 1e9}',
        b'{"op": "grant", "seconds": true}',
        b'{"op": "changes", "prefix": "", "after": 0, "wait": 1e9}',
        b'{"op": "grant", "seconds": ' + b"9" * 400 + b"}",
        b'{"op": "renew", "lease": ' + b"9" * 400 + b"}",
        b'{"op": "renew", "lease": -1}',
        b'{"op": "get", "key": "' + b"k" * 513 + b'"}',
        b'{"op": "changes", "prefix": "' + b"k" * 513 + b'", "after": 0, "wait": 1}',
        b"[" * 100_000,
        b'{"op": "get", "key": ' + b"9" * 10_000 + b"}",
    ],
    ids=lambda payload: repr(payload[:40]),
)
def test_bad_requests_are_refused(payload: bytes) -> None:
    service = Service(KeyValues())
    assert ask(service, payload)["error"] == "refused"
    assert service.values.prefix("").entries == ()


@pytest.mark.parametrize("seed", range(5))
def test_whatever_is_asked_is_answered(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(KeyValues(limits=Limits(keys=20, leases=20, history=20)))
    for now, payload in enumerate(hostile_requests(seed, 2000)):
        answer = service.answer(payload, float(now))
        assert isinstance(answer, bytes), payload
        assert json.loads(answer).keys() <= {"ok", "error", "text"}
        service.values.expire(float(now))
    assert not caplog.records


def test_what_nobody_thought_of_is_told_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    service = Service(KeyValues())
    monkeypatch.setattr(service.values, "get", lambda _key: 1 / 0)
    for _ in range(2):
        assert ask(service, {"op": "get", "key": "a"})["error"] == "refused"
    assert "ZeroDivisionError" in caplog.text
    assert len(caplog.records) == 1


def test_a_full_store_says_so() -> None:
    service = Service(KeyValues(limits=Limits(keys=0)))
    answer = ask(service, {"op": "put", "key": "a", "value": "1", "lease": 0})
    assert answer["error"] == "refused"
    assert "0 keys" in answer["text"]


def test_a_wait_for_changes_is_parked_until_there_are_some() -> None:
    service = Service(KeyValues())
    request = {"op": "changes", "prefix": "a", "after": 0, "wait": 5}
    waiting_request = service.answer(json.dumps(request).encode(), 100.0)
    assert waiting_request == WaitingRequest("a", 0, 105.0)
    service.values.put("a/1", "x")
    assert json.loads(service.answer_waiting(waiting_request))["ok"] == [
        1,
        [["a/1", "x", 1, 1]],
        [],
    ]


def test_a_wait_of_no_time_is_answered_at_once() -> None:
    service = Service(KeyValues())
    answer = ask(service, {"op": "changes", "prefix": "a", "after": 0, "wait": 0})
    assert answer == {"ok": [0, [], []]}


def test_an_answer_that_many_get_is_made_once_and_is_never_an_old_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    service = Service(KeyValues())
    service.values.put("job/state", "first")
    looks, changes = [], service.values.changes

    def look(prefix: str, after: int) -> Changes:
        looks.append(after)
        return changes(prefix, after)

    monkeypatch.setattr(service.values, "changes", look)
    waiting = WaitingRequest("job/", 0, 1.0)
    answers = {service.answer_waiting(waiting) for _ in range(1000)}
    assert len(answers) == len(looks) == 1
    get = {"op": "get", "key": "job/state"}
    assert ask(service, get) == ask(service, get)
    service.values.put("job/state", "second")
    assert "second" in service.answer_waiting(waiting).decode()
    assert ask(service, get)["ok"][1] == "second"
    service.values.delete("job/state")
    assert ask(service, get)["ok"] is None


def test_what_is_kept_of_answers_is_bounded() -> None:
    service = Service(KeyValues())
    service.values.put("large", "x" * (1 << 20))
    ask(service, {"op": "get", "key": "large"})
    for number in range(100):
        ask(service, {"op": "get", "key": str(number)})
    assert 0 < len(service._answers) <= 8
    assert all(len(answer) < 100 for answer in service._answers.values())
