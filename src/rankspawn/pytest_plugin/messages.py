"""What the parent's pytest and the pytest of a rank tell each other.

A rank is given an :class:`Assignment` and answers with messages. Both ways are for text and plain
data only, since a test may raise, warn with and record objects of any class.
"""

from __future__ import annotations

import pickle
import sys
import warnings
from dataclasses import dataclass, field
from typing import Any

from rankspawn.workers.exceptions import repr_of

# A message: its kind, a text or data, and a packed exception.
Message = tuple[str, Any, dict[str, Any] | None]
# The kinds. The first two say nothing about how the test ended.
STARTED = "started"
WARNING = "warning"
REPORT = "report"
BROKEN = "broken"
EXIT = "exit"

DEBUG_INSTEAD = (
    "Run the function by itself under rankspawn.spawn(..., debug=RANK), or the test without its "
    "ranks"
)
"""What to do where a debugger is refused: the end of a sentence about the reason."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """The one test that a rank's pytest has to run, and how the parent's pytest was called.

    Attributes:
        target: The test: its file's absolute path, and its name there.
        args: The command line of the parent.
        folder: Where the parent was called.
        temporary: A folder of this test; each rank's ``tmp_path`` and messages are in it.
        shared_folder: The folder for ``shared_tmp_path``.
        options: Values that pytest or a plugin has chosen, such as a random seed.
    """

    target: str
    args: tuple[str, ...]
    folder: str
    temporary: str
    shared_folder: str
    options: dict[str, Any] = field(default_factory=dict)

    def message_file(self, rank: int) -> str:
        """The path of the file that a rank appends its messages to."""
        return f"{self.temporary}/messages.{rank}"


@dataclass(frozen=True, slots=True)
class WarmRequest:
    """What the warm process has to collect, and how the parent's pytest was called.

    Attributes:
        files: The files of the tests.
        args: The command line of the parent.
        dir: Where the parent was called.
        rootdir: The root of the parent's tests.
        folder: Where the request is, and where its answer goes.
        options: Values that pytest or a plugin has chosen, such as a random seed.
        shows_output: What is printed goes to the parent's terminal.
    """

    files: list[str]
    args: list[str]
    dir: str
    rootdir: str
    folder: str
    options: dict[str, Any]
    shows_output: bool


def append_message(path: str, message: Message) -> int:
    """Runs in the worker: write a message to the end of its file; the number of its bytes."""
    data = _pickled(message)
    with open(path, "ab") as file:
        return file.write(data)


def read_message(path: str, start: int, length: int) -> Message:
    """Runs in the parent: the message that begins at a byte of the file."""
    with open(path, "rb") as file:
        file.seek(start)
        message: Message = pickle.loads(file.read(length))
        return message


def pack_warning(recorded: warnings.WarningMessage) -> dict[str, Any]:
    """Runs in the worker: what the parent needs in order to show a warning."""
    return {
        "text": str(recorded.message),
        "kinds": [(kind.__module__, kind.__qualname__) for kind in recorded.category.__mro__],
        "filename": recorded.filename,
        "lineno": recorded.lineno,
    }


def unpack_warning(packed: dict[str, Any]) -> warnings.WarningMessage:
    """Runs in the parent: the warning, with the nearest class of it that is known here."""
    category = next(filter(None, map(_known_warning, packed["kinds"])), Warning)
    try:
        message = category(packed["text"])
    except Exception:  # a class with a constructor of its own
        category, message = UserWarning, UserWarning(packed["text"])
    return warnings.WarningMessage(message, category, packed["filename"], packed["lineno"])


def _known_warning(name: tuple[str, str]) -> type[Warning] | None:
    """The class of a warning, if its module was imported here: importing it would run its code."""
    kind = getattr(sys.modules.get(name[0]), name[1], None)
    return kind if isinstance(kind, type) and issubclass(kind, Warning) else None


def _pickled(message: Message) -> bytes:
    """The message as bytes; what a plugin added to a report and cannot be sent goes as text."""
    try:
        return pickle.dumps(message)
    except Exception:  # whatever a class of a plugin raises
        kind, content, exception = message
        plain = {name: _or_text(value) for name, value in dict(content).items()}
        return pickle.dumps((kind, plain, exception))


def _or_text(value: Any) -> Any:
    """The value if it can be pickled, else its repr."""
    try:
        pickle.dumps(value)
    except Exception:  # see above
        return repr_of(value)
    return value
