"""Who a launcher is to an etcd, and how it knows the etcd: user, password, certificates.

Pure. The password never appears in a message, a ``repr`` or a worker's environment. It has no flag,
since others could read that in the list of processes; in the address of the master it is taken, for
those who get that from elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from urllib.parse import unquote

from rankspawn.plan.environ import ETCD_PASSWORD_VARIABLE

_USER_VARIABLE = "RANKSPAWN_ETCD_USER"


@dataclass(frozen=True, slots=True)
class EtcdAccess:
    """What it takes to be let in.

    Attributes:
        user: Empty where the etcd asks for none.
        password: The user's.
        uses_tls: Whether the members are spoken to over TLS.
        ca: The file with the authority that the members' certificates are from; empty for those
            that come with the client.
        cert: The file with this client's certificate; empty for none.
        key: The file with its key; empty if that is in ``cert``.
    """

    user: str = ""
    password: str = field(default="", repr=False)
    uses_tls: bool = False
    ca: str = ""
    cert: str = ""
    key: str = ""

    def completed(self, environ: Mapping[str, str]) -> EtcdAccess:
        """The same, with what was not given from variables: ours, or those of ``etcdctl``."""
        found = self
        if not self.user:
            user, _, password = environ.get("ETCDCTL_USER", "").partition(":")
            user = environ.get(_USER_VARIABLE) or user
            found = replace(found, user=user, password=found.password or password)
        if found.user and not found.password:
            password = environ.get(ETCD_PASSWORD_VARIABLE) or environ.get("ETCDCTL_PASSWORD", "")
            found = replace(found, password=password)
        if not found.uses_tls:
            return found
        return replace(
            found,
            ca=found.ca or environ.get("ETCDCTL_CACERT", ""),
            cert=found.cert or environ.get("ETCDCTL_CERT", ""),
            key=found.key or environ.get("ETCDCTL_KEY", ""),
        )

    @property
    def files(self) -> dict[str, str]:
        """The files that are needed, by what they are called."""
        named = {"--etcd_ca": self.ca, "--etcd_cert": self.cert, "--etcd_key": self.key}
        return {name: path for name, path in named.items() if path}


def split_user(text: str) -> tuple[str, str, str]:
    """User, password and the rest of ``user:password@host:port,…``; the first two may be empty."""
    info, _, rest = text.rpartition("@")
    user, _, password = info.partition(":")
    return unquote(user), unquote(password), rest


def without_secrets(text: str) -> str:
    """An address as it may be shown: without what stands before an ``@``."""
    if "@" not in text:
        return text
    scheme, found, rest = text.partition("://")
    return (
        f"{scheme}{found}…@{rest.rpartition('@')[2]}" if found else f"…@{text.rpartition('@')[2]}"
    )
