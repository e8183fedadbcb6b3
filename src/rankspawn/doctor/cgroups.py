"""What the control groups of this process allow: CPUs, memory, processes; both versions."""

from __future__ import annotations

import os

__all__ = ["Cgroups"]


class Cgroups:
    """The groups of this process, and all above them: each can limit it.

    Args:
        proc: Where procfs is mounted.
        sys: Where sysfs is mounted.
    """

    def __init__(self, *, proc: str = "/proc", sys: str = "/sys") -> None:
        self._folders = _folders(_read(f"{proc}/self/cgroup"), f"{sys}/fs/cgroup")

    def cpu_quota(self) -> float | None:
        """CPUs' worth of time; None without a limit."""
        quotas = []
        for folder in self._folders:
            used, _, period = _read(f"{folder}/cpu.max").strip().partition(" ")
            pair = (
                (used, period)
                if period
                else (
                    _read(f"{folder}/cpu.cfs_quota_us"),
                    _read(f"{folder}/cpu.cfs_period_us"),
                )
            )
            numbers = [_number(text) for text in pair]
            if numbers[0] and numbers[1]:
                quotas.append(numbers[0] / numbers[1])
        return min(quotas, default=None)

    def memory(self) -> dict[str, int | None]:
        """Bytes allowed and used, of the tightest group."""
        return self._tightest(
            ("memory.max", "memory.limit_in_bytes"), ("memory.current", "memory.usage_in_bytes")
        )

    def processes(self) -> dict[str, int | None]:
        """Processes and threads allowed and running, of the tightest group."""
        return self._tightest(("pids.max",), ("pids.current",))

    def _tightest(self, limits: tuple[str, ...], uses: tuple[str, ...]) -> dict[str, int | None]:
        found: list[tuple[int, int | None]] = []
        for folder in self._folders:
            for limit, use in zip(limits, uses, strict=True):
                allowed = _number(_read(f"{folder}/{limit}"))
                # Without a limit, version 1 shows the largest multiple of a page.
                if allowed is not None and allowed < 2**60:
                    found.append((allowed, _number(_read(f"{folder}/{use}"))))
        allowed, used = min(found, key=lambda one: one[0] - (one[1] or 0), default=(None, None))
        return {"limit": allowed, "used": used}


def _folders(listing: str, root: str) -> list[str]:
    """The folders of all groups, from the lines of ``/proc/self/cgroup``."""
    found = []
    for line in listing.splitlines():
        _, controllers, path = line.split(":", 2)
        roots = [f"{root}/{controllers}"] if controllers else [root, f"{root}/unified"]
        parts = [part for part in path.split("/") if part not in ("", "..")]
        for one in roots:
            # The root as well: in a container it is the container's own group.
            found += ["/".join([one, *parts[:depth]]) for depth in range(len(parts), -1, -1)]
    return [folder for folder in dict.fromkeys(found) if os.path.isdir(folder)]


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except OSError:
        return ""


def _number(text: str) -> int | None:
    """A number above 0; None for ``max``, ``-1`` and what is not there."""
    try:
        number = int(text)
    except ValueError:
        return None
    return number if number > 0 else None
