"""Finding the store of a job: served by this node, by another one, or by etcd; and addresses."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from rankspawn.launch.rendezvous.client import MasterStore
from rankspawn.launch.rendezvous.etcd_access import EtcdAccess, split_user, without_secrets
from rankspawn.launch.rendezvous.master import ConnectionLimits, Master
from rankspawn.launch.rendezvous.store import Store
from rankspawn.launch.rendezvous.wire import derive_key
from rankspawn.plan.devices import Machine
from rankspawn.plan.environ import ETCD_PASSWORD_VARIABLE
from rankspawn.plan.topology import is_here, is_loopback, join

logger: logging.Logger = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
# Each node has one connection for its requests and one to wait for changes.
_CONNECTIONS_PER_NODE = 2
ETCD_PORT = 2379
# An address of a block that is kept for documentation: nothing is sent to it, but asking for the
# way there tells which address this machine shows to others.
_SOMEWHERE = ("192.0.2.1", "2001:db8::1")


class AddressError(ValueError):
    """An address that cannot be meant, and why."""


@dataclass(frozen=True, slots=True)
class MasterAddress:
    """What ``--master`` says.

    Attributes:
        is_etcd: An etcd cluster; else an embedded master.
        endpoints: Hosts and ports; one, unless it is etcd.
        access: Who this is to an etcd, as far as the address says it.
    """

    is_etcd: bool
    endpoints: tuple[tuple[str, int], ...]
    access: EtcdAccess = field(default_factory=EtcdAccess)

    @property
    def host(self) -> str:
        """The host of the first endpoint."""
        return self.endpoints[0][0]

    @property
    def port(self) -> int:
        """The port of the first endpoint."""
        return self.endpoints[0][1]

    def __str__(self) -> str:
        return ",".join(join(*endpoint) for endpoint in self.endpoints)


@dataclass(slots=True)
class OpenStore:
    """A job's store, and what this node has to do with it.

    Attributes:
        store: Not connected yet; whoever waits for it does so in a session.
        address: What the other nodes are to give as ``--master``.
        host: The address at which this node is reached.
        master: The embedded master, if this node serves it; close it last.
        try_to_serve: Makes one, where this node would have served had nobody been there; None
            as long as somebody is.
    """

    store: Store
    address: str
    host: str
    master: Master | None = None
    try_to_serve: Callable[[], Master | None] | None = None

    def serve_if_free(self) -> None:
        """Serve the store here if whoever did before is gone, and it is this node's to do."""
        if self.master is None and self.try_to_serve is not None:
            with contextlib.suppress(OSError):  # such as an address that is gone for a while
                self.master = self.try_to_serve()

    def close(self) -> None:
        """Let go of the store, and end the master if this node serves it."""
        self.store.close()
        if self.master is not None:
            self.master.close()


def open_store(
    master: str | None,
    *,
    secret: str,
    job_id: str,
    machine: Machine,
    node_rank: int = -1,
    host: str | None = None,
    max_nodes: int = 2,
    expected: Sequence[str] = (),
    answer_within: float = 2.0,
    etcd: EtcdAccess | None = None,
) -> OpenStore:
    """Serve the store, or find out where it is. Does not wait for anybody.

    A node serves if the master's address is its own and nobody serves there yet, so the same
    command works on every node, and several nodes can be tried out on one machine. One that was
    given a rank other than 0 never serves.

    Args:
        master: As the user gave it; None to serve at an address of this machine's.
        secret: The job's token; not used with etcd.
        job_id: Which job.
        machine: This one.
        node_rank: The rank that the user gave this node; -1 for none.
        host: The address that the user gave for this node.
        max_nodes: How many nodes may come.
        expected: The nodes' addresses, if they are known.
        answer_within: Seconds that a request may take.
        etcd: The certificates that the user named for an etcd.

    Raises:
        AddressError: An address that cannot be meant, such as loopback for another machine.
        OSError: The master cannot listen.
        ImportError: The client for etcd is not installed.
    """
    key = derive_key(secret, job_id)
    if master is None:
        return _serve_anywhere(key, host, max_nodes, answer_within)
    where = read_master(master)
    if where.is_etcd:
        return _open_etcd(where, etcd or EtcdAccess(), host, answer_within)
    if etcd is not None and etcd.files:
        raise AddressError(f"{next(iter(etcd.files))} is for --master etcds://host:port")
    _check_reachable(where, [*expected, *([] if host is None else [host])], machine)
    master_is_here = is_here(where.host, machine)
    if host is not None and is_loopback(host) and not master_is_here:
        raise AddressError(
            f"--host {host} cannot be reached from the master's machine, {where.host}: give the "
            "address at which the other nodes reach this one"
        )
    try_to_serve = None
    if (master_is_here and node_rank <= 0) or node_rank == 0:
        try_to_serve = partial(_try_to_serve, where, key, machine, max_nodes, here=master_is_here)
        served = try_to_serve()
        if served is not None:
            if host is None and master_is_here and served.host == "0.0.0.0":
                _warn_about_own_name(where.host, machine)
            return _served(served, where, key, host, answer_within)
    store = MasterStore(where.host, where.port, key, answer_within=answer_within)
    # A name that cannot be resolved yet, as of a pod that is just starting, tells nothing.
    own = host or address_towards(where.host, where.port) or outward_address() or LOOPBACK
    return OpenStore(store, str(where), own, try_to_serve=try_to_serve)


