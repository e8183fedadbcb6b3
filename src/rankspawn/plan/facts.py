"""What a plan needs to know about the machine, as a seam: tests bring their own."""

from __future__ import annotations

from typing import Protocol

__all__ = ["Machine"]


class Machine(Protocol):
    """Facts about this machine, before any mask in the environment is applied."""

    def device_count(self, device_type: str) -> int:
        """Number of devices of one type (``gpu``, ``xpu``, ``npu``, …); 0 if none is found."""

    def gpu_vendor(self) -> str | None:
        """``nvidia`` or ``amd``, or None when no GPU is found."""

    def cpus(self) -> int:
        """CPUs that this process may use, at least 1."""

    def addresses(self) -> frozenset[str]:
        """IP addresses of this machine's interfaces, as text."""

    def resolve(self, host: str) -> frozenset[str]:
        """IP addresses that ``host`` stands for; itself for an address, none if unknown."""
