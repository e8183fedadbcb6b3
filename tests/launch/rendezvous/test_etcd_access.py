"""An etcd that has users, and is spoken to over TLS; what is shown of its password."""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from rankspawn.launch.config import read_config
from rankspawn.launch.rendezvous.etcd_access import EtcdAccess, without_secrets
from rankspawn.launch.rendezvous.store import StoreRefusedError, StoreUnreachableError
from rankspawn.launch.rendezvous.stores import AddressError, open_store, read_master
from tests.jobs import DEADLOCK
from tests.launch.members import Job
from tests.launch.rendezvous.etcds import Certificates, Etcd, running_etcd, why_no_etcd
from tests.launch.running import rankrun, write_script
from tests.plan.conftest import FakeMachine

PASSWORD = "p@ss:w/rd,1"
QUOTED = "p%40ss%3Aw%2Frd%2C1"


class TestAddress:
    def test_with_a_user(self) -> None:
        where = read_master(f"etcds://trainer:{QUOTED}@a:1,b")
        assert where.endpoints == (("a", 1), ("b", 2379))
        assert where.access == EtcdAccess("trainer", PASSWORD, uses_tls=True)

    def test_a_password_that_is_not_quoted(self) -> None:
        assert read_master(f"etcd://trainer:{PASSWORD}@a").access.password == PASSWORD

    @pytest.mark.parametrize(
        "text",
        [
            "etcd://trainer:hunter2@a:x",
            "trainer:hunter2@a:1",
            "http://trainer:hunter2@a:1",
            "ftp://trainer:hunter2@a:1",
            "etcd://trainer:hunter2@",
        ],
    )
    def test_no_error_has_the_password(self, text: str) -> None:
        with pytest.raises(AddressError) as caught:
            read_master(text)
        assert "hunter2" not in str(caught.value)

    def test_nothing_shows_it(self) -> None:
        text = "etcd://trainer:hunter2@a:1"
        assert without_secrets(text) == "etcd://…@a:1"
        for shown in (read_master(text), read_config(["--master", text, "train.py"], {})):
            assert "hunter2" not in f"{shown!r} {shown}"

    def test_no_worker_has_it(self, tmp_path: Path) -> None:
        write_script(tmp_path, "import os; print(os.environ.get('RANKSPAWN_ETCD_PASSWORD'))")
        done = rankrun(
            tmp_path, "--nproc_per_node", "1", "train.py", RANKSPAWN_ETCD_PASSWORD=PASSWORD
        )
        assert done.output == "None\n"


class TestFound:
    def test_in_variables(self) -> None:
        environ = {"RANKSPAWN_ETCD_USER": "trainer", "RANKSPAWN_ETCD_PASSWORD": "hunter2"}
        assert EtcdAccess().completed(environ) == EtcdAccess("trainer", "hunter2")
        other = EtcdAccess("other", "secret")
        assert other.completed(environ) == other
        assert EtcdAccess("other").completed(environ) == EtcdAccess("other", "hunter2")

    @pytest.mark.parametrize(
        "user",
        [
            {"ETCDCTL_USER": "trainer:hunter2"},
            {"ETCDCTL_USER": "trainer", "ETCDCTL_PASSWORD": "hunter2"},
        ],
    )
    def test_in_those_of_etcdctl(self, user: dict[str, str]) -> None:
        files = {"ETCDCTL_CACERT": "ca", "ETCDCTL_CERT": "cert", "ETCDCTL_KEY": "key"}
        found = EtcdAccess(uses_tls=True, ca="mine").completed(user | files)
        assert found == EtcdAccess("trainer", "hunter2", True, "mine", "cert", "key")
        assert EtcdAccess().completed(user | files) == EtcdAccess("trainer", "hunter2")


