"""What is said of ranks that ended, whoever says it: an agent, or the keeper of a detached job."""

from __future__ import annotations

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.cluster.frames import Header, Outbox
    from rankspawn.cluster.group import ClusterGroup
    from rankspawn.supervise.outcome import Outcome
    from rankspawn.workers.group import WorkerGroup


def put_end(outbox: Outbox, group: WorkerGroup | ClusterGroup, index: int) -> None:
    """Say what became of a rank that has ended, and what it left."""
    outcome, report = group.outcomes[index], group.report_of(index)
    tail = group.last_lines(index) if outcome.is_failure else ""
    texts = [each.encode("utf-8", "surrogatepass") for each in (report.text, tail, report.crash)]
    pieces = [] if report.pickled is None else report.pickled.pieces
    header = describe_outcome(index, outcome, is_final=True)
    sizes = None if report.pickled is None else [piece.nbytes for piece in pieces]
    header |= dict(zip(("text", "tail", "crash"), map(len, texts), strict=True))
    header["pieces"] = sizes
    outbox.put(header, b"".join([*texts, report.steps]))
    offset = 0
    for view in pieces:
        outbox.put_pieces({"is": "data", "index": index}, view, offset)
        offset += view.nbytes


def describe_outcome(index: int, outcome: Outcome, *, is_final: bool) -> Header:
    """What became of a rank, on the clock of who says it."""
    return {
        "is": "outcome",
        "index": index,
        "final": is_final,
        "end": outcome.end.name,
        "code": outcome.exit_code,
        "when": outcome.when_ns,
        "reached": outcome.reached_function,
        "returned": outcome.had_returned,
        "evidence": outcome.evidence,
        "follows": outcome.follows,
    }
