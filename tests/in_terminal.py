"""Runs a program with its standard input as controlling terminal: ``login`` in three lines."""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import termios

if __name__ == "__main__":
    # A shell ignores the one for what it runs in the background, and nohup the other.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    signal.signal(signal.SIGQUIT, signal.SIG_DFL)
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
