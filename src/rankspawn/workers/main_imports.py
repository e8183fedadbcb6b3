"""What ``preload="main"`` stands for: the modules that the main module imports at its top.

Found from its source, as far as the modules are loaded here; of a main module without a file,
such as a notebook, from its names. Pure, but for reading that file and ``sys.modules``.
"""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator
from types import ModuleType

# Loaded by every server, or nothing that could be imported there.
_NOT_PRELOADED = ("rankspawn", "__future__", "__main__", "__mp_main__")
# What each of these starts when it is first used, if not when it is imported, does not survive a
# fork; their own documentation says so, or it was tried (Paddle).
BREAK_IN_A_FORK = ("paddle", "jax", "jaxlib", "tensorflow")

_found: dict[str, tuple[str, ...]] = {}


def modules_of_main() -> tuple[str, ...]:
    """Their names, in the order of the imports."""
    main = sys.modules.get("__main__")
    if main is None:
        return ()
    path = getattr(main, "__file__", None)
    if not isinstance(path, str) or not os.path.exists(path):
        candidates = _modules_among(vars(main).values())
    else:
        if path not in _found:  # it is read once: who edits it while it runs, runs what was there
            _found[path] = _read(path, _package_of(main))
        candidates = _found[path]
    names = dict.fromkeys(name for name in candidates if name in sys.modules)
    return tuple(name for name in names if name.partition(".")[0] not in _NOT_PRELOADED)


def imports_at_top(tree: ast.Module, package: str) -> Iterator[str]:
    """What a module imports when it runs, other than as the program itself.

    Args:
        tree: Its source.
        package: Its own, for relative imports.
    """
    waiting: list[ast.stmt] = list(tree.body)
    while waiting:
        node = waiting.pop(0)
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            yield base
            # A submodule, if there is one of that name.
            yield from (f"{base}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and "__main__" in ast.unparse(node.test):
            waiting = node.orelse + waiting
        elif isinstance(node, ast.If | ast.Try | ast.With):
            waiting = _statements_in(node) + waiting


def _statements_in(node: ast.If | ast.Try | ast.With) -> list[ast.stmt]:
    if isinstance(node, ast.With):
        return node.body
    if isinstance(node, ast.If):
        return node.body + node.orelse
    handled = [statement for handler in node.handlers for statement in handler.body]
    return node.body + handled + node.orelse + node.finalbody


def _base(node: ast.ImportFrom, package: str) -> str:
    """The module that names are imported from."""
    if not node.level:
        return node.module or ""
    above = package.split(".")[: len(package.split(".")) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _read(path: str, package: str) -> tuple[str, ...]:
    try:
        with open(path, "rb") as file:
            tree = ast.parse(file.read())
    except (OSError, SyntaxError, ValueError):  # a zip file, or a program in another language
        return ()
    return tuple(imports_at_top(tree, package))


def _package_of(main: ModuleType) -> str:
    spec = getattr(main, "__spec__", None)
    return getattr(spec, "parent", None) or ""


def _modules_among(values: Iterable[object]) -> tuple[str, ...]:
    return tuple(value.__name__ for value in list(values) if isinstance(value, ModuleType))
