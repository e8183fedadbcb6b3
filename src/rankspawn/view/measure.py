"""Meters: how much CPU and memory each rank takes, read from the system."""

from __future__ import annotations

from contextlib import suppress

import psutil

from rankspawn.machine import NVML, open_nvml
from rankspawn.view.ranks import Usage

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from rankspawn.supervise.group import Group, Measured
    from rankspawn.view.sources import Place


class ProcessMeter:
    """A meter of one worker's CPU and memory; its descendants are not counted."""

    def __init__(self, pid: int) -> None:
        self._process: psutil.Process | None = None
        with suppress(psutil.Error):  # it ended already
            process = psutil.Process(pid)
            process.cpu_percent()  # what the first look compares with
            self._process = process

    def look(self) -> tuple[float | None, int | None]:
        """Percent of one CPU since the last look, and resident bytes; None if it is gone."""
        if self._process is None:
            return None, None
        try:
            cpu = self._process.cpu_percent()
            memory = self._process.memory_info().rss
        except (psutil.Error, OSError):
            self._process = None
            return None, None
        # A zombie has no memory: it has ended, and nobody took note so far.
        return (cpu, memory) if memory else (None, None)


class GpuMeter:
    """A meter of memory in use on NVIDIA GPUs, by NVIDIA's management library (NVML).

    It is the device's, not the process's: a container does not tell NVML's process ids, and
    each rank has a device of its own.

    Args:
        library: The library's name, as the loader knows it.
    """

    def __init__(self, library: str = NVML) -> None:
        self._nvml = open_nvml(library)
        self._handles: dict[str, Any] = {}

    @property
    def is_there(self) -> bool:
        """Whether NVML could be loaded."""
        return self._nvml is not None

    def used(self, device_id: str) -> int | None:
        """Bytes in use on a device, by its absolute id: an ordinal, or ``GPU-<uuid>``."""
        if self._nvml is None:
            return None
        import ctypes

        # Total, free and used, in bytes.
        memory = (ctypes.c_ulonglong * 3)()
        try:
            handle = self._handles.get(device_id) or self._find(device_id)
            if handle is None or self._nvml.nvmlDeviceGetMemoryInfo(handle, memory):
                return None
        except AttributeError:  # another library than we thought
            return None
        self._handles[device_id] = handle
        return memory[2]

    def _find(self, device_id: str) -> Any:
        """NVML's handle of a device; None if it knows no such device."""
        import ctypes

        assert self._nvml is not None
        handle = ctypes.c_void_p()
        if device_id.isdecimal():
            index = ctypes.c_uint(int(device_id))
            failed = self._nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle))
        else:
            name = ctypes.c_char_p(device_id.encode())
            failed = self._nvml.nvmlDeviceGetHandleByUUID(name, ctypes.byref(handle))
        return None if failed else handle

    def close(self) -> None:
        """Let go of the library."""
        nvml, self._nvml = self._nvml, None
        if nvml is not None:
            nvml.nvmlShutdown()


class Meters:
    """The meters of all ranks of a group.

    Args:
        pids: The process of each rank, by index.
        gpus: The id of each rank's GPU; None for one that has none.
    """

    def __init__(self, pids: Sequence[int], gpus: Sequence[str | None]) -> None:
        self._processes = [ProcessMeter(pid) for pid in pids]
        self._gpus = gpus
        self._gpu_meter = GpuMeter() if any(gpus) else None

    def look(self, index: int) -> Usage:
        """What a rank takes now."""
        cpu, memory = self._processes[index].look()
        gpu = self._gpus[index]
        used = self._gpu_meter.used(gpu) if gpu and self._gpu_meter else None
        return Usage(cpu, memory, used)

    def close(self) -> None:
        """Let go of the management library."""
        if self._gpu_meter is not None:
            self._gpu_meter.close()


class MetersElsewhere:
    """What others have measured of the ranks of a group."""

    def __init__(self, measured: Measured) -> None:
        self.look: Callable[[int], Usage] = measured.usage_of

    def close(self) -> None:
        """There is nothing to let go of."""


def meters_of(group: Group, places: Sequence[Place]) -> Meters | MetersElsewhere:
    """Those of a group's ranks."""
    if group.measured is not None:
        return MetersElsewhere(group.measured)
    pids = [process.popen.pid for process in group.processes]
    return Meters(pids, [place.gpu for place in places])
