"""What the embedded master does for a request: from one JSON object to another.

No socket in here. A request to wait for changes that are not there yet waits, and is answered
when they come or its time is up; all others are answered at once.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from rankspawn.launch.rendezvous.keyvalues import LONGEST_KEY, KeyValues
from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    LeaseExpiredError,
    RevisionGoneError,
    StoreRefusedError,
)

logger: logging.Logger = logging.getLogger(__name__)

# Nobody needs a longer lease, and memory that is bound to one should come free some day.
LONGEST_LEASE = 3600.0
LONGEST_WAIT = 60.0
# Answers that are kept for those who ask the same, and how long one may be.
_ANSWERS_KEPT = 8
_LONGEST_KEPT = 1 << 20
# Revisions and leases count up from the time in nanoseconds; this lasts to the year 2262.
_HIGHEST = (1 << 63) - 1

_Value = TypeVar("_Value")


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """A request that waits for changes."""

    prefix: str
    after: int
    until: float


class _BadRequestError(Exception):
    """Not a request that a client of ours makes."""


class Service:
    """Answers requests out of a store's memory."""

    def __init__(self, values: KeyValues) -> None:
        self.values = values
        self._operations: Mapping[str, Callable[[_Request, float], object]] = {
            "get": self._get,
            "prefix": self._prefix,
            "put": self._put,
            "swap": self._swap,
            "delete": self._delete,
            "grant": self._grant,
            "renew": self._renew,
            "revoke": self._revoke,
            "changes": self._changes,
        }
        self._was_reported = False
        # What was asked, and the answer, at this revision.
        self._answers: dict[tuple[object, ...], bytes] = {}
        self._answers_of = values.revision

    def answer(self, payload: bytes, now: float) -> bytes | WaitingRequest:
        """The answer to a request, or its place in the queue."""
        try:
            request = _Request(payload)
            operation = self._operations.get(request.text("op"), _unknown)
            result = operation(request, now)
        except LeaseExpiredError as error:
            return _error("lease", error)
        except RevisionGoneError as error:
            return _error("revision", error)
        except (StoreRefusedError, _BadRequestError, UnicodeError) as error:
            return _error("refused", error)
        except Exception as error:
            # One client's request must not end the job of all, whatever was not thought of.
            self._report(error)
            return _error("refused", _BadRequestError("the master cannot answer this"))
        return result if isinstance(result, WaitingRequest | bytes) else _encode({"ok": result})

    def answer_waiting(self, waiting_request: WaitingRequest) -> bytes:
        """The answer to a request whose changes have come, or whose time is up."""
        prefix, after = waiting_request.prefix, waiting_request.after
        try:
            return self._once(
                ("changes", prefix, after), lambda: _as_answer(self.values.changes(prefix, after))
            )
        except RevisionGoneError as error:
            return _error("revision", error)

    def _once(self, what: tuple[object, ...], make: Callable[[], bytes]) -> bytes:
        """An answer that a thousand nodes get is made once, as long as nothing changes."""
        if self._answers_of != self.values.revision:
            self._answers_of = self.values.revision
            self._answers.clear()
        if (known := self._answers.get(what)) is not None:
            return known
        answer = make()
        if len(answer) <= _LONGEST_KEPT:
            if len(self._answers) >= _ANSWERS_KEPT:
                self._answers.clear()
            self._answers[what] = answer
        return answer

    def _report(self, error: Exception) -> None:
        # Once: who can cause it can cause it a thousand times in a second.
        if not self._was_reported:
            self._was_reported = True
            logger.error("the master cannot answer a request", exc_info=error)

    def _get(self, request: _Request, _now: float) -> bytes:
        key = request.key("key")
        entry = self.values.get(key)
        return self._once(("get", key), lambda: _encode({"ok": entry and _plain(entry)}))

    def _prefix(self, request: _Request, _now: float) -> object:
        found = self.values.prefix(request.key("prefix"))
        return [found.revision, [_plain(entry) for entry in found.entries]]

    def _put(self, request: _Request, _now: float) -> object:
        return self.values.put(
            request.key("key"), request.text("value"), lease=request.whole("lease")
        )

    def _swap(self, request: _Request, _now: float) -> object:
        return self.values.swap(
            request.key("key"),
            request.whole("expected"),
            None if request.is_null("value") else request.text("value"),
            lease=request.whole("lease"),
        )

    def _delete(self, request: _Request, _now: float) -> object:
        self.values.delete(request.key("key"))
        return None

    def _grant(self, request: _Request, now: float) -> object:
        seconds = request.seconds("seconds", LONGEST_LEASE)
        lease = self.values.grant(seconds, now)
        return [lease.id, lease.seconds]

    def _renew(self, request: _Request, now: float) -> object:
        self.values.renew(request.whole("lease"), now)
        return None

    def _revoke(self, request: _Request, _now: float) -> object:
        self.values.revoke(request.whole("lease"))
        return None

    def _changes(self, request: _Request, now: float) -> object:
        wait = request.seconds("wait", LONGEST_WAIT)
        waiting_request = WaitingRequest(request.key("prefix"), request.whole("after"), now + wait)
        changes = self.values.changes(waiting_request.prefix, waiting_request.after)
        if not changes.entries and not changes.deleted and wait:
            return waiting_request
        what = ("changes", waiting_request.prefix, waiting_request.after)
        return self._once(what, lambda: _as_answer(changes))


class _Request:
    """One JSON object, whose fields are what they should be, and no larger, or an error."""

    def __init__(self, payload: bytes) -> None:
        try:
            data = json.loads(payload)
        except (ValueError, RecursionError) as error:
            raise _BadRequestError("not JSON") from error
        if not isinstance(data, dict):
            raise _BadRequestError("not an object")
        self._data: dict[str, Any] = data

    def text(self, name: str) -> str:
        return self._field(name, str)

    def key(self, name: str) -> str:
        text = self._field(name, str)
        # One that waits is kept for as long as the client likes.
        if len(text) > LONGEST_KEY:
            raise _BadRequestError(f"{name} has more than {LONGEST_KEY} characters")
        return text

    def whole(self, name: str) -> int:
        number = self._field(name, int)
        if not 0 <= number <= _HIGHEST:
            raise _BadRequestError(f"{name} is not from 0 to {_HIGHEST}")
        return number

    def is_null(self, name: str) -> bool:
        return name in self._data and self._data[name] is None

    def seconds(self, name: str, most: float) -> float:
        value = self._data.get(name)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        # Compared as it came: a number of 400 digits is no float. NaN is not between any two.
        if not is_number or value is None or not 0 <= value <= most:
            raise _BadRequestError(f"{name} is no time of 0 to {most:g} s")
        return float(value)

    def _field(self, name: str, kind: type[_Value]) -> _Value:
        value = self._data.get(name)
        # bool is an int, too, but not here.
        if type(value) is not kind:
            raise _BadRequestError(f"{name} is no {kind.__name__}")
        return value


def _unknown(_request: _Request, _now: float) -> object:
    raise _BadRequestError("no such operation")


def _plain(entry: Entry) -> list[object]:
    return [entry.key, entry.value, entry.created, entry.revision]


def _as_answer(changes: Changes) -> bytes:
    entries = [_plain(entry) for entry in changes.entries]
    return _encode({"ok": [changes.revision, entries, list(changes.deleted)]})


def _error(kind: str, error: Exception) -> bytes:
    return _encode({"error": kind, "text": str(error)})


def _encode(answer: object) -> bytes:
    # Escaped, so that a lone surrogate cannot make it fail.
    return json.dumps(answer, separators=(",", ":")).encode()
