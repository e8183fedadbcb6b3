"""A real browser without a window, spoken to through a pair of pipes."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.jobs import DEADLOCK

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
_FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--disable-crash-reporter", "--disable-breakpad"),
    *("--remote-debugging-pipe", "--hide-scrollbars", "--host-resolver-rules=MAP * ~NOTFOUND"),
)
# It reads from 3 and writes to 4, whatever these are here.
_HAND_OVER = """
import fcntl, os, sys
read, write = (fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 10) for fd in sys.argv[1:3])
os.dup2(read, 3)
os.dup2(write, 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


class Browser:
    """One page in Chromium.

    Args:
        folder: A new folder for what it keeps.
    """

    def __init__(self, folder: Path) -> None:
        assert CHROMIUM is not None
        theirs_read, self._write = os.pipe()
        self._read, theirs_write = os.pipe()

        self._process = subprocess.Popen(
            [
                *(sys.executable, "-c", _HAND_OVER, str(theirs_read), str(theirs_write)),
                *(CHROMIUM, *_FLAGS, f"--user-data-dir={folder / 'browser'}", "about:blank"),
            ],
            pass_fds=(theirs_read, theirs_write),
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            env=os.environ | {"HOME": str(folder), "XDG_RUNTIME_DIR": str(folder)},
        )
        os.close(theirs_read)
        os.close(theirs_write)
        self._number = 0
        self._rest = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Have it do something, and what it answers."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def _next(self) -> dict[str, Any]:
        limit = time.monotonic() + DEADLOCK
        while b"\0" not in self._rest:
            ready = select.select([self._read], [], [], max(0.0, limit - time.monotonic()))[0]
            chunk = os.read(self._read, 1 << 20) if ready else b""
            assert chunk, "the browser is gone, or does not answer"
            self._rest += chunk
        message, _, self._rest = self._rest.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer

    def _note(self, event: dict[str, Any]) -> None:
        if event.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded"):
            self.complaints.append(json.dumps(event["params"]))

    def open(self, url: str, *, width: int = 1400, height: int = 900, dark: bool = False) -> None:
        """Show a page, and wait until all of it is there."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self.call("Page.navigate", url=url)
        while self.run("document.readyState") != "complete":
            pass

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def click(self, x: float, y: float) -> None:
        """Press and release the mouse there."""
        for kind in ("mouseMoved", "mousePressed", "mouseReleased"):
            buttons = {} if kind == "mouseMoved" else {"button": "left", "clickCount": 1}
            self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **buttons)

    def press(self, key: str) -> None:
        """Press a key."""
        text = {"text": key} if len(key) == 1 else {}
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def picture(self, path: Path) -> bytes:
        """What it shows, as PNG; also written to a file."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return data

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(DEADLOCK)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
            os.close(self._read)
            os.close(self._write)
