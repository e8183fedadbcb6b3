"""A store in a real etcd cluster, through its HTTP gateway; needs ``rankspawn[etcd]``.

The client is ``etcd3gw``. Looked at, with their newest releases on PyPI in November 2026:

=================  ================  =========================================================
etcd3gw 2.7.0      June 2026         maintained by OpenStack; pure Python on ``requests``
aetcd 1.0.0        June 2026         maintained; asyncio only, and needs the compiled grpcio
etcd-sdk-python    August 2025       0.0.7, a fork of etcd3; needs the compiled grpcio
etcd3 0.12.0       March 2020        cannot be imported with a protobuf of after 2022
etcd3-py 0.1.6     May 2019          for Python 2.7 to 3.7
python-etcd 0.4.5  March 2017        etcd's version 2 API, which is gone
=================  ================  =========================================================

etcd3gw makes the requests and knows etcd's errors. It has neither more than one endpoint nor a
watch that can be left, so both are here: a request that a member does not answer goes to the
next one, and a wait for changes is one streamed answer, begun anew at the revision after the
last one that was seen.
"""

from __future__ import annotations

import base64
import contextlib
import json
import math
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

from rankspawn.launch.rendezvous.etcd_access import EtcdAccess
from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    Lease,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
    StoreUnreachableError,
)

try:
    import requests

    from rankspawn.launch.rendezvous.etcd_members import Members
except ImportError as _error:
    raise ImportError(
        "--master etcd://… needs a client for etcd, which is not installed: "
        "pip install 'rankspawn[etcd]'"
    ) from _error

_CHUNK = 1 << 16
# Between two rounds of asking all members.
_PAUSE = 0.05


