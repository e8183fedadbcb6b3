"""Whole lines out of what a rank prints, in whatever pieces it arrives.

A progress bar redraws its line with carriage returns, and moves the cursor. Shown beside what
other ranks print, that would overwrite their lines; so of a redrawn line only its last state
counts, and nothing but colours is left of the codes for terminals. No effects in here.
"""

from __future__ import annotations

import re

# A line of this length is no line. It is shown in pieces, so that it need not be kept.
LONGEST = 1 << 20
# All but colours: cursor movements, titles, single-character codes, bells and backspaces.
_CODES = re.compile(
    rb"\x1b\[[0-?]*[ -/]*[@-ln-~]"
    rb"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?"
    rb"|\x1b(?![\[\]])[ -/]*[0-~]"
    rb"|[\x00-\x08\x0b-\x1a\x1c-\x1f\x7f]"
)
_COLOUR = re.compile(rb"\x1b\[([0-9;:]*)m")
_UP = re.compile(rb"\x1b\[\d*A\s*\Z")
_RESET = b"\x1b[0m"


def clean(line: bytes) -> bytes:
    """A line as it looks in the end, without what would disturb its neighbours."""
    text = _CODES.sub(b"", _last_state(line)).rstrip(b"\x1b")
    colours = _COLOUR.findall(text)
    # What follows is another rank's, which must not inherit the colour.
    return text + _RESET if colours and colours[-1].strip(b"0;") else text


def _last_state(line: bytes) -> bytes:
    """What was drawn last; nothing if it was wiped with spaces."""
    if b"\r" not in line:
        return line
    drawn = [state for state in line.split(b"\r") if state]
    return drawn[-1].rstrip() if drawn else b""


class LineAssembler:
    """What one rank prints, put together line by line."""

    def __init__(self) -> None:
        self._rest = b""
        self._state = b""  # of the line that is being redrawn
        self._told = b""

    @property
    def last(self) -> bytes:
        """How the line that is not finished looks now."""
        return self._state or clean(self._rest)

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that this completes, cleaned, without their ends."""
        lines = []
        *ends, rest = data.split(b"\n")
        for end in ends:
            line, self._rest = self._rest + end, b""
            text = clean(line)
            if _UP.search(line):  # the next one overwrites this line, or one above it
                self._state = text
                continue
            # Of a redrawn line, what was wiped is not shown, nor what was shown already.
            if b"\r" not in line or (text and text != self._told):
                lines.append(text)
            self._state = self._told = b""
        self._rest += rest
        if b"\r" in rest:
            self._forget_old_states()
        if len(self._rest) >= LONGEST:
            lines.append(clean(self._rest))
            self._rest = b""
        return lines

    def _forget_old_states(self) -> None:
        """A bar that is redrawn for hours must not be kept for hours."""
        before, _, last = self._rest.rpartition(b"\r")
        state = last or _last_state(b"\r" + before)
        self._state = clean(state)
        self._rest = b"\r" + state + (b"" if last else b"\r")

    @property
    def has_news(self) -> bool:
        """A line is being redrawn, and looks different from when it was last told."""
        return bool(self._state) and self._state != self._told

    def take_state(self) -> bytes:
        """How the line that is being redrawn looks now."""
        self._told = self._state
        return self._state

    def finish(self) -> list[bytes]:
        """The last line, if it has no end."""
        rest, self._rest = clean(self._rest), b""
        state, self._state = self._state, b""
        text = rest or state
        return [text] if text and text != self._told else []
