"""The members of an etcd cluster: one of them is asked, as somebody it knows.

Where the etcd has users, a request carries a token that their password is exchanged for. A member
that does not know it any more, after a while or a restart, gets the password again.
"""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Sequence
from typing import Any

import requests
from etcd3gw import exceptions
from etcd3gw.client import Etcd3Client

from rankspawn.launch.rendezvous.etcd_access import EtcdAccess
from rankspawn.launch.rendezvous.store import (
    LeaseExpiredError,
    StoreRefusedError,
    StoreUnreachableError,
)
from rankspawn.plan.topology import join

_API = "/v3/"
# gRPC's codes: for what does not exist, such as a lease that has ended, and for a token that is
# not known; and what etcd says when users were changed since it was given out.
_NOT_FOUND = 5
_UNAUTHENTICATED = 16
_OLD_USERS = "revision of auth store is old"
# What etcd says where it has no users, so that a password is not needed.
_NO_USERS = "authentication is not enabled"
# What does not become better by trying again: the one side does not trust the other, or speaks
# no TLS.
_DISTRUST = (
    "CERTIFICATE_VERIFY_FAILED",
    "certificate verify failed",
    "WRONG_VERSION_NUMBER",
    "record layer failure",
    "alert certificate required",
    "alert bad certificate",
    "alert unknown ca",
    "BAD_CERTIFICATE",
    "CERTIFICATE_REQUIRED",
    "UNKNOWN_CA",
)


class _UnknownTokenError(Exception):
    """The member does not know the token (any more)."""


class Members:
    """The members of a cluster, one of which is asked; for one thread at a time."""

    def __init__(
        self, endpoints: Sequence[tuple[str, int]], seconds: float, access: EtcdAccess
    ) -> None:
        self._endpoints = list(endpoints)
        self._seconds = seconds
        self._access = access
        self._at = 0
        self._lock = threading.RLock()
        self._session = requests.Session()
        # Loopback and cluster traffic must not go through a proxy of the environment.
        self._session.trust_env = False
        # A member that has lost the others says so instead of waiting for them.
        self._session.headers["Grpc-Metadata-hasleader"] = "true"
        if access.ca:
            self._session.verify = access.ca
        if access.cert:
            self._session.cert = (access.cert, access.key) if access.key else access.cert

    @property
    def name(self) -> str:
        """Host and port of the member that is asked."""
        return join(*self._endpoints[self._at])

    def try_next(self) -> bool:
        """Ask another member from now on; False when all have had their turn."""
        with self._lock:
            self._at = (self._at + 1) % len(self._endpoints)
            return self._at != 0

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The answer of the member that is asked."""
        with self._lock:
            self._log_in()
            try:
                return self._post(path, body)
            except _UnknownTokenError:
                self.forget_token()
                self._log_in()
            try:
                return self._post(path, body)
            except _UnknownTokenError as error:
                raise StoreRefusedError(f"etcd at {self.name}: {error}") from error

    def stream(self, path: str, body: dict[str, Any], wait: float) -> requests.Response:
        """An answer that comes in parts, with at most ``wait`` seconds between two of them."""
        with self._lock:
            self._log_in()
        client = self._client()
        try:
            response = self._session.post(
                client.get_url(path), json=body, stream=True, timeout=(self._seconds, wait)
            )
        except requests.RequestException as error:
            raise self._trouble(error) from error
        if response.status_code != requests.codes["ok"]:
            text = response.text
            response.close()
            self.forget_token()
            raise StoreUnreachableError(f"etcd at {self.name}: {text}")
        return response

    def forget_token(self) -> None:
        """Give the password again before the next request."""
        with self._lock:
            self._session.headers.pop("Authorization", None)

    def close(self) -> None:
        """Let go of the connections."""
        self._session.close()

    def _log_in(self) -> None:
        """Exchange the password for a token, unless there is one, or none is needed."""
        access = self._access
        if not access.user or "Authorization" in self._session.headers:
            return
        try:
            body = {"name": access.user, "password": access.password}
            answer = self._post("auth/authenticate", body)
        except StoreRefusedError as error:
            if _NO_USERS not in str(error):
                raise
            self._access = EtcdAccess(uses_tls=access.uses_tls)
        else:
            self._session.headers["Authorization"] = answer["token"]

    def _post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            client = self._client()
            answer: dict[str, Any] = client.post(client.get_url(path), json=body)
        except exceptions.Etcd3Exception as error:
            raise self._translate(error) from error
        except requests.RequestException as error:
            raise self._trouble(error) from error
        return answer

    def _client(self) -> Etcd3Client:
        host, port = self._endpoints[self._at]
        protocol = "https" if self._access.uses_tls else "http"
        return Etcd3Client(
            host, port, protocol, timeout=self._seconds, api_path=_API, session=self._session
        )

    def _translate(self, error: exceptions.Etcd3Exception) -> Exception:
        if isinstance(error, exceptions.ConnectionFailedError | exceptions.ConnectionTimeoutError):
            # It was raised for one of requests', whose words its own are not.
            return self._trouble(error.__context__ or error)
        # What the member sent; the message has only HTTP's words for it.
        text = str(error.detail_text or error)
        with contextlib.suppress(ValueError, AttributeError):
            answer = json.loads(text)
            text = str(answer.get("error", text))
            if answer.get("code") == _NOT_FOUND:
                return LeaseExpiredError(text)
            if answer.get("code") == _UNAUTHENTICATED or _OLD_USERS in text:
                return _UnknownTokenError(text)
        if isinstance(error, exceptions.InternalServerError):
            return StoreUnreachableError(f"etcd at {self.name}: {text}")
        return StoreRefusedError(f"etcd at {self.name}: {text}{_hint(text)}")

    def _trouble(self, error: BaseException) -> Exception:
        """No answer; for ever, if that is because one side does not trust the other."""
        if any(words in str(error) for words in _DISTRUST):
            return StoreRefusedError(f"etcd at {self.name}: {error}{_hint(str(error))}")
        # So does a member that goes down, so it is tried again.
        if "closed connection without response" in str(error) and not self._access.uses_tls:
            why = "hangs up: if it is spoken to over TLS, write etcds:// in place of etcd://"
            return StoreUnreachableError(f"etcd at {self.name} {why}")
        return StoreUnreachableError(f"etcd at {self.name} does not answer")


def _hint(text: str) -> str:
    """What the user can do about it."""
    if "user name is empty" in text or "invalid user ID or password" in text:
        return ": set RANKSPAWN_ETCD_USER and RANKSPAWN_ETCD_PASSWORD, the same on every node"
    if "WRONG_VERSION_NUMBER" in text or "record layer failure" in text:
        return ": it speaks no TLS; write etcd:// in place of etcds://"
    if "erify failed" in text or "VERIFY_FAILED" in text:
        return ": name the authority that its certificate is from with --etcd_ca"
    if any(words in text for words in _DISTRUST):
        return ": it asks for a certificate of its own authority, see --etcd_cert and --etcd_key"
    return ""
