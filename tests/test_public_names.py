"""The public names are what the reference says, and cost what they should: almost nothing.

Cost is counted in modules, which is exact; time on a busy machine is not.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import rankspawn
import rankspawn.compat.paddle
import rankspawn.compat.torch
from rankspawn.options import SpawnOptions

ROOT = Path(__file__).parent.parent
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
DESIGN = (ROOT / "docs" / "design.md").read_text()
PACKAGE = ROOT / "src" / "rankspawn"

HEAVY = {"multiprocessing", "cloudpickle", "psutil", "typing", "asyncio"}
START = "import rankspawn, sys\n\ndef modules():\n    return sorted(sys.modules)\n\n"


def documented(name: str, text: str = REFERENCE) -> bool:
    """Whether the page has this name as code, alone or as part of an expression."""
    code = " ".join(re.findall(r"```.*?```|`[^`]+`", text, re.DOTALL))
    return re.search(rf"(?<![\w]){re.escape(name)}(?![\w])", code) is not None


@pytest.mark.parametrize("name", rankspawn.__all__)
def test_public_name_exists(name: str) -> None:
    assert getattr(rankspawn, name) is not None
    assert name in dir(rankspawn)


@pytest.mark.parametrize("name", [n for n in rankspawn.__all__ if n != "__version__"])
def test_public_name_is_in_the_reference(name: str) -> None:
    assert documented(name)


@pytest.mark.parametrize("name", [field.name for field in fields(SpawnOptions)])
def test_option_is_in_the_reference(name: str) -> None:
    assert documented(name)


@pytest.mark.parametrize("name", [n for n in vars(rankspawn.MultiprocessContext) if n[0] != "_"])
def test_method_of_the_context_is_in_the_reference(name: str) -> None:
    assert documented(name)


@pytest.mark.parametrize("name", rankspawn.compat.torch.__all__)
def test_name_of_compat_torch_is_in_the_reference(name: str) -> None:
    assert getattr(rankspawn.compat.torch, name) is not None
    assert documented(name)


@pytest.mark.parametrize("name", rankspawn.compat.paddle.__all__)
def test_name_of_compat_paddle_is_in_the_reference(name: str) -> None:
    assert documented(name)


def test_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'spown'"):
        _ = rankspawn.spown


def test_design_page_lists_every_module() -> None:
    modules = {path.name for path in PACKAGE.rglob("*.py")} - {"__init__.py"}
    listed = set(re.findall(r"^ +(\w+\.py) ", DESIGN, re.MULTILINE)) - {"__init__.py"}
    assert listed == modules


def test_version_has_an_entry_in_the_changelog() -> None:
    assert f"## {rankspawn.__version__} " in (ROOT / "CHANGELOG.md").read_text()


def test_import_loads_no_heavy_module() -> None:
    code = (
        "import sys; before = set(sys.modules); import rankspawn, json; "
        "print(json.dumps(sorted(set(sys.modules) - before - {'json'})))"
    )
    # Site packages may load modules of their own at start, so only the difference counts.
    loaded = {name.partition(".")[0] for name in run(code)}
    assert loaded & HEAVY == set()


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_worker_that_needs_no_heavy_module_imports_none(start_method: str, tmp_path: Path) -> None:
    # In a script rather than here: a worker runs the main module again, which is pytest's.
    script = tmp_path / "count.py"
    script.write_text(
        f"{START}if __name__ == '__main__':\n    import json\n"
        f"    options = {{'backend': 'gloo', 'start_method': {start_method!r}}}\n"
        "    print(json.dumps(rankspawn.spawn(modules, nprocs=1, **options).results()[0]))\n"
    )
    loaded = {name.partition(".")[0] for name in run(str(script), flag=None)}
    bare = {
        name.partition(".")[0]
        for name in run("import sys, json; print(json.dumps([*sys.modules]))")
    }
    # A fork server pays for these once; what it forks has them for nothing.
    allowed = bare | ({"typing", "multiprocessing"} if start_method == "forkserver" else set())
    assert (loaded - allowed) & HEAVY == set()


def run(code: str, flag: str | None = "-c") -> list[str]:
    """The list that a fresh interpreter prints."""
    command = [sys.executable, *([flag] if flag else []), code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    names: list[str] = json.loads(done.stdout)
    return names
