"""What a dump of stacks shows of a rank."""

from __future__ import annotations

from pathlib import Path

from rankspawn.workers import child
from rankspawn.workers.stacks import without_our_frames


def test_what_has_called_the_function_is_left_out_of_its_stack() -> None:
    ours = Path(child.__file__).parent
    other = 'Thread 0x2 (most recent call first):\n  File "threading.py", line 1 in run\n\n'
    own = (
        "Current thread 0x1 (most recent call first):\n"
        f'  File "{ours}/group.py", line 9 in wait\n'  # a worker may have workers of its own
        '  File "train.py", line 9 in <lambda>\n'
    )
    below = (
        f'  File "{ours}/orders.py", line 2 in <lambda>\n'
        f'  File "{ours}/child.py", line 3 in work\n'
        '  File "train.py", line 99 in <module>\n'
    )
    assert without_our_frames(other + own + below) == other + own
    assert without_our_frames(own + below.partition("\n")[2]) == own
    assert without_our_frames(other) == other
