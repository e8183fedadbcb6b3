"""From a way to start workers to a group that is watched over: all of them, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from rankspawn.descriptors import Owned, Waker
from rankspawn.machine import read_oom_counts
from rankspawn.workers.group import WorkerGroup
from rankspawn.workers.guardian import Guarded, Guardian
from rankspawn.workers.marker import kill_marked, new_mark
from rankspawn.workers.meeting import MeetingPlace, group_name, write_entries
from rankspawn.workers.running import close_forgotten, running
from rankspawn.workers.teardown import kill_started

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.descriptors import Closable
    from rankspawn.workers.agent_store import AgentStore
    from rankspawn.workers.worker import Worker


def assemble(
    start: Callable[[str, str, Owned, list[Worker]], None],
    *,
    grace: float,
    what: str = "",
    resources: Sequence[Closable] = (),
    store: AgentStore | None = None,
) -> WorkerGroup:
    """Have workers started, watched over in case this process dies; all of them, or none.

    Args:
        start: Starts them; it gets the mark that each must carry, where they can meet, an
            eventfd that a failing one may write to, and a list for those that run.
        grace: Seconds that they get to end, if this process dies.
        what: The function that they run, for whoever looks; nothing for programs.
        resources: What they need while they run; closed with the group.
        store: A process that they need; started before them, closed with the group.

    Raises:
        Exception: Whatever ``start`` raised; those that it had started were killed.
    """
    close_forgotten()
    mark = new_mark()
    # Whatever happens to a worker happens later than this.
    began_ns, oom_before = time.monotonic_ns(), read_oom_counts()
    closables: list[Closable] = [*resources]
    workers: list[Worker] = []
    try:
        event = Waker()
        closables.append(event)
        # Before the first worker, so that there is no moment without it.
        guardian = Guardian(mark, grace)
        closables.append(guardian)
        meeting = MeetingPlace(group_name(mark, grace, what))
        closables.append(meeting)
        if store is not None:
            closables.append(store)
            guardian.watch(store.start(mark))
        workers = Guarded(guardian)
        start(mark, meeting.address, event, workers)
        write_entries(meeting.fileno(), [worker.popen.pid for worker in workers])
        group = WorkerGroup(workers, mark, event, began_ns, oom_before, closables, grace, store)
        group.what = what
        running.add(group)
    except BaseException:
        kill_started(workers)
        for closable in reversed(closables):
            closable.close()
        # Last, because it needs descriptors, and there may have been too few of them.
        kill_marked(mark)
        raise
    return group
