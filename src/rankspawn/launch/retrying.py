"""Whether a failed worker is worth another start, as far as its exit code and its end tell."""

from __future__ import annotations

import os
import re
import sys

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Sequence

    from rankspawn.launch.config import LaunchConfig

_TRACEBACK = "Traceback (most recent call last):"
_FRAME = re.compile(r'  File "(?P<file>.*)", line (?P<line>\d+), in (?P<name>.*)')
_NOT_IMPORTED = ("ModuleNotFoundError:", "ImportError:")
# What Python itself says, after its own name, of a module that it cannot find; and who runs one
# that it has found.
_NOT_FOUND = ("No module named ", "Error while finding module specification for ")
_RUNNER = ("<frozen runpy>", "runpy.py")
_OF_PACKAGES = "__init__.py"


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
    if asked is None and exit_code == 1 and (config.runs_python or config.is_module):
        said = lines[-1].removeprefix(f"{sys.executable}: ") if lines else ""
        if config.is_module and said.startswith(_NOT_FOUND):
            return f"there is no module {config.script}"
        found = failed_import(lines, config.script, is_module=config.is_module)
        if found is not None and _is_before_all_else(*found):
            return f"an import failed before anything of {config.script} itself had run"
    return ""


def failed_import(
    lines: Sequence[str], script: str, *, is_module: bool = False
) -> tuple[str, int] | None:
    """Where the import stands that ended a script; None if none did.

    Args:
        lines: The last ones of its log.
        script: Its path, or the name of a module.
        is_module: It is a module.

    Returns:
        The file and the line: of the script, or of a package that a module is in.
    """
    starts = [index for index, line in enumerate(lines) if line.rstrip() == _TRACEBACK]
    if not starts or not lines[-1].startswith(_NOT_IMPORTED):
        return None
    # The script's own frame is the outermost, but for those of Python's runner of modules.
    for line in lines[starts[-1] + 1 :]:
        frame = _FRAME.match(line)
        if frame is None or (is_module and frame["file"].endswith(_RUNNER)):
            continue
        own = [os.path.basename(script)]
        if is_module:
            own = [f"{script.rpartition('.')[2]}.py", "__main__.py", _OF_PACKAGES]
        if os.path.basename(frame["file"]) not in own or frame["name"] != "<module>":
            return None
        return frame["file"] if is_module else script, int(frame["line"])
    return None


def _is_before_all_else(script: str, number: int) -> bool:
    """Whether nothing but imports and texts stand in the script down to this line."""
    if os.path.basename(script) == _OF_PACKAGES:
        return True  # what a module is in comes before its first line, whatever that did
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
