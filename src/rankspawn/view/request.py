"""What the options ask to be shown, read and checked before anything starts. Pure."""

from __future__ import annotations

from rankspawn.values import dataclass
from rankspawn.view.prefix import check_prefix

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from rankspawn.options import SpawnOptions

DEFAULT_PREFIX = "[rank {rank}] "


@dataclass(frozen=True, slots=True)
class ShowRequest:
    """What to show of a group while it runs.

    Attributes:
        lines: The ranks whose lines are shown; True for all, False for none.
        prefix: What stands before each line, as a template.
        progress: Whether there is a view of all ranks.
        captures: Whether output goes to files without a name, since there is no ``log_dir``.
    """

    lines: bool | tuple[int, ...]
    prefix: str
    progress: bool
    captures: bool

    def shows(self, rank: int) -> bool:
        """Whether the lines of this rank are shown."""
        return self.lines if isinstance(self.lines, bool) else rank in self.lines


def read_show_request(options: SpawnOptions, *, in_notebook: bool) -> ShowRequest | None:
    """What these options ask to be shown; None if ranks print where the parent does."""
    lines = options.tee
    if lines is None:
        # A live view would be overwritten by whoever prints beside it, so with it lines are shown
        # by us, too. And what a kernel shows of its own output it may show too late, or in
        # another cell.
        # And what goes to the terminal directly cannot be looked at for signs of life.
        watches = options.progress or in_notebook or options.stall_timeout is not None
        lines = watches and options.log_dir is None
        is_plain = not options.progress
    else:
        is_plain = False
    if lines is False and not options.progress:
        return None
    prefix = "" if is_plain and options.prefix is None else options.prefix
    return ShowRequest(
        lines,
        DEFAULT_PREFIX if prefix is None else prefix,
        options.progress,
        captures=options.log_dir is None,
    )


def check_show_request(options: SpawnOptions, request: ShowRequest | None, world_size: int) -> None:
    """Refuse what cannot be shown.

    Args:
        options: The options of ``spawn``.
        request: What :func:`read_show_request` made of them.
        world_size: How many ranks there are.

    Raises:
        ValueError: A rank that does not exist, a template that cannot be filled in, or two
            options that want the terminal.
    """
    ranks = f"the ranks are 0 to {world_size - 1}"
    if isinstance(options.tee, tuple) and options.tee and options.tee[-1] >= world_size:
        raise ValueError(f"tee names rank {options.tee[-1]}, but {ranks}")
    if options.debug is not None:
        from rankspawn.plan.debuggers import check_debugged_rank

        check_debugged_rank(f"debug={options.debug}", options.debug.rank, world_size)
    if options.debug is not None and options.progress:
        raise ValueError(
            "debug and progress both need the terminal: leave progress out while you debug"
        )
    if options.prefix is not None:
        check_prefix("prefix", options.prefix)
        if request is None or not (request.lines or request.progress):
            raise ValueError("prefix goes before lines that are shown: add tee=True, or ranks")
