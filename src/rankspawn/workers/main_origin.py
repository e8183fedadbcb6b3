"""How a worker gets at the main module, and what it finds there; the parent's side."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterable, Iterator

from rankspawn.values import dataclass


@dataclass(frozen=True, slots=True)
class MainOrigin:
    """How a worker gets at the main module: by dotted name (``python -m``) or by path.

    Functions of a script go to the workers by reference, as with ``multiprocessing``: the worker
    runs the script once more under the name ``__mp_main__``. That is not possible for a notebook,
    a REPL, ``python -c`` or standard input, and it does not define what the script only defines
    under its ``if __name__ == "__main__":``. Those go by value.
    """

    name: str | None
    path: str


def find_main() -> MainOrigin | None:
    """The origin of this process's main module; None if it cannot be imported again."""
    main = sys.modules.get("__main__")
    path = getattr(main, "__file__", None)
    if main is None or not isinstance(path, str) or not os.path.isfile(path):
        return None
    name = getattr(getattr(main, "__spec__", None), "name", None)
    # ``__main__.py`` of a package or folder has no guard as a rule, and so is never run again.
    if name is None:
        return MainOrigin(None, os.path.abspath(path)) if path.endswith((".py", ".pyw")) else None
    return None if name.rpartition(".")[2] == "__main__" else MainOrigin(name, path)


def names_defined_again(origin: MainOrigin) -> frozenset[str]:
    """Names that a second run of the module binds to the same: nothing under its guard does."""
    try:
        with open(origin.path, "rb") as file:
            source = file.read()
        try:
            tree = ast.parse(source)
        except SystemError:  # CPython 3.11, when another thread parses at the same moment
            tree = ast.parse(source)
    except (OSError, SyntaxError, SystemError, ValueError):
        return frozenset()
    guarded = [
        statement
        for statement in tree.body
        if isinstance(statement, ast.If) and _asks_for_name(statement.test)
    ]
    under_guard = {name for guard in guarded for name in _bound_names(guard.body)}
    return frozenset(_bound_names(tree.body)) - under_guard


def _bound_names(body: Iterable[ast.stmt]) -> Iterator[str]:
    for statement in body:
        match statement:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.AsyncFunctionDef(name=name):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from ((alias.asname or alias.name).partition(".")[0] for alias in aliases)
            case ast.If(test=test) if _asks_for_name(test):
                yield from _bound_names(statement.orelse)
            case _:
                yield from _names_in_compound(statement)


def _names_in_compound(statement: ast.stmt) -> Iterator[str]:
    """Assignment targets, and what the blocks of if, for, with and try bind."""
    for part in ast.iter_child_nodes(statement):
        if isinstance(part, ast.ExceptHandler | ast.match_case):
            yield from _bound_names(part.body)
        elif isinstance(part, ast.stmt):
            yield from _bound_names([part])
        elif not isinstance(part, ast.Lambda):
            yield from (
                node.id
                for node in ast.walk(part)
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            )


def _asks_for_name(test: ast.expr) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(test))
