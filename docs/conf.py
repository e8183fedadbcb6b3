"""Configuration of the site; ``docs/design.md`` says how to build it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parent.parent
_INIT = (_ROOT / "src" / "rankspawn" / "__init__.py").read_text()

project = "rankspawn"
author = "the rankspawn developers"
copyright = author
version = release = re.search(r'__version__ = "(.+)"', _INIT)[1]  # type: ignore[index]

extensions = ["myst_parser"]
root_doc = "index"
exclude_patterns = ["_build", "*.py"]
# Blocks without a language are diagrams and commands.
highlight_language = "none"
nitpicky = True
# As forges name them, so that links work there and here.
myst_heading_anchors = 3
html_theme = "furo"
html_title = "rankspawn"
html_copy_source = False
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
html_js_files = ["copy.js"]
# Where the project lives, if its metadata say so.
_PROJECT = tomllib.loads((_ROOT / "pyproject.toml").read_text())["project"]
_REPOSITORY: str | None = _PROJECT.get("urls", {}).get("Repository")
if _REPOSITORY is not None:
    html_theme_options = {
        "source_repository": _REPOSITORY,
        "source_branch": "main",
        "source_directory": "docs/",
    }

# Beside the page rather than in it, where it would show as code on a forge.
_CONTENTS = """

```{toctree}
:hidden:
:caption: Start

tutorial
gallery
examples
```

```{toctree}
:hidden:
:caption: How to

howto/paddle
howto/torch
howto/jax
howto/numpy
parallel
cluster
howto/notebooks
howto/logs
howto/debug
howto/logging
howto/trace
howto/look
howto/supervise
howto/devices-and-nodes
launch
testing
doctor
howto/migrate-from-paddle
howto/migrate-from-torch
```

```{toctree}
:hidden:
:caption: Look up

why
reference
reliability
performance
scale
design
changelog
{repository}
```
"""


def _add_contents(_app: object, docname: str, source: list[str]) -> None:
    """Add what the site has, and a forge shows elsewhere."""
    if docname == root_doc:
        repository = "" if _REPOSITORY is None else f"repository <{_REPOSITORY}>"
        source[0] += _CONTENTS.replace("{repository}", repository)
    elif docname == "changelog":
        # Its links are from the root of the tree.
        changes = (_ROOT / "CHANGELOG.md").read_text()
        source[0] = changes.replace("# Changes", "# Changelog", 1).replace("](docs/", "](")
    elif docname == "examples":
        for path in sorted((_ROOT / "examples").glob("*.py")):
            source[0] += f"\n## {path.name}\n```python\n{path.read_text()}```\n"


def setup(app: Any) -> None:
    """Sphinx calls this."""
    app.connect("source-read", _add_contents)
