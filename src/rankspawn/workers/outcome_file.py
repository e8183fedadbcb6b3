"""The parent's side of the file in which a rank reports: made before the start, kept after the end.

See ``report`` for what is in it.
"""

from __future__ import annotations

import os

from rankspawn.descriptors import Owned, anonymous_file
from rankspawn.workers.parcel import WORD, pack_words
from rankspawn.workers.report import HEADER_WORDS


def make_outcome_file(flags: int, event_number: int) -> Owned:
    """A new file, with what the worker has to know from it.

    Args:
        flags: What is to be different from usual.
        event_number: What tells the failure event from others.
    """
    file = Owned(anonymous_file("rankspawn-outcome"))
    words = [flags, event_number, file.fileno(), os.getpid()]
    os.pwrite(file.fileno(), pack_words(words), HEADER_WORDS * WORD)
    return file
