"""What stands before each shown line of a rank: one template, for all who show lines. Pure."""

from __future__ import annotations

from string import Formatter

# What may stand in braces, each with a value that shows whether a template can be filled in.
_EXAMPLES: dict[str, int | str] = {
    "rank": 0,
    "local_rank": 0,
    "world_size": 1,
    "device": "cpu",
    "node": 0,
    "host": "localhost",
    "restart": 0,
}


def check_prefix(origin: str, prefix: str) -> None:
    """Refuse a template that cannot be filled in for each line of a rank.

    Raises:
        ValueError: It names the option or flag, and what is allowed.
    """
    allowed = ", ".join(f"{{{name}}}" for name in _EXAMPLES)
    try:
        names = [name for _, name, _, _ in Formatter().parse(prefix) if name is not None]
        wrong = [name for name in names if name not in _EXAMPLES]
        if not wrong:
            fill_prefix(prefix, **_EXAMPLES)
    except ValueError as error:
        raise ValueError(
            f"{origin}={prefix!r} is no template: {error}; it may have {allowed}"
        ) from None
    if wrong:
        raise ValueError(f"{origin}={prefix!r} has {{{wrong[0]}}}: it may have {allowed}")
    if "\n" in prefix or "\r" in prefix:
        raise ValueError(f"{origin}={prefix!r} has a line end, but it stands before each line")


def fill_prefix(prefix: str, **values: int | str) -> bytes:
    """The prefix of a rank's lines, from the template."""
    return prefix.format(**values).encode("utf-8", "replace")
