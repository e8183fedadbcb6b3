"""What the options ask to be shown: refused if it cannot be, and free if it is nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import rankspawn
from tests.jobs import DEADLOCK


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tee": [0, 2]}, "tee names rank 2, but the ranks are 0 to 1"),
        ({"tee": True, "prefix": "{other} "}, "has {other}: it may have {rank}, {local_rank}"),
        ({"tee": True, "prefix": "{rank"}, "is no template"),
        ({"tee": True, "prefix": "{rank:x!}"}, "is no template"),
        ({"tee": True, "prefix": "a\n"}, "has a line end"),
        ({"prefix": "{rank} "}, "add tee=True"),
        ({"debug": "2,hold"}, "debug=2,hold is no rank: the ranks are 0 to 1"),
        ({"debug": 1, "progress": True}, "both need the terminal"),
    ],
)
def test_what_cannot_be_shown_is_refused_before_anything_starts(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    mark = tmp_path / "started"
    with pytest.raises(ValueError, match=re.escape(message)):
        rankspawn.spawn(Path.touch, args=(mark,), nprocs=2, backend="gloo", **options)
    assert not mark.exists()


UNUSED = """
import sys
import rankspawn

def modules():
    return sorted(sys.modules)

if __name__ == "__main__":
    loaded = rankspawn.spawn(modules, nprocs=1, backend="gloo").results()[0]
    for name in [*loaded, *sys.modules]:
        if name.startswith(("rankspawn.view", "rich", "psutil")) or "steps" in name:
            print(name)
"""


def test_who_does_not_look_loads_nothing_of_it(tmp_path: Path) -> None:
    script = tmp_path / "unused.py"
    script.write_text(UNUSED)
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=DEADLOCK, check=True
    )
    assert done.stdout == ""
