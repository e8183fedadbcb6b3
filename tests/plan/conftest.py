"""A machine that has what a test says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import pytest

from rankspawn.plan.devices import Machine


@dataclass
class FakeMachine:
    """Facts given by a test; by default a laptop: two CPUs, loopback, no device."""

    devices: Mapping[str, int] = field(default_factory=dict)
    vendor: str | None = None
    cpu: int = 2
    own: frozenset[str] = frozenset({"127.0.0.1", "::1"})
    names: Mapping[str, str] = field(default_factory=dict)

    def device_count(self, device_type: str) -> int:
        return self.devices.get(device_type, 0)

    def gpu_vendor(self) -> str | None:
        return self.vendor or ("nvidia" if self.devices.get("gpu") else None)

    def cpus(self) -> int:
        return self.cpu

    def addresses(self) -> frozenset[str]:
        return self.own

    def resolve(self, host: str) -> frozenset[str]:
        if host in self.names:
            return frozenset({self.names[host]})
        return frozenset({host}) if host[-1].isdigit() else frozenset()


@pytest.fixture
def machine() -> Callable[..., Machine]:
    """Makes a machine from facts: ``machine(devices={"gpu": 8})``."""
    return FakeMachine
