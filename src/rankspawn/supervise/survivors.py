"""The ranks that run on when another one failed, looked at before they are stopped."""

from __future__ import annotations

import sys

from rankspawn.supervise.outcome import failures_in

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.supervise.context import RankProcess
    from rankspawn.supervise.group import Group
    from rankspawn.supervise.policy import SupervisionPolicy


def look_at(group: Group, policy: SupervisionPolicy, *, is_last: bool) -> dict[int, str]:
    """Where those are that run after a failure; a person may look at them for longer.

    Args:
        group: In which a rank failed.
        policy: What was asked for.
        is_last: The group will not be restarted.
    """
    stacks = group.stacks(quickly=True) if policy.takes_stacks and is_last else {}
    if policy.keeps_alive:
        wait_for_interrupt(group)
    return stacks


def wait_for_interrupt(group: Group) -> None:
    """Say who runs on, and wait for Ctrl-C, or until they ended by themselves."""
    print(f"rankspawn: {describe_kept(group)}", file=sys.stderr, flush=True)  # noqa: T201 - asked for
    try:
        group.wait(lambda: group.all_ended, None)
    except KeyboardInterrupt:
        # It is what is waited for; the failure is what is raised.
        return


def describe_kept(group: Group) -> str:
    """Which rank failed, and which processes run on."""
    failed = [str(outcome.rank) for _, outcome in failures_in(group.outcomes)]
    pids = ", ".join(
        f"rank {process.rank} is {process.popen.pid}{_place(process)}"
        for index, process in enumerate(group.processes)
        if not group.has_ended(index)
    )
    return (
        f"rank {', '.join(failed) or '?'} failed, and nothing is stopped (keep_alive_on_failure); "
        f"the processes: {pids}. Ctrl-C stops them and shows the error"
    )


def _place(process: RankProcess) -> str:
    """Where else it is than here."""
    host = getattr(process.popen, "host", None)
    return "" if host is None else f" on {host}"
