"""``python -m rankspawn.launch``, the same as ``rankrun``."""

from __future__ import annotations

import sys

from rankspawn.launch.cli import main

if __name__ == "__main__":
    sys.exit(main())