@pytest.mark.parametrize(
    ("master", "access", "message"),
    [
        ("etcd://a", EtcdAccess(ca="ca.pem"), r"--etcd_ca is for .*etcds://"),
        ("a:1", EtcdAccess(cert="c.pem"), r"--etcd_cert is for --master etcds://"),
        ("etcds://a", EtcdAccess(ca="/no/such"), r"--etcd_ca /no/such cannot be read"),
        ("etcd://trainer@a", EtcdAccess(), r"no password for the user trainer"),
    ],
)
def test_what_cannot_be_meant(
    master: str, access: EtcdAccess, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RANKSPAWN_ETCD_PASSWORD", raising=False)
    monkeypatch.delenv("ETCDCTL_PASSWORD", raising=False)
    pytest.importorskip("etcd3gw")
    with pytest.raises(AddressError, match=message):
        open_store(master, secret="x" * 16, job_id="job", machine=FakeMachine(), etcd=access)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> list[Certificates]:
    """Of two authorities that do not know each other; the first one's etcd asks clients for one."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folders = [tmp_path_factory.mktemp("authority") for _ in range(2)]
    return [Certificates(folder, of_clients=True) for folder in folders]


@pytest.mark.parametrize(
    ("cert", "key", "message"),
    [
        ("own", "", r"--etcd_cert .* cannot be used .*own key.*--etcd_key"),
        ("own", "another", r"--etcd_cert .* cannot be used .*own key"),
        ("own", "encrypted", r"cannot be used .*not encrypted"),
        ("", "own", r"--etcd_key is the key of a certificate"),
    ],
)
def test_a_certificate_without_its_key(
    made: list[Certificates], tmp_path: Path, cert: str, key: str, message: str
) -> None:
    pytest.importorskip("etcd3gw")
    encrypted = str(tmp_path / "encrypted.key")
    words = ("ec", "-in", made[0].key, "-out", encrypted, "-aes128", "-passout", "pass:hunter2")
    subprocess.run(["openssl", *words], check=True, capture_output=True)
    keys = {"": "", "own": str(made[0].key), "another": str(made[1].key), "encrypted": encrypted}
    access = EtcdAccess(cert=str(made[0].cert) if cert else "", key=keys[key])
    with pytest.raises(AddressError, match=message):
        open_store("etcds://a", secret="", job_id="job", machine=FakeMachine(), etcd=access)


def test_an_authority_that_is_none(tmp_path: Path) -> None:
    pytest.importorskip("etcd3gw")
    access = EtcdAccess(ca=str(write_script(tmp_path, "no certificate")))
    with pytest.raises(AddressError, match=r"--etcd_ca .* is no certificate"):
        open_store("etcds://a", secret="", job_id="job", machine=FakeMachine(), etcd=access)


@pytest.fixture(scope="module", autouse=True)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Etcd | None]:
    """One etcd for all tests, begun before the first: it is nobody's leftover."""
    is_needed = any(item.get_closest_marker("slow") for item in request.session.items)
    if why_no_etcd() or shutil.which("openssl") is None or not is_needed:
        yield None
        return
    certificates = Certificates(tmp_path_factory.mktemp("certificates"))
    with running_etcd(tmp_path_factory.mktemp("etcd"), 1, certificates) as etcd:
        etcd.have_users("trainer", PASSWORD)
        yield etcd


@pytest.fixture
def etcd(server: Etcd | None) -> Etcd:
    if server is None:
        pytest.skip(why_no_etcd() or "openssl is not installed")
    return server


@pytest.mark.slow
class TestReal:
    def test_a_user_is_let_in(self, etcd: Etcd) -> None:
        from rankspawn.launch.rendezvous.etcd import EtcdStore

        access = replace(etcd.access, user="trainer", password=PASSWORD)
        store = EtcdStore(etcd.endpoints, answer_within=DEADLOCK, access=access)
        with closing(store):
            revision = store.put("a", "1")
            # As after a restart of the etcd, or a long time: the token is not known any more.
            for members in (store._calls, store._watching):
                members._session.headers["Authorization"] = "forged.1"
            assert store.put("a", "2") > revision
            with pytest.raises(StoreUnreachableError, match="invalid auth token"):
                store.changes("a", revision, wait=DEADLOCK)
            (entry,) = store.changes("a", revision, wait=DEADLOCK).entries
            assert entry.value == "2"

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"user": ""}, r"user name is empty.*RANKSPAWN_ETCD_USER"),
            ({"password": "wrong"}, r"invalid user ID or password.*RANKSPAWN_ETCD_PASSWORD"),
            ({"ca": ""}, r"(?i)certificate.verify.failed.*--etcd_ca"),
        ],
    )
    def test_others_are_told_why_not(
        self, etcd: Etcd, changes: dict[str, object], message: str
    ) -> None:
        from rankspawn.launch.rendezvous.etcd import EtcdStore

        access = replace(etcd.access, user="trainer", password=PASSWORD)
        access = replace(access, **changes)  # type: ignore[arg-type]
        store = EtcdStore(etcd.endpoints, answer_within=DEADLOCK, access=access)
        with closing(store), pytest.raises(StoreRefusedError, match=message) as caught:
            store.put("a", "1")
        assert PASSWORD not in str(caught.value)

    def test_one_that_speaks_tls_only_is_recognised(self, etcd: Etcd) -> None:
        from rankspawn.launch.rendezvous.etcd import EtcdStore

        store = EtcdStore(etcd.endpoints, answer_within=0.1)
        with closing(store), pytest.raises(StoreUnreachableError, match=r"write etcds://"):
            store.put("a", "1")

    def test_a_job(self, etcd: Etcd, job: Job) -> None:
        master = etcd.master.replace("://", f"://trainer:{QUOTED}@")
        assert etcd.certificates is not None
        flags = ("--nnodes", "2", "--etcd_ca", str(etcd.certificates.ca), "--log_level", "DEBUG")
        members = [
            job.start(*flags, "--master", master),
            job.start(
                *flags,
                "--master",
                etcd.master,
                RANKSPAWN_ETCD_USER="trainer",
                RANKSPAWN_ETCD_PASSWORD=PASSWORD,
            ),
        ]
        for worker in job.workers(2):
            assert PASSWORD not in "".join(worker.env.values())
            worker.say("exit 0")
        assert [member.wait() for member in members] == [0, 0]
        for member in members:
            shown = member.read_rest()
            assert QUOTED not in shown
            assert PASSWORD not in shown
            assert f"the nodes meet at {etcd.master}" in shown

    def test_a_wrong_password_ends_a_job(self, etcd: Etcd, job: Job) -> None:
        assert etcd.certificates is not None
        member = job.start(
            *("--nnodes", "2", "--etcd_ca", str(etcd.certificates.ca)),
            *("--master", etcd.master.replace("://", "://trainer:hunter2@")),
        )
        assert member.wait() != 0
        shown = member.read_rest()
        assert "invalid user ID or password" in shown
        assert "hunter2" not in shown


