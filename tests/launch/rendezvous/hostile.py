"""Requests that a hostile client makes, though it has the job's token; the same for one seed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

_OPERATIONS = ("get", "prefix", "put", "swap", "delete", "grant", "renew", "revoke", "changes")
_FIELDS = ("key", "prefix", "value", "lease", "expected", "seconds", "after", "wait")

# As JSON, since some of them are no values of Python's.
_VALUES = (
    "0", "1", "-1", "0.5", "-0.0", "1e308", "1e309", "-1e309", "1e-400", "NaN", "Infinity",
    "-Infinity", "true", "false", "null", "[]", "{}", '[["a"]]', '{"a": {}}', '""', '"a"', '"b/1"',
    '"\\u0000"', '"\\ud800"', '"\\udfff\\ud800"', '"\\uffff"', '"' + "k" * 600 + '"',
    str(1 << 63), str((1 << 63) - 1), str(-(1 << 63)), str(1 << 64), "9" * 400, "-" + "9" * 400,
    "9" * 4000, "9" * 5000, "0." + "9" * 400, "1e" + "9" * 20, "3600", "3600.0000001",
)  # fmt: skip


def hostile_requests(seed: int, count: int) -> Iterator[bytes]:
    """Payloads: mostly whole requests with fields of all kinds, some not even JSON."""
    chance = random.Random(seed)
    for _ in range(count):
        payload = _request(chance)
        if chance.random() < 0.1:
            payload = _spoiled(payload, chance)
        yield payload


def _request(chance: random.Random) -> bytes:
    operation = json.dumps(chance.choice(_OPERATIONS))
    fields = {"op": chance.choice(_VALUES) if chance.random() < 0.05 else operation}
    for name in _FIELDS:
        if chance.random() < 0.9:
            fields[name] = chance.choice(_VALUES)
    # One that waits is answered later, and is none of these.
    if fields.get("wait", "").lstrip("-")[:1] not in ("0", "t", "n", "["):
        fields["wait"] = chance.choice(("0", "9" * 400, "NaN", "61"))
    if fields.get("wait", "").startswith("0."):
        fields["wait"] = "0"
    return ("{" + ",".join(f'"{name}":{value}' for name, value in fields.items()) + "}").encode()


def _spoiled(payload: bytes, chance: random.Random) -> bytes:
    place = chance.randrange(len(payload))
    match chance.randrange(4):
        case 0:
            return payload[:place]
        case 1:
            return payload[:place] + chance.randbytes(4) + payload[place:]
        case 2:
            return b"[" * chance.randrange(1, 200_000)
        case _:
            return b'{"op":' * 50_000 + payload
