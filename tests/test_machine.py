"""What a machine shows, on machines made of files."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from rankspawn.machine import RealMachine
from rankspawn.plan.devices import Machine

NO_NVML = "libnvidia-ml-that-does-not-exist.so"


def machine_at(root: Path, files: Mapping[str, str]) -> RealMachine:
    """A machine whose /proc, /sys and /dev hold these files and nothing else."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return RealMachine(
        proc=str(root / "proc"), sys=str(root / "sys"), dev=str(root / "dev"), nvml=NO_NVML
    )


def test_a_real_machine_fits_the_protocol() -> None:
    machine: Machine = RealMachine()
    assert machine.device_count("gpu") >= 0


def test_an_empty_machine_has_no_devices(tmp_path: Path) -> None:
    machine = machine_at(tmp_path, {})
    assert machine.gpu_vendor() is None
    assert [machine.device_count(kind) for kind in ("gpu", "xpu", "npu", "mychip")] == [0] * 4


def test_nvidia_gpus_are_counted_by_the_driver_s_list(tmp_path: Path) -> None:
    files = {f"proc/driver/nvidia/gpus/0000:0{n}:00.0/information": "" for n in range(3)}
    machine = machine_at(tmp_path, files | {"dev/nvidia0": ""})
    assert (machine.gpu_vendor(), machine.device_count("gpu")) == ("nvidia", 3)


def test_nvidia_gpus_are_counted_by_their_nodes(tmp_path: Path) -> None:
    names = ["nvidia0", "nvidia11", "nvidiactl", "nvidia-uvm", "nvidia-modeset"]
    machine = machine_at(tmp_path, {f"dev/{name}": "" for name in names})
    assert (machine.gpu_vendor(), machine.device_count("gpu")) == ("nvidia", 2)


def test_amd_gpus_are_nodes_that_have_simds(tmp_path: Path) -> None:
    nodes = "sys/class/kfd/kfd/topology/nodes"
    files = {
        f"{nodes}/0/properties": "cpu_cores_count 64\nsimd_count 0\n",
        f"{nodes}/1/properties": "cpu_cores_count 0\nsimd_count 304\n",
        f"{nodes}/2/properties": "cpu_cores_count 0\nsimd_count 304\n",
    }
    machine = machine_at(tmp_path, files)
    assert (machine.gpu_vendor(), machine.device_count("gpu")) == ("amd", 2)


@pytest.mark.parametrize(
    ("device_type", "names"),
    [
        ("xpu", ["xpu0", "xpu1", "xpuctrl"]),
        ("npu", ["davinci0", "davinci7", "davinci_manager"]),
        ("mlu", ["cambricon_dev0", "cambricon_dev1", "cambricon_ctl"]),
        ("gcu", ["gcu0", "gcu1", "gcu0vid0"]),
        ("iluvatar_gpu", ["iluvatar2", "iluvatar3", "iluvatarctl"]),
        ("intel_hpu", ["hl0", "hl1", "hl_controlD0"]),
    ],
)
def test_other_devices_are_counted_by_their_nodes(
    device_type: str, names: list[str], tmp_path: Path
) -> None:
    machine = machine_at(tmp_path, {f"dev/{name}": "" for name in names})
    assert machine.device_count(device_type) == 2


def test_a_library_that_is_not_nvml_counts_nothing(tmp_path: Path) -> None:
    dev = tmp_path / "dev"
    assert RealMachine(nvml="libc.so.6", dev=str(dev), proc="", sys="").device_count("gpu") == 0


