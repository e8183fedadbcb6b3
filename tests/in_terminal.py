"""Runs a program with its standard input as controlling terminal: ``login`` in three lines."""

from __future__ import annotations

import fcntl
import os
import sys
import termios

if __name__ == "__main__":
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