class EtcdStore:
    """A store of several jobs; see :class:`~rankspawn.launch.rendezvous.store.Store`.

    Nothing is connected before the first call.

    Args:
        endpoints: Host and port of some of the cluster's members.
        answer_within: Seconds that a request may take, with all members that are tried.
        access: Who this is, and how the members are known; None for an open cluster.
    """

    def __init__(
        self,
        endpoints: Sequence[tuple[str, int]],
        *,
        answer_within: float = 2.0,
        access: EtcdAccess | None = None,
    ) -> None:
        self._endpoints = list(endpoints)
        self._answer_within = answer_within
        # So that there is time to ask another one when a member hangs.
        self._member_seconds = answer_within / min(2, len(self._endpoints))
        access = access or EtcdAccess()
        self._calls = Members(self._endpoints, self._member_seconds, access)
        self._watching = Members(self._endpoints, self._member_seconds, access)
        self._stream: requests.Response | None = None
        self._lock = threading.Lock()
        self._closed = False

    def get(self, key: str) -> Entry | None:
        """One entry; None if there is none."""
        found = self._ask("kv/range", {"key": _encode(key)}).get("kvs", ())
        return _entry(found[0]) if found else None

    def prefix(self, prefix: str) -> Snapshot:
        """All entries whose keys begin with ``prefix``."""
        answer = self._ask("kv/range", _range(prefix))
        return Snapshot(
            _revision(answer), tuple(_entry(fields) for fields in answer.get("kvs", ()))
        )

    def put(self, key: str, value: str, *, lease: int = 0) -> int:
        """Write an entry."""
        body = {"key": _encode(key), "value": _encode(value), "lease": str(lease)}
        return _revision(self._ask("kv/put", body))

    def swap(self, key: str, expected: int, value: str | None, *, lease: int = 0) -> int | None:
        """Write or delete an entry if its revision is still the expected one."""
        compare = {"key": _encode(key), "target": "MOD", "mod_revision": str(expected)}
        change: dict[str, Any] = {"request_delete_range": {"key": _encode(key)}}
        if value is not None:
            entry = {"key": _encode(key), "value": _encode(value), "lease": str(lease)}
            change = {"request_put": entry}
        # Sent to another member again if one does not answer: then it may have taken effect
        # without us knowing, and what is there tells.
        answer = self._ask(
            "kv/txn",
            {
                "compare": [{**compare, "result": "EQUAL"}],
                "success": [change],
                "failure": [{"request_range": {"key": _encode(key)}}],
            },
        )
        if answer.get("succeeded"):
            return _revision(answer)
        found = answer["responses"][0]["response_range"].get("kvs", ())
        if value is not None and found and _entry(found[0]).value == value:
            return _entry(found[0]).revision
        return None

    def delete(self, key: str) -> None:
        """Delete an entry, if it is there."""
        self._ask("kv/deleterange", {"key": _encode(key)})

    def grant(self, seconds: float) -> Lease:
        """A new lease; of whole seconds, and not below etcd's own least."""
        answer = self._ask("lease/grant", {"TTL": str(math.ceil(seconds))})
        return Lease(int(answer["ID"]), float(answer["TTL"]))

    def renew(self, lease: int) -> None:
        """Have a lease last its whole time again."""
        answer = self._ask("lease/keepalive", {"ID": str(lease)})
        if int(answer.get("result", {}).get("TTL", 0)) <= 0:
            raise LeaseExpiredError(f"there is no lease {lease}")

    def revoke(self, lease: int) -> None:
        """End a lease, and delete what is bound to it."""
        with contextlib.suppress(LeaseExpiredError):
            self._ask("lease/revoke", {"ID": str(lease)})

    def changes(self, prefix: str, after: int, *, wait: float) -> Changes:
        """What happened to keys with this prefix after a revision."""
        request = {"create_request": {**_range(prefix), "start_revision": str(after + 1)}}
        entries: dict[str, Entry | None] = {}
        last = after
        with self._open_stream(request, wait) as lines:
            for line in lines:
                result = _result(line)
                for event in result.get("events", ()):
                    entry = _entry(event["kv"])
                    # The header may be ahead of the events, the events never are.
                    last = max(last, entry.revision)
                    entries[entry.key] = None if event.get("type") == "DELETE" else entry
                if entries:
                    break
        return Changes(
            last,
            tuple(entry for entry in entries.values() if entry is not None),
            tuple(key for key, entry in entries.items() if entry is None),
        )

    def close(self) -> None:
        """Let go of the connections; a wait for changes ends with an error."""
        with self._lock:
            self._closed = True
            stream = self._stream
        if stream is not None:
            # The thread that waits closes it; here it is only woken.
            with contextlib.suppress(Exception):
                stream.raw.shutdown()
        self._calls.close()

    def _ask(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        deadline = time.monotonic() + self._answer_within
        self._check_open()
        while True:
            try:
                return self._calls.post(path, body)
            except StoreUnreachableError:
                is_last = not self._calls.try_next()
                if time.monotonic() >= deadline:
                    raise
                if is_last:
                    # None answers, as while they choose a new leader; that takes a second.
                    time.sleep(_PAUSE)

    def _check_open(self) -> None:
        if self._closed:
            raise StoreUnreachableError("the connection to etcd was closed")

    @contextlib.contextmanager
    def _open_stream(self, request: dict[str, Any], wait: float) -> Iterator[Iterator[bytes]]:
        """The lines of a streamed answer, up to when none comes for ``wait`` seconds."""
        try:
            response = self._watching.stream("watch", request, wait)
        except StoreUnreachableError:
            self._watching.try_next()
            raise
        with self._lock:
            self._stream = response
        try:
            self._check_open()
            yield self._lines(response)
        except StoreUnreachableError:
            # Maybe it does not know us any more, of which a watch is told as of anything else.
            self._watching.forget_token()
            raise
        finally:
            with self._lock:
                self._stream = None
            response.close()
            if self._closed:
                self._watching.close()

    def _lines(self, response: requests.Response) -> Iterator[bytes]:
        try:
            # A part of the answer is yielded when it comes, however short it is.
            yield from (line for line in response.iter_lines(_CHUNK) if line)
        except requests.RequestException as error:
            if "timed out" in str(error).lower():
                return
            self._watching.try_next()
            raise StoreUnreachableError(f"etcd broke off: {error}") from error
        # A stream that ends by itself is a member that goes down.
        self._watching.try_next()
        raise StoreUnreachableError(f"etcd at {self._watching.name} ended its answer")


def _result(line: bytes) -> dict[str, Any]:
    """One part of a watch's answer."""
    answer = json.loads(line)
    if "result" not in answer:
        raise StoreUnreachableError(f"etcd cannot watch: {answer.get('error', answer)}")
    result: dict[str, Any] = answer["result"]
    if "compact_revision" in result:
        raise RevisionGoneError("etcd has let go of that revision")
    if result.get("canceled"):
        raise StoreUnreachableError(f"etcd cannot watch: {result.get('cancel_reason')}")
    return result


def _range(prefix: str) -> dict[str, Any]:
    """All keys that begin with ``prefix``: up to the next text of its length."""
    first = prefix.encode()
    last = first[:-1] + bytes([first[-1] + 1])
    return {
        "key": base64.b64encode(first).decode(),
        "range_end": base64.b64encode(last).decode(),
    }


def _entry(found: dict[str, Any]) -> Entry:
    return Entry(
        _decode(found["key"]),
        _decode(found.get("value", "")),
        int(found.get("create_revision", 0)),
        int(found["mod_revision"]),
    )


def _revision(answer: dict[str, Any]) -> int:
    return int(answer["header"]["revision"])


def _encode(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decode(text: str) -> str:
    return base64.b64decode(text).decode()
