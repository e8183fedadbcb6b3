"""Every Python snippet of the README and the docs runs, and prints what the page shows.

A snippet is a ``python`` block. It runs as a script of its own, in a fresh interpreter and an
empty folder. HTML comments, which readers do not see, say more about it:

``<!-- needs: torch -->``      before it: it runs only where torch is installed
``<!-- with: NAME=value -->``  before it: a variable that is set for it
``<!-- fails -->``             before it: it has to end with an error
``<!-- prints -->``            before a ``text`` block: what the last snippet prints
``<!-- ends with -->``         before a ``text`` block: how its error output ends
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
DEADLOCK = 120.0

_BLOCK = re.compile(
    r"(?P<notes>(?:^<!--[^\n]*-->\n)*)^```(?P<language>python|text)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
_NOTE = re.compile(r"<!-- (.*?) -->")


@dataclass
class Snippet:
    """One script, and what the page says about it."""

    place: str
    code: str
    needs: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    fails: bool = False
    prints: str | None = None
    ends_with: str | None = None


def snippets_of(page: Path) -> list[Snippet]:
    found: list[Snippet] = []
    text = page.read_text()
    for block in _BLOCK.finditer(text):
        notes = _NOTE.findall(block["notes"])
        if block["language"] == "python":
            line = text.count("\n", 0, block.start("body"))
            snippet = Snippet(f"{page.relative_to(ROOT)}:{line}", block["body"])
            snippet.needs = [note[7:] for note in notes if note.startswith("needs: ")]
            pairs = [note[6:].partition("=") for note in notes if note.startswith("with: ")]
            snippet.variables = {name: value for name, _, value in pairs}
            snippet.fails = "fails" in notes
            found.append(snippet)
        elif "prints" in notes:
            found[-1].prints = block["body"]
        elif "ends with" in notes:
            found[-1].ends_with = block["body"]
    return found


SNIPPETS = [snippet for page in PAGES for snippet in snippets_of(page)]
PLAIN = [snippet for snippet in SNIPPETS if not snippet.needs]
WITH_FRAMEWORK = [snippet for snippet in SNIPPETS if snippet.needs]


def place_of(snippet: Snippet) -> str:
    return snippet.place


@pytest.mark.parametrize("snippet", PLAIN, ids=place_of)
def test_snippet_runs(snippet: Snippet, tmp_path: Path) -> None:
    check(snippet, tmp_path)


@pytest.mark.interop
@pytest.mark.parametrize("snippet", WITH_FRAMEWORK, ids=place_of)
def test_snippet_runs_with_its_framework(snippet: Snippet, tmp_path: Path) -> None:
    for module in snippet.needs:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed")
    check(snippet, tmp_path)


def test_every_python_block_was_found() -> None:
    fences = sum(page.read_text().count("```python") for page in PAGES)
    assert len(SNIPPETS) == fences


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_files_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text())
    files = [link.partition("#")[0] for link in links if "://" not in link]
    missing = [link for link in files if link and not (page.parent / link).exists()]
    assert missing == []


def check(snippet: Snippet, folder: Path) -> None:
    script = folder / "train.py"
    script.write_text(snippet.code)
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        # Frameworks keep caches among the temporary files.
        env={**os.environ, "TMPDIR": str(folder), **snippet.variables},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    # Tracebacks show where the script lies, which is nothing that a page could know.
    errors = done.stderr.replace(f"{folder}/", "")
    assert (done.returncode != 0) == snippet.fails, done.stdout + errors
    if snippet.prints is not None:
        assert done.stdout == snippet.prints
    if snippet.ends_with is not None:
        assert errors.endswith(snippet.ends_with), errors
