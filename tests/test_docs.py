"""Every Python snippet of the README and the docs runs, and prints what the page shows.

A snippet is a ``python`` block. It runs as a script of its own, in a fresh interpreter and an
empty folder. HTML comments, which readers do not see, say more about it:

``<!-- needs: torch -->``      before it: it runs only where torch is installed
``<!-- with: NAME=value -->``  before it: a variable that is set for it
``<!-- pytest -->``            before it: it is a file of tests, and pytest runs it
``<!-- fails -->``             before it: it has to end with an error
``<!-- in a terminal -->``     before it: its standard input is one
``<!-- prints -->``            before a ``text`` block: what the last snippet prints
``<!-- ends with -->``         before a ``text`` block: how its error output ends
``<!-- reports -->``           before a ``text`` block: lines that pytest prints, in this order
"""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import urlsplit

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINKING = [*PAGES, *(ROOT / f"{name}.md" for name in ("CHANGELOG", "CONTRIBUTING", "SECURITY"))]
DEADLOCK = 120.0
MAKE = "run python docs/make_pictures.py --stale"

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
    is_test: bool = False
    in_terminal: bool = False
    reports: list[str] = field(default_factory=list)
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
            snippet.is_test = "pytest" in notes
            snippet.in_terminal = "in a terminal" in notes
            found.append(snippet)
        elif "prints" in notes:
            found[-1].prints = block["body"]
        elif "ends with" in notes:
            found[-1].ends_with = block["body"]
        elif "reports" in notes:
            found[-1].reports = block["body"].splitlines()
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


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    dead = [link for link in links_of(page) if not leads_somewhere(link, page)]
    assert dead == []


@pytest.mark.parametrize("name", ["CONTRIBUTING.md", "SECURITY.md", "docs/design.md"])
def test_files_that_a_page_for_developers_names_exist(name: str) -> None:
    assert missing_files((ROOT / name).read_text()) == []


def test_a_file_that_is_gone_is_noticed() -> None:
    text = (
        "`plan/job.py`, `job.py`, `plan/` and `tests/plan/test_job.py`, not `gone/job.py`, `gone/`"
    )
    assert missing_files(text) == ["gone/job.py", "gone/"]


def missing_files(text: str) -> list[str]:
    """The paths in backticks, whole or the end of one, that lead to no file of this project."""
    folders = [ROOT / name for name in ("src", "tests", "docs", "benchmarks", "examples", ".ci")]
    files = [path for folder in folders for path in folder.rglob("*") if path.name[-4:] != ".pyc"]
    known = [f"/{path.relative_to(ROOT)}" for path in (*files, *ROOT.iterdir())]
    named = re.findall(r"`([\w.][\w./-]*(?:\.(?:py|md|toml|yaml)|/))`", text)
    return [
        name for name in named if not any(path.endswith(f"/{name.rstrip('/')}") for path in known)
    ]


def links_of(page: Path) -> list[str]:
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", prose)


def leads_somewhere(link: str, page: Path) -> bool:
    """Whether a file and a heading in it are there; of the web, whether it is an address."""
    if "://" in link:
        address = urlsplit(link)
        return address.scheme == "https" and "." in address.netloc
    name, _, anchor = link.partition("#")
    target = page.parent / name if name else page
    if not anchor:
        return target.exists()
    return target.suffix == ".md" and target.exists() and anchor in anchors_of(target)


