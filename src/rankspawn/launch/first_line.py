"""Whether what a job runs under Python can come to its first line.

Nothing of it is imported: what its packages do when they are is the workers' matter. So what is
found in no ordinary way, as in a package that changes its own path, is left to them, too.
"""

from __future__ import annotations

import os
import sys
import warnings
from importlib.machinery import PathFinder

TYPE_CHECKING = False  # typing's own, without the import of typing
if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from importlib.machinery import ModuleSpec

    from rankspawn.launch.config import LaunchConfig

_MAIN = "__main__"


def check_first_line(config: LaunchConfig) -> None:
    """Refuse what no start, and no restart, brings to its first line.

    Raises:
        OSError: It cannot be compiled, or is not there.
    """
    sources = _of_module(config.script) if config.is_module else _of_script(config.script)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the worker's own matter
            for place, source in sources:
                compile(source, place, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        from traceback import format_exception_only

        told = "".join(format_exception_only(error)).rstrip()
        text = f"{config.script} cannot be run, so nothing is started:\n{told}"
        raise OSError(text) from error


def _of_script(script: str) -> Iterator[tuple[str, bytes | str]]:
    """A file, or what Python runs of a folder or an archive."""
    # Absolute, as finders are kept by their path.
    spec = PathFinder.find_spec(_MAIN, [os.path.abspath(script)])
    if spec is not None:
        yield from _of_spec(spec)
    elif os.path.isdir(script):
        raise FileNotFoundError(f"there is no {_MAIN}.py in {script}")
    else:
        with open(script, "rb") as file:
            yield script, file.read()


def _of_module(name: str) -> Iterator[tuple[str, str]]:
    """What ``python -m`` runs of this name, after the packages that it is in."""
    # With -m the working folder comes first; here it may be no part of the path.
    path: Sequence[str] = [os.getcwd(), *sys.path]
    parts = [*name.split("."), _MAIN]
    for count, part in enumerate(parts, 1):
        try:
            spec = _find(".".join(parts[:count]), path)
        except KeyError:
            # A folder without __init__.py in a package, which would have to be imported.
            path = [os.path.join(place, part) for place in path]
            continue
        if spec is None:
            return
        yield from _of_spec(spec)
        if spec.submodule_search_locations is None:
            return
        path = spec.submodule_search_locations


def _find(name: str, path: Sequence[str]) -> ModuleSpec | None:
    spec = PathFinder.find_spec(name, path)
    if spec is not None or "." in name:
        return spec
    # Built in, or installed with a finder of its own.
    found = (finder.find_spec(name, None) for finder in sys.meta_path)
    return next((spec for spec in found if spec is not None), None)


def _of_spec(spec: ModuleSpec) -> Iterator[tuple[str, str]]:
    get_source = getattr(spec.loader, "get_source", None)
    try:
        source = None if get_source is None else get_source(spec.name)
    except ImportError:  # it cannot be read: the workers tell
        return
    if source is not None:
        yield spec.origin or spec.name, source
