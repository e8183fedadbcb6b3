"""What ranks and GPUs take, as the system tells it."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from rankspawn.view.measure import GpuMeter, Meters
from rankspawn.view.ranks import Usage

NVML = """
#include <string.h>
struct memory { unsigned long long total, free, used; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device)
{ *device = (void *)(long)(index + 1); return index > 5; }
int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{ *device = (void *)100L; return strcmp(uuid, "GPU-8932f937") != 0; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *info)
{ info->total = 1000; info->free = 1; info->used = (long)device * 10; return 0; }
"""


def test_memory_of_gpus(tmp_path: Path) -> None:
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    except FileNotFoundError:
        pytest.skip("there is no C compiler")
    meter = GpuMeter(str(library))
    ids = ["4", "5", "4", "GPU-8932f937", "6", "GPU-0"]
    assert [meter.used(device_id) for device_id in ids] == [50, 60, 50, 1000, None, None]
    meter.close()
    assert meter.used("4") is None


@pytest.mark.parametrize("library", ["libnothing.so", "libc.so.6"])
def test_no_management_library(library: str) -> None:
    meter = GpuMeter(library)
    assert not meter.is_there
    assert meter.used("0") is None
    meter.close()


def test_a_process_that_is_gone_takes_nothing() -> None:
    meters = Meters([2**22 + 1], [None])
    assert meters.look(0) == Usage()
    meters.close()