def _serve_anywhere(
    key: bytes, host: str | None, max_nodes: int, answer_within: float
) -> OpenStore:
    own = host or outward_address() or LOOPBACK
    try:
        served = _serve(own, 0, key, max_nodes)
    except OSError as error:
        if error.errno != errno.EADDRNOTAVAIL:
            raise
        # The address by which the others reach this machine is translated on the way.
        served = _serve("", 0, key, max_nodes)
    where = MasterAddress(False, ((own, served.port),))
    return _served(served, where, key, host, answer_within)


def _served(
    served: Master, where: MasterAddress, key: bytes, host: str | None, answer_within: float
) -> OpenStore:
    listens_everywhere = served.host in ("0.0.0.0", "::")
    near = LOOPBACK if listens_everywhere else served.host
    store = MasterStore(near, served.port, key, answer_within=answer_within)
    own = host or (outward_address() or where.host if listens_everywhere else served.host)
    return OpenStore(store, str(where), own, served)


def _try_to_serve(
    where: MasterAddress, key: bytes, machine: Machine, max_nodes: int, *, here: bool
) -> Master | None:
    """A master at this address; None if another process listens there."""
    try:
        return _serve(_listening_host(where.host, machine, here), where.port, key, max_nodes)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return None
        raise OSError(
            error.errno, f"the master cannot listen at {where}: {os.strerror(error.errno or 0)}"
        ) from error


def _listening_host(host: str, machine: Machine, here: bool) -> str:
    """The address of this machine that ``host`` stands for; empty for all that it has."""
    if not here:
        # Node 0 by its rank, behind an address that something else translates to it, such as
        # that of a Kubernetes service.
        return ""
    found = machine.resolve(host) or {host}
    outward = sorted(
        found & machine.addresses() - {address for address in found if is_loopback(address)}
    )
    if outward:
        return outward[0]
    if is_loopback(host):
        return LOOPBACK if host == "localhost" else host
    # Some systems resolve their own name to 127.0.1.1, at which nobody else reaches them. Others
    # have another address for it, and that of the default route need not be the one.
    return ""


def _warn_about_own_name(name: str, machine: Machine) -> None:
    """Say which of several addresses the others are told, where the name tells none."""
    ways = sorted(way for way in machine.addresses() if not is_loopback(way) and ":" not in way)
    if len(ways) > 1:
        logger.warning(
            "%s is a loopback address on this machine, which has %s: the other nodes are told to "
            "reach it at %s; if that is wrong, name the right one with --host",
            name,
            ", ".join(ways),
            outward_address() or name,
        )


def _serve(host: str, port: int, key: bytes, max_nodes: int) -> Master:
    connections = _CONNECTIONS_PER_NODE * max_nodes
    # All nodes may come at once, and then again while the master still counts the first ones.
    connection_limits = ConnectionLimits(
        strangers=max(ConnectionLimits().strangers, connections), trusted=max(64, 2 * connections)
    )
    _make_room(connection_limits)
    return Master(host, port, key, connection_limits=connection_limits)


def _make_room(connection_limits: ConnectionLimits) -> None:
    from rankspawn.descriptors import make_room_for_descriptors

    # Without it there is room for fewer nodes at a time; the rest try again.
    with contextlib.suppress(OSError, ValueError):
        make_room_for_descriptors(connection_limits.trusted + connection_limits.strangers)


def _check_reachable(where: MasterAddress, hosts: Sequence[str], machine: Machine) -> None:
    """Refuse loopback for a job that has nodes elsewhere, as far as that is known."""
    if not is_loopback(where.host):
        return
    elsewhere = [host for host in hosts if not is_here(host, machine)]
    if elsewhere:
        raise AddressError(
            f"--master {where} means this machine only, but the job has a node at {elsewhere[0]}: "
            "give the address at which the other nodes reach the master's"
        )


