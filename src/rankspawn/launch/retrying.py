"""Whether a failed worker is worth another start, as far as its exit code and its end tell."""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.config import LaunchConfig

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in <module>')
_NOT_IMPORTED = ("ModuleNotFoundError:", "ImportError:")


def why_not_again(config: LaunchConfig, exit_code: int, lines: Sequence[str]) -> str:
    """Why a worker that failed so is not started again; empty if it may be.

    Args:
        config: What was asked for.
        exit_code: The worker's, or 128 and the signal's number.
        lines: The last lines of its log.
    """
    if exit_code in config.no_restart_exit_codes:
        return f"exit code {exit_code} is one of --no_restart_exit_codes"
    asked = config.restart_exit_codes
    if asked is not None and exit_code not in asked:
        return f"exit code {exit_code} is none of --restart_exit_codes"
    # Whoever names the code wants the restart, whatever is behind it.
    if asked is None and exit_code == 1 and config.runs_python and not config.is_module:
        number = failed_import(lines, config.script)
        if number is not None and _is_before_all_else(config.script, number):
            return f"an import failed before anything of {config.script} itself had run"
    return ""


def failed_import(lines: Sequence[str], script: str) -> int | None:
    """The line of the script whose import ended it, from its traceback; None if that did not."""
    starts = [index for index, line in enumerate(lines) if line.rstrip() == _TRACEBACK]
    if not starts or not lines[-1].startswith(_NOT_IMPORTED):
        return None
    # The script's own frame is the outermost.
    frame = _FRAME.match(lines[starts[-1] + 1]) if starts[-1] + 1 < len(lines) else None
    if frame is None or os.path.basename(frame["file"]) != os.path.basename(script):
        return None
    return int(frame["line"])


def _is_before_all_else(script: str, number: int) -> bool:
    """Whether nothing but imports and texts stand in the script down to this line."""
    import ast

    try:
        with open(script, "rb") as file:
            statements = ast.parse(file.read()).body
    except (OSError, SyntaxError, ValueError):
        return False
    harmless = (ast.Import, ast.ImportFrom)
    return all(
        isinstance(one, harmless)
        or (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
        for one in statements
        if one.lineno <= number
    )
