"""What the main module imports, from its source or its names."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from rankspawn.workers.main_imports import imports_at_top, modules_of_main

SOURCE = """
from __future__ import annotations
import os, xml.dom as dom
from collections import abc, OrderedDict
from . import sibling
from ..other import name
try:
    import numpy
except ImportError:
    import array
else:
    import json
with thing:
    import csv
if condition:
    import a_b
else:
    import c_d
if __name__ == "__main__":
    import only_of_the_program
    from main_only import x
def function():
    import not_yet
class Class:
    import neither
"""


def test_imports_at_the_top_of_a_source() -> None:
    found = list(imports_at_top(ast.parse(SOURCE), "package.inner"))

    assert found == [
        *("__future__", "__future__.annotations", "os", "xml.dom"),
        *("collections", "collections.abc", "collections.OrderedDict"),
        *("package.inner", "package.inner.sibling", "package.other", "package.other.name"),
        *("numpy", "array", "json", "csv", "a_b", "c_d"),
    ]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    module = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    return module


def test_what_is_loaded_of_it(main: ModuleType, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "from __future__ import annotations\nimport json\nimport rankspawn.errors\nimport json\n"
        "from xml import dom\nimport never.loaded\nfrom collections import abc, OrderedDict\n"
    )
    main.__file__ = str(script)

    found = modules_of_main()

    assert found[0] == "json"
    assert found[-2:] == ("collections", "collections.abc")
    assert not {"__future__", "rankspawn.errors", "never.loaded"} & set(found)


@pytest.mark.parametrize("source", ["this is no Python", "import \0"])
def test_a_source_that_cannot_be_read_says_nothing(
    main: ModuleType, tmp_path: Path, source: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(source)
    main.__file__ = str(script)

    assert modules_of_main() == ()


def test_a_notebook_has_names_only(main: ModuleType) -> None:
    vars(main).update(path=ast, number=7)

    assert modules_of_main() == ("ast",)