def _open_etcd(
    where: MasterAddress, named: EtcdAccess, host: str | None, answer_within: float
) -> OpenStore:
    from rankspawn.launch.rendezvous.etcd import EtcdStore

    access = _etcd_access(where.access, named)
    store = EtcdStore(where.endpoints, answer_within=answer_within, access=access)
    ways = (address_towards(*endpoint) for endpoint in where.endpoints)
    found = [way for way in ways if way is not None]
    # An etcd on this machine is reached over loopback, by which nobody else reaches this node.
    outward = [way for way in found if not is_loopback(way)]
    own = host or next(iter(outward or found), None) or outward_address() or LOOPBACK
    scheme = "etcds" if access.uses_tls else "etcd"
    return OpenStore(store, f"{scheme}://{where}", own)


def _etcd_access(told: EtcdAccess, named: EtcdAccess) -> EtcdAccess:
    """What it takes to be let in: from the address, from flags and from variables."""
    if named.files and not told.uses_tls:
        raise AddressError(
            f"{next(iter(named.files))} is for an etcd that is spoken to over TLS: write "
            "--master etcds://host:port"
        )
    access = replace(told, ca=named.ca, cert=named.cert, key=named.key).completed(os.environ)
    for name, path in access.files.items():
        if not os.access(path, os.R_OK):
            raise AddressError(f"{name} {path} cannot be read")
    if access.files:
        _check_certificates(access)
    if access.user and not access.password:
        raise AddressError(
            f"there is no password for the user {access.user} of etcd: set "
            f"{ETCD_PASSWORD_VARIABLE}, the same on every node"
        )
    return access


def _check_certificates(access: EtcdAccess) -> None:
    """Refuse files that do not fit: later they would look like an etcd that does not answer."""
    import ssl

    if access.key and not access.cert:
        raise AddressError("--etcd_key is the key of a certificate: name that with --etcd_cert")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        if access.cert:
            # With a password, so that OpenSSL does not ask the terminal for one.
            context.load_cert_chain(access.cert, access.key or None, password="")
    except OSError as error:
        raise AddressError(
            f"--etcd_cert {access.cert} cannot be used ({error}): it needs its own key, which is "
            "not encrypted, in --etcd_key or in the same file"
        ) from error
    try:
        if os.path.isfile(access.ca):
            context.load_verify_locations(access.ca)
    except OSError as error:
        raise AddressError(f"--etcd_ca {access.ca} is no certificate ({error})") from error


def read_master(text: str) -> MasterAddress:
    """``host:port``, ``http://host:port`` or ``etcd://[user:password@]host:port[,host:port…]``.

    Raises:
        AddressError: It is none of these.
    """
    shown = without_secrets(text)
    scheme, found, rest = text.partition("://")
    scheme, rest = (scheme, rest) if found else ("", text)
    if found and scheme not in ("http", "etcd", "etcds", "tcp"):
        raise AddressError(
            f"--master {shown!r}: {scheme}:// is not known; give host:port, http://host:port or "
            "etcd://host:port[,host:port…]"
        )
    is_etcd = scheme in ("etcd", "etcds")
    user, password, rest = split_user(rest)
    if user and not is_etcd:
        raise AddressError(f"--master {shown!r} names a user; only etcd:// has any")
    endpoints = rest.rstrip("/").split(",")
    if len(endpoints) > 1 and not is_etcd:
        raise AddressError(f"--master {shown!r} names several masters; only etcd:// has several")
    port = ETCD_PORT if is_etcd else None
    return MasterAddress(
        is_etcd,
        tuple(_read_endpoint(endpoint.strip(), port, shown) for endpoint in endpoints),
        EtcdAccess(user, password, uses_tls=scheme == "etcds"),
    )


def _read_endpoint(endpoint: str, default: int | None, text: str) -> tuple[str, int]:
    host, colon, port = endpoint.rpartition(":")
    if not colon or endpoint.endswith("]"):
        host, port = endpoint, "" if default is None else str(default)
    if not host or not (port.isascii() and port.isdecimal()) or not 0 < int(port) < 65536:
        raise AddressError(f"--master {text!r}: {endpoint!r} is no host:port")
    return host.strip("[]"), int(port)


def address_towards(host: str, port: int) -> str | None:
    """The address that this machine shows to ``host``; None if there is no way there."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
    except OSError:
        return None
    for family, kind, protocol, _, where in found:
        try:
            # A datagram socket that is connected sends nothing; it only looks up the way.
            with socket.socket(family, kind, protocol) as probe:
                probe.connect(where)
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
    return None


def outward_address() -> str | None:
    """The address that this machine shows to the rest of the world, if it has one."""
    for somewhere in _SOMEWHERE:
        found = address_towards(somewhere, 9)
        if found is not None and not is_loopback(found):
            return found
    return None


def machine_id() -> str:
    """The same text for processes that reach each other over loopback, and for no others."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot = file.read().strip()
        # Two containers, or two network namespaces, of one machine have each their own loopback.
        return f"{boot}/{os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return socket.gethostname()
