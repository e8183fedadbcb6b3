"""The trace of a node's programs: by the recorder of ``spawn``, over all generations."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, cast

from rankspawn.launch.programs import TRAINER
from rankspawn.launch.showing import Programs, place_of
from rankspawn.supervise.outcome import signal_name
from rankspawn.trace.recorder import Recorder
from rankspawn.trace.request import describe_run, place_trace
from rankspawn.values import replace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.programs import ProgramSpec
    from rankspawn.launch.session import JobResult
    from rankspawn.supervise.group import Group
    from rankspawn.view.sources import Place
    from rankspawn.workers.group import WorkerGroup


class Traced:
    """Writes the trace of this node's programs.

    Args:
        path: Where to, as it was given.
        config: What was asked for.

    Raises:
        OSError: It cannot be written there.
    """

    def __init__(self, path: str, config: LaunchConfig) -> None:
        self._path = path
        place_trace(path)
        self._facts = describe_run(os.path.basename(config.script))
        self._recorder: Recorder | None = None

    def begin(
        self,
        group: WorkerGroup,
        specs: Sequence[ProgramSpec],
        logs: Sequence[str],
        starts: Sequence[int],
    ) -> None:
        """Record the programs that were just started; see ``showing.Shown.begin``."""
        places = [_place_of(spec) for spec in specs]
        if self._recorder is None:
            path = place_trace(self._path, node_rank=places[0].node)
            self._recorder = Recorder(path, places, self._facts)
        self._recorder.take_places(places)
        self._recorder.begin(cast("Group", Programs(group, logs, starts)))

    def note_stacks(self, stacks: Mapping[int, str]) -> None:
        """Where programs were, by their places among those that were just started."""
        if self._recorder is not None:
            for index, text in stacks.items():
                self._recorder.lanes[index].stack = text

    def finish(self, result: JobResult | None, ending: int | None) -> None:
        """Write it: the programs are gone.

        Args:
            result: How the job ended; None if the launcher itself failed.
            ending: The signal that ended the launcher, if one did.
        """
        if self._recorder is None:
            return
        if ending is not None:
            self._recorder.note_text(f"ended by {signal_name(ending)} to the launcher")
        elif result is not None and not result.succeeded:
            self._recorder.note_text(result.text)
        self._recorder.finish()


def _place_of(spec: ProgramSpec) -> Place:
    place = place_of(spec)
    # Servers and trainers have numbers of their own.
    return place if spec.role == TRAINER else replace(place, device=spec.role)
