"""A trace to take a picture of: an imagined run in the real page, in a real browser."""

from __future__ import annotations

import hashlib
import math
import struct
import sys
import tempfile
import zlib
from pathlib import Path

from rankspawn.supervise.reports import Steps
from rankspawn.trace.page import make_page
from rankspawn.trace.recording import Ended, Recording
from rankspawn.view.ranks import Usage

ROOT = Path(__file__).parent.parent
SECONDS = 42.0
FAILURE = """Traceback (most recent call last):
  File "train.py", line 24, in train
    check(loss)
ValueError: the loss is not a number
"""


def imagined_run() -> Recording:
    """Four ranks on four GPUs, one of which fails."""
    facts = {"what": "train", "host": "node-a", "command": "python train.py"}
    recording = Recording([(rank, f"gpu {rank}") for rank in range(4)], facts)
    recording.starts.append(0.0)
    recording.seconds = SECONDS
    failed = SECONDS - 2.5
    for lane in recording.lanes:
        rank = lane.rank
        lane.starts(0.1 * rank, 4711 + rank)
        lane.is_in("loading", 0.9)
        lane.is_in("running", 5.5 + 0.6 * rank)
        for tenth in range(60, int(failed * 10)):
            at = tenth / 10
            busy = 96 - 30 * (math.sin(at / 3 + rank) > 0.9)
            lane.takes(Usage(busy, (2000 + 30 * rank + int(at) * 3) << 20), at)
            step = int((at - 5) * 8)
            loss = 2.1 * math.exp(-step / 90) + 0.25 + 0.05 * math.sin(step * (rank + 2) / 9)
            lane.reports(Steps(step, 400, {"loss": loss}), at)
            lane.is_in("running", at)
        if rank == 2:
            lane.ends(Ended("failed", "failed with exit code 1", failed, True, FAILURE), SECONDS)
            lane.lines = [(failed - 9 + step, f"step {step * 8 + 220}") for step in range(9)]
        else:
            text = "stopped because of others"
            lane.ends(Ended("stopped", text, failed, False, ""), SECONDS - 1.5 + rank / 4)
    recording.fails(ValueError("Process 2 terminated with the following error:\n" + FAILURE))
    return recording


def is_stale(path: Path) -> bool:
    """Whether the page is another one than that of which this picture was taken."""
    return not path.exists() or _note() not in path.read_bytes()


def _note() -> bytes:
    """What a picture says of the page of which it was taken, as PNG has such texts."""
    folder = ROOT / "src" / "rankspawn" / "trace" / "page"
    sources = [Path(__file__), *sorted(path for path in folder.iterdir() if path.is_file())]
    digest = hashlib.sha256(b"".join(path.read_bytes() for path in sources))
    text = b"tEXtpage\0" + digest.hexdigest().encode()
    return struct.pack(">I", len(text) - 4) + text + struct.pack(">I", zlib.crc32(text))


def draw_trace(path: Path) -> bool:
    """Draw the page; False where there is no browser."""
    sys.path.insert(0, str(ROOT))
    from tests.browser import CHROMIUM, Browser

    if CHROMIUM is None:
        return False
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        page = folder / "run.html"
        page.write_text(make_page(imagined_run().as_data()), encoding="utf-8")
        with Browser(folder) as browser:
            browser.open(page.as_uri(), width=1200, height=690)
            browser.press("n")
            picture = browser.picture(path)
    # The last chunk, of twelve bytes, says that the picture is over.
    path.write_bytes(picture[:-12] + _note() + picture[-12:])
    return True
