"""Which modules of rankspawn one ``spawn`` crosses, in the order of its way.

    python benchmarks/hops.py [start method]

A reader who follows a call has these files open. The parent's calls are seen by a profiler; the
worker's modules are those that it has loaded when its function runs. The list in docs/design.md is
made with this.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from types import FrameType


def loaded_here() -> list[str]:
    """Runs in the worker: the modules of rankspawn that it has loaded."""
    return sorted(name for name in sys.modules if name.startswith("rankspawn"))


def main() -> None:
    """Print both lists."""
    import threading

    import rankspawn

    folder = os.path.dirname(rankspawn.__file__)
    crossed: dict[str, int] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        path = frame.f_code.co_filename
        # A module's own body is an import, no step of the way.
        if event == "call" and path.startswith(folder) and frame.f_code.co_name != "<module>":
            crossed[path] = crossed.get(path, 0) + 1

    method = sys.argv[1] if len(sys.argv) > 1 else "spawn"
    spawn, get = rankspawn.spawn, rankspawn.MultiprocessContext.results
    spawn(loaded_here, nprocs=1, backend="gloo", start_method=method)  # so that imports are done
    threading.setprofile(note)
    sys.setprofile(note)
    context = spawn(loaded_here, nprocs=2, backend="gloo", start_method=method)
    results = get(context)
    sys.setprofile(None)
    print(f"parent: {len(crossed)} modules")
    for path in crossed:
        print("  ", os.path.relpath(path, folder))
    print(f"worker: {len(results[0])} modules")
    for name in results[0]:
        print("  ", name)


if __name__ == "__main__":
    main()
