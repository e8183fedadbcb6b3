"""Running the parent's main module again, in a worker that refers to it. Runs in the worker."""

from __future__ import annotations

import io
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import ModuleType
    from typing import Any


def import_main(name: str | None, path: str) -> None:
    """Run the main module again, under the name that multiprocessing gives it."""
    module = _run_module(name) if name else _run_file(path)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module


def _run_file(path: str) -> ModuleType:
    with io.open_code(path) as source:
        # Without this module's future imports, which would turn the script's annotations into text.
        code = compile(source.read(), path, "exec", dont_inherit=True)
    return _run(code, __file__=path, __spec__=None)


def _run_module(name: str) -> ModuleType:
    from importlib.util import find_spec

    spec: Any = find_spec(name)
    return _run(
        spec.loader.get_code(name),
        __file__=spec.origin,
        __spec__=spec,
        __loader__=spec.loader,
        __package__=spec.parent,
    )


def _run(code: Any, **attributes: Any) -> ModuleType:
    module = type(sys)("__mp_main__")
    module.__dict__.update(attributes)
    # In place before it runs: pickle, dataclasses and typing look classes up by module name.
    sys.modules["__mp_main__"] = module
    exec(code, module.__dict__)
    return module
