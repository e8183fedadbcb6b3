"""When a node ends the job by itself: its time is over, or nothing is heard of its workers.

And where these are then, or when somebody asks. What only that needs is loaded only then.
"""

from __future__ import annotations

import os
import time

from rankspawn.descriptors import Owned

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rankspawn.launch.config import LaunchConfig
    from rankspawn.launch.pod import Pod
    from rankspawn.supervise.group import RankOutput
    from rankspawn.supervise.stalls import StallWatch

# What all of the ranks may take to say where they are; nothing is supervised meanwhile.
_STACKS_SECONDS = 5.0
# What the end of a failed job may be delayed by.
_SURVIVORS_SECONDS = 0.3


class Limits:
    """The limits of a job on this node, over all generations.

    Args:
        config: What was asked for.

    Attributes:
        why: Why the job is to end; empty while no limit is reached.
    """

    def __init__(self, config: LaunchConfig) -> None:
        self.why: str = ""
        self._timeout = config.timeout
        self._stall_timeout = config.stall_timeout
        # When the time of the job is over, from its first start on.
        self._deadline: float | None = None
        self._pod: Pod | None = None
        self._prints: Prints | None = None
        self._watch: StallWatch | None = None

    def begin(self, pod: Pod) -> None:
        """These programs were started."""
        self._pod = pod
        if self._deadline is None and self._timeout is not None:
            self._deadline = time.monotonic() + self._timeout
        if self._stall_timeout is not None:
            from rankspawn.supervise.stalls import StallWatch

            self._prints, self._watch = (
                Prints(pod.outputs, pod.steps_of),
                StallWatch(self._stall_timeout),
            )

    def end(self) -> None:
        """There are no programs any more."""
        if self._watch is not None:
            self._watch.close()
        self._pod = self._prints = self._watch = None

    def are_reached(self) -> bool:
        """Whether one of them is."""
        if self._deadline is not None and time.monotonic() >= self._deadline:
            limit = self._timeout or 0
            self.why = f"ended after {limit:g} s, the time that --timeout gives the whole job"
        elif self._watch is not None and self._prints is not None and self._should_print():
            self._watch.look(self._prints)
            if self._watch.has_stalled:
                self.why = (
                    f"ended after {self._stall_timeout:g} s without a report or output of "
                    "any rank of this node (--stall_timeout); last heard of: "
                    f"{self._watch.last_heard()}"
                )
        return bool(self.why)

    def seconds_left(self) -> float | None:
        """Seconds until :meth:`are_reached` is worth another look; None if only an event is."""
        dues = [] if self._deadline is None else [self._deadline]
        if self._watch is not None and self._should_print():
            dues.append(self._watch.due)
        return max(0.0, min(dues) - time.monotonic()) if dues else None

    def _should_print(self) -> bool:
        """Trainers run. Who serves others may have nothing to say, and a failure is told."""
        pod = self._pod
        return pod is not None and pod.has_trainers and not (pod.is_done or pod.failures)


class _Rank:
    def __init__(self, rank: int) -> None:
        self.rank: int = rank


class Prints:
    """What programs print, as a watch for signs of life has groups.

    Args:
        paths: Rank to the files that it prints to.
        steps_of: What a rank has reported.
    """

    def __init__(
        self, paths: Mapping[int, Sequence[str]], steps_of: Callable[[int], bytes]
    ) -> None:
        self._steps_of = steps_of
        self._paths = list(paths.values())
        self.processes: list[_Rank] = [_Rank(rank) for rank in paths]

    def steps_of(self, index: int) -> bytes:
        """What it has reported, and how much is in the files beside the first."""
        sizes = b" ".join(b"%d" % _size(path) for path in self._paths[index][1:])
        return self._steps_of(self.processes[index].rank) + sizes

    def open_output(self, index: int) -> RankOutput | None:
        """The first of its files."""
        from rankspawn.supervise.group import RankOutput

        try:
            file = Owned(os.open(self._paths[index][0], os.O_RDONLY | os.O_CLOEXEC))
        except OSError:  # somebody removed it already
            return None
        return RankOutput(file)


def _forget(_: Mapping[int, str]) -> None:
    """Take note of nothing."""


def describe_where(
    pids: Mapping[int, int],
    *,
    is_called_off: Callable[[], bool],
    note: Callable[[Mapping[int, str]], None] = _forget,
) -> str:
    """Where programs are, those that differ first; one sentence if that cannot be known.

    Args:
        pids: Rank to process.
        is_called_off: Whether nobody wants to wait for it any more.
        note: Gets the stacks of those of which they are known.
    """
    from rankspawn.inspect.asking import stacks_of_programs
    from rankspawn.supervise.failures import describe_stacks

    if not pids:
        return "no rank runs on this node"
    stacks = stacks_of_programs(pids, seconds=_STACKS_SECONDS, is_called_off=is_called_off)
    note({rank: text for rank, text in stacks.items() if "  File " in text})
    if len(alike := {*stacks.values()}) == 1 and "  File " not in (text := alike.pop()):
        names = ", ".join(f"rank {rank} (process {pid})" for rank, pid in pids.items())
        return f"{names}: {text.strip()}"
    return describe_stacks(stacks)


def describe_others(
    pids: Mapping[int, int], *, note: Callable[[Mapping[int, str]], None] = _forget
) -> str:
    """After a failure: those that are not where most others are, if they say so at once.

    Only programs that have imported rankspawn do, and py-spy takes too long.

    Args:
        pids: Rank to process.
        note: Gets the stacks of all that do.
    """
    from rankspawn.inspect.asking import answers_of
    from rankspawn.supervise.failures import describe_survivors

    stacks = answers_of(pids, seconds=_SURVIVORS_SECONDS)
    note(stacks)
    return describe_survivors(stacks).removesuffix("\n---\n")


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0
