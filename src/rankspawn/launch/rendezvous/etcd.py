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

from rankspawn.launch.rendezvous.store import (
    Changes,
    Entry,
    Lease,
    LeaseExpiredError,
    RevisionGoneError,
    Snapshot,
    StoreRefusedError,
    StoreUnreachableError,
)
from rankspawn.plan.topology import join

try:
    import requests
    from etcd3gw import exceptions
    from etcd3gw.client import Etcd3Client
except ImportError as _error:
    raise ImportError(
        "--master etcd://… needs a client for etcd, which is not installed: "
        "pip install 'rankspawn[etcd]'"
    ) from _error

_API = "/v3/"
_CHUNK = 1 << 16
# Between two rounds of asking all members.
_PAUSE = 0.05
# gRPC's code for what does not exist, such as a lease that has ended.
_NOT_FOUND = 5


class EtcdStore:
    """A store of several jobs; see :class:`~rankspawn.launch.rendezvous.store.Store`.

    Nothing is connected before the first call.

    Args:
        endpoints: Host and port of some of the cluster's members.
        answer_within: Seconds that a request may take, with all members that are tried.
    """

    def __init__(self, endpoints: Sequence[tuple[str, int]], *, answer_within: float = 2.0) -> None:
        self._endpoints = list(endpoints)
        self._answer_within = answer_within
        # So that there is time to ask another one when a member hangs.
        self._member_seconds = answer_within / min(2, len(self._endpoints))
        self._calls = _Members(self._endpoints, self._member_seconds)
        self._watching = _Members(self._endpoints, self._member_seconds)
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
        if self._closed:
            raise StoreUnreachableError("the connection to etcd was closed")
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
            closed = self._closed
        try:
            if closed:
                raise StoreUnreachableError("the connection to etcd was closed")
            yield self._lines(response)
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


class _Members:
    """The members of a cluster, one of which is asked; for one thread at a time."""

    def __init__(self, endpoints: Sequence[tuple[str, int]], seconds: float) -> None:
        self._endpoints = list(endpoints)
        self._seconds = seconds
        self._at = 0
        self._lock = threading.RLock()
        self._session = requests.Session()
        # Loopback and cluster traffic must not go through a proxy of the environment.
        self._session.trust_env = False
        # A member that has lost the others says so instead of waiting for them.
        self._session.headers["Grpc-Metadata-hasleader"] = "true"

    @property
    def name(self) -> str:
        return join(*self._endpoints[self._at])

    def try_next(self) -> bool:
        """Ask another member from now on; False when all have had their turn."""
        with self._lock:
            self._at = (self._at + 1) % len(self._endpoints)
            return self._at != 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        with self._lock:
            try:
                client = self._client()
                answer: dict[str, Any] = client.post(client.get_url(path), json=body)
            except exceptions.Etcd3Exception as error:
                raise self._translate(error) from error
            except requests.RequestException as error:
                raise StoreUnreachableError(f"etcd at {self.name}: {error}") from error
        return answer

    def stream(self, path: str, body: dict[str, Any], wait: float) -> requests.Response:
        client = self._client()
        try:
            response = self._session.post(
                client.get_url(path), json=body, stream=True, timeout=(self._seconds, wait)
            )
        except requests.RequestException as error:
            raise StoreUnreachableError(f"etcd at {self.name} does not answer") from error
        if response.status_code != requests.codes["ok"]:
            text = response.text
            response.close()
            raise StoreUnreachableError(f"etcd at {self.name}: {text}")
        return response

    def close(self) -> None:
        self._session.close()

    def _client(self) -> Etcd3Client:
        host, port = self._endpoints[self._at]
        return Etcd3Client(host, port, timeout=self._seconds, api_path=_API, session=self._session)

    def _translate(self, error: exceptions.Etcd3Exception) -> Exception:
        # What the member sent; the message has only HTTP's words for it.
        text = str(error.detail_text or error)
        with contextlib.suppress(ValueError, AttributeError):
            answer = json.loads(text)
            if answer.get("code") == _NOT_FOUND:
                return LeaseExpiredError(str(answer.get("error")))
            text = str(answer.get("error", text))
        if isinstance(error, exceptions.ConnectionFailedError | exceptions.ConnectionTimeoutError):
            return StoreUnreachableError(f"etcd at {self.name} does not answer")
        if isinstance(error, exceptions.InternalServerError):
            return StoreUnreachableError(f"etcd at {self.name}: {text}")
        return StoreRefusedError(f"etcd at {self.name}: {text}")


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
