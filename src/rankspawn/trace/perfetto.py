"""A recording as the trace event format has it, which Perfetto and Chrome show. Pure."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

_MEGA = 1e6
_NAMES = {
    "cpu": "CPU (%)",
    "memory": "memory (bytes)",
    "talked": "in collectives (s)",
    "waited": "waited for others (s)",
    "gpu_memory": "GPU memory (bytes)",
}


def trace_events(recording: Mapping[str, Any]) -> dict[str, Any]:
    """The recording's data as trace events: a process for each rank.

    Args:
        recording: As :meth:`rankspawn.trace.recording.Recording.as_data` gives it.
    """
    events: list[dict[str, Any]] = []
    for lane in recording["ranks"]:
        events += _events_of(lane)
    for number, start in enumerate(recording["starts"][1:], start=1):
        events.append(
            {"ph": "i", "s": "g", "pid": 0, "tid": 0, "ts": start * _MEGA, "cat": "restart"}
            | {"name": f"restart {number}"}
        )
    facts = dict(recording["facts"], error=recording["error"])
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": facts}


def _events_of(lane: Mapping[str, Any]) -> list[dict[str, Any]]:
    rank = lane["rank"]
    here = {"pid": rank, "tid": 0}
    name = f"rank {rank} ({lane['device']})"
    events: list[dict[str, Any]] = [
        {"ph": "M", **here, "name": "process_name", "args": {"name": name}},
        {"ph": "M", **here, "name": "process_sort_index", "args": {"sort_index": rank}},
        {"ph": "M", **here, "name": "thread_name", "args": {"name": "stages"}},
    ]
    for start, end, stage in lane["spans"]:
        events.append(
            {"ph": "X", **here, "cat": "stage", "name": stage}
            | {"ts": start * _MEGA, "dur": (end - start) * _MEGA}
        )
    for ended in lane["tries"]:
        told = {key: ended[key] for key in ("text", "failure") if ended[key]}
        events.append(
            {"ph": "i", "s": "p", **here, "cat": "end", "name": ended["state"]}
            | {"ts": ended["end"] * _MEGA, "args": told}
        )
    for curve, (times, values) in lane["curves"].items():
        label = _NAMES.get(curve, curve.removeprefix("="))
        events += [
            {"ph": "C", **here, "name": label, "ts": at * _MEGA, "args": {label: value}}
            for at, value in zip(times, values, strict=True)
        ]
    events += [
        {"ph": "i", "s": "t", **here, "cat": "line", "name": line, "ts": at * _MEGA}
        for at, line in lane["lines"]
        if at is not None
    ]
    return events