def anchors_of(page: Path) -> set[str]:
    """The headings' anchors, as forges and the site's generator make them."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+)$", prose, re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings
    }


def test_a_dead_link_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# One `two`\n[a](#one-two) [b](#three) [c](gone.md) [d](htp://x) `[e](f.md)`\n"
    )

    assert [link for link in links_of(page) if not leads_somewhere(link, page)] == [
        "#three",
        "gone.md",
        "htp://x",
    ]


def test_pictures_tell_nothing_of_the_machine_that_made_them() -> None:
    for picture in (ROOT / "docs" / "pictures").glob("*.svg"):
        text = picture.read_text()
        files = re.findall(r"File&#160;&quot;(.*?)&quot;", text)
        told = [file for file in files if file.startswith("/")]
        told += [word for word in ("/home/", "/root/", os.uname().nodename) if word in text]
        assert told == [], picture.name


def check(snippet: Snippet, folder: Path) -> None:
    script = folder / ("test_train.py" if snippet.is_test else "train.py")
    script.write_text(snippet.code)
    tool = ["-m", "pytest", "-p", "no:randomly"] if snippet.is_test else []
    ends = os.openpty() if snippet.in_terminal else ()
    done = subprocess.run(
        [sys.executable, *tool, script.name],
        stdin=ends[1] if ends else None,
        cwd=folder,
        # Frameworks keep caches among the temporary files.
        env={**os.environ, "TMPDIR": str(folder), **snippet.variables},
        capture_output=True,
        text=True,
        timeout=DEADLOCK,
        check=False,
    )
    for end in ends:
        os.close(end)
    # Tracebacks show where the script lies, which is nothing that a page could know.
    errors = done.stderr.replace(f"{folder}/", "")
    assert (done.returncode != 0) == snippet.fails, done.stdout + errors
    if snippet.prints is not None:
        assert done.stdout == snippet.prints
    printed = iter(done.stdout.splitlines())
    assert [line for line in snippet.reports if line not in printed] == [], done.stdout
    if snippet.ends_with is not None:
        assert errors.endswith(snippet.ends_with), errors


@pytest.mark.slow
@pytest.mark.parametrize("surroundings", [{}, {"CI": "true", "NO_COLOR": "1", "COLUMNS": "40"}])
def test_the_pictures_can_be_made_again(tmp_path: Path, surroundings: dict[str, str]) -> None:
    pytest.importorskip("rich")
    folder = ROOT / "docs"
    script = [sys.executable, str(folder / "make_pictures.py"), str(tmp_path)]
    subprocess.run(script, env={**os.environ, **surroundings}, check=True, timeout=DEADLOCK)

    for kept in (folder / "pictures").glob("*.svg"):
        assert _words(tmp_path / kept.name) == _words(kept), f"{kept.name} is stale: {MAKE}"


def _words(picture: Path) -> set[str]:
    """What stands in it, without what is different each time."""
    text = re.sub(r"<style>.*?</style>|<[^>]*>|&#160;", " ", picture.read_text(), flags=re.DOTALL)
    return {word for word in text.split() if word.isalpha() and word not in {"B", "KiB", "MiB"}}


@pytest.mark.slow
def test_the_picture_of_a_trace_is_of_the_page_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    trace_picture = importlib.import_module("trace_picture")
    kept = ROOT / "docs" / "pictures" / "trace.png"
    assert not trace_picture.is_stale(kept), f"it is stale: {MAKE}"


def test_the_tests_that_a_page_names_exist() -> None:
    page = (ROOT / "docs" / "why.md").read_text()
    named = re.findall(r"`(tests/[\w/]+\.py)::([\w:]+)`", page)
    assert len(named) > 50
    wrong = [f"{path}::{name}" for path, name in named if not _is_test(ROOT / path, name)]
    assert wrong == []
    assert len(re.findall(r"^\| \d+ \|", page, re.MULTILINE)) == 42
    assert not _is_test(ROOT / "tests" / "test_docs.py", "test_that_nobody_wrote")
    assert not _is_test(ROOT / "tests" / "nowhere.py", "test_mypy")


def _is_test(path: Path, name: str) -> bool:
    """Whether there is a test of that name, in its class if it has one."""
    if not path.exists():
        return False
    text = path.read_text()
    group, _, function = name.rpartition("::")
    if group:
        text = text.partition(f"\nclass {group}")[2].partition("\nclass ")[0]
    return re.search(rf"^ *(?:async )?def {function}\(", text, re.MULTILINE) is not None


def test_the_site_leads_to_all_pages() -> None:
    contents = (ROOT / "docs" / "conf.py").read_text().partition("_CONTENTS")[2].splitlines()
    pages = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    names = {str(page.with_suffix("")) for page in pages} - {"index"}
    assert names - set(contents) == set()
    examples = (ROOT / "docs" / "examples.md").read_text()
    missing = [path.name for path in (ROOT / "examples").iterdir() if path.name not in examples]
    assert [name for name in missing if not name.startswith(("_", "."))] == []