@pytest.fixture(scope="class")
def strict(made: list[Certificates], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Etcd]:
    """An etcd that talks only to those who have a certificate of its authority."""
    with running_etcd(tmp_path_factory.mktemp("strict"), 1, made[0]) as etcd:
        yield etcd


@pytest.mark.slow
class TestCertificatesOfClients:
    def test_a_job(self, strict: Etcd, job: Job) -> None:
        files = strict.access.files
        flags = ("--nnodes", "2", "--master", strict.master, *itertools.chain(*files.items()))
        by_variables = {
            "ETCDCTL_CACERT": files["--etcd_ca"],
            "ETCDCTL_CERT": files["--etcd_cert"],
            "ETCDCTL_KEY": files["--etcd_key"],
        }
        members = [job.start(*flags), job.start(*flags[:4], **by_variables)]
        for worker in job.workers(2):
            worker.say("exit 0")
        assert [member.wait() for member in members] == [0, 0]

    @pytest.mark.parametrize("has_one", [False, True], ids=["none", "another authority's"])
    def test_others_end_with_the_reason(
        self, strict: Etcd, job: Job, made: list[Certificates], has_one: bool
    ) -> None:
        own = ("--etcd_cert", str(made[1].cert), "--etcd_key", str(made[1].key))
        flags = ("--nnodes", "2", "--master", strict.master, "--etcd_ca", str(made[0].ca))
        member = job.start(*flags, *(own if has_one else ()))
        assert member.wait() != 0
        assert "it asks for a certificate of its own authority, see --etcd_cert" in member.said
