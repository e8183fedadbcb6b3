"""``python -m rankspawn``, the same as ``rankspawn``."""

from __future__ import annotations

import sys

from rankspawn.cli import main

if __name__ == "__main__":
    sys.exit(main())
