"""What the fork server of the tests preloads; importing it is what warms that process up.

Runs in the fork server, and nowhere else: there is no other way to have it do something.
"""

from __future__ import annotations

import os

VARIABLE = "RANKSPAWN_WARM"

_folder = os.environ.pop(VARIABLE, "")
if _folder:
    from rankspawn.pytest_plugin.in_warm_process import warm_up

    warm_up(_folder)