NVML = """
int nvmlInit_v2(void) {{ return {init}; }}
int nvmlDeviceGetCount_v2(unsigned *count) {{ *count = 5; return {count}; }}
int nvmlShutdown(void) {{ return 0; }}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("init", "count", "expected"), [(0, 0, 5), (9, 0, 2), (0, 3, 2)], ids=["works", "init", "count"]
)
def test_nvml_is_asked_first_and_the_kernel_when_it_fails(
    init: int, count: int, expected: int, tmp_path: Path
) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML.format(init=init, count=count))
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    machine_at(tmp_path, {"dev/nvidia0": "", "dev/nvidia1": ""})
    machine = RealMachine(nvml=str(library), dev=str(tmp_path / "dev"), proc="", sys="")
    assert machine.device_count("gpu") == expected


CGROUPS: list[tuple[str, dict[str, str], int]] = [
    ("nothing is mounted", {}, 16),
    ("no limit", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 16),
    ("v2", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
    ("v2, fraction", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "250000 100000"}, 2),
    ("v2, below one", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "5000 100000"}, 1),
    ("v2, above all", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "9900000 1000"}, 16),
    (
        "v2, the parent is tighter",
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/job/step/cpu.max": "800000 100000\n",
        },
        3,
    ),
    (
        "v2, the child is tighter",
        {
            "proc/self/cgroup": "0::/job/step\n",
            "sys/fs/cgroup/job/cpu.max": "800000 100000\n",
            "sys/fs/cgroup/job/step/cpu.max": "200000 100000\n",
        },
        2,
    ),
    (
        "v2, the path is the host's",
        {"proc/self/cgroup": "0::/docker/4711\n", "sys/fs/cgroup/cpu.max": "600000 100000\n"},
        6,
    ),
    (
        "v2, the path leads out of the namespace",
        {"proc/self/cgroup": "0::/../sibling\n", "sys/fs/cgroup/cpu.max": "600000 100000\n"},
        6,
    ),
    (
        "v1",
        {
            "proc/self/cgroup": "5:memory:/x\n4:cpu,cpuacct:/job\n3:cpuset:/\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_quota_us": "500000\n",
            "sys/fs/cgroup/cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
        },
        5,
    ),
    (
        "v1, nested, no limit below",
        {
            "proc/self/cgroup": "4:cpu:/job/step\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "700000\n",
            "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/cpu/job/step/cpu.cfs_quota_us": "-1\n",
            "sys/fs/cgroup/cpu/job/step/cpu.cfs_period_us": "100000\n",
        },
        7,
    ),
    (
        "both versions",
        {
            "proc/self/cgroup": "4:cpu:/\n0::/job\n",
            "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "900000\n",
            "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            "sys/fs/cgroup/unified/job/cpu.max": "800000 100000\n",
        },
        8,
    ),
    ("garbage", {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "some text\n"}, 16),
]


@pytest.mark.parametrize(
    ("files", "expected"), [case[1:] for case in CGROUPS], ids=[case[0] for case in CGROUPS]
)
def test_cpus_are_cut_by_the_quota(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(pid, 16)))
    assert machine_at(tmp_path, files).cpus() == expected


def test_cpus_are_cut_by_the_affinity(tmp_path: Path) -> None:
    """In a process of its own, since affinity is a matter of the whole process."""
    code = (
        "import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]);"
        "from rankspawn.machine import RealMachine;"
        f"print(RealMachine(proc={str(tmp_path)!r}).cpus())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"


def test_a_system_without_affinity_counts_all_cpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert machine_at(tmp_path, {}).cpus() == 12


def test_loopback_is_among_the_addresses() -> None:
    addresses = RealMachine().addresses()
    assert "127.0.0.1" in addresses
    assert not any("%" in address for address in addresses)


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.1", "::1"])
def test_an_address_stands_for_itself(address: str) -> None:
    assert RealMachine().resolve(address) == {address}


def test_a_name_stands_for_its_addresses() -> None:
    assert RealMachine().resolve("localhost") & {"127.0.0.1", "::1"}


def test_a_name_that_nobody_knows_stands_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_args: object, **_kwargs: object) -> object:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    # A real look-up would depend on the network that the test runs in.
    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    assert RealMachine().resolve("nowhere.invalid") == frozenset()


def test_a_name_that_cannot_be_one_stands_for_nothing() -> None:
    assert RealMachine().resolve("a" * 80 + ".invalid") == frozenset()
