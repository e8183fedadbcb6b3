"""The page, in a real browser where there is one; see also the pictures of the gallery."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rankspawn.supervise.reports import Steps
from rankspawn.trace.page import make_page
from rankspawn.trace.recording import Ended
from tests.browser import CHROMIUM, Browser
from tests.trace.trace_cases import HOSTILE, data_of, make_recording


def test_what_ranks_printed_is_no_markup() -> None:
    data = data_of(2, failed=1)
    data["facts"]["what"] = HOSTILE.replace("\ud800", "")
    page = make_page(data)
    page.encode()
    assert page.count("<script") == 2
    assert page.count("</script>") == 2
    assert page.count("<!--") == 0
    told = re.search(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert told is not None
    assert json.loads(told[1]) == data


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = make_page(data_of(2))
    assert "default-src 'none'" in page
    assert not re.search(r"https?://|@import|url\(|src=", page)


@pytest.mark.slow
@pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium (Debian: chromium)")
class TestInABrowser:
    @pytest.fixture
    def browser(self, tmp_path: Path) -> Iterator[Browser]:
        with Browser(tmp_path) as browser:
            yield browser

    def show(self, browser: Browser, folder: Path, data: dict[str, Any], **options: Any) -> None:
        path = folder / "run.html"
        path.write_text(make_page(data), encoding="utf-8")
        browser.open(path.as_uri(), **options)
        assert browser.complaints == []

    def text(self, browser: Browser, selector: str) -> str:
        return str(browser.run(f"document.querySelector({selector!r}).innerText"))

    def lane(self, browser: Browser, row: int) -> tuple[float, float]:
        """Where a lane is, in the middle of the run."""
        box = browser.run(
            "(() => { const b = document.getElementById('lanes').getBoundingClientRect();"
            "return [b.left, b.top, b.width]; })()"
        )
        return box[0] + box[2] / 2, box[1] + 20 + 44 * row + 22

    def test_two_ranks(self, browser: Browser, tmp_path: Path) -> None:
        self.show(browser, tmp_path, data_of(2, failed=1))
        assert self.text(browser, "#summary") == "2 ranks, 10.00 s: 1 stopped, 1 failed"
        assert HOSTILE[:40] in self.text(browser, "#error-text")
        assert browser.run("document.getElementById('detail').hidden")

        before = browser.picture(tmp_path / "before.png")
        browser.click(*self.lane(browser, 1))
        detail = self.text(browser, "#detail")
        assert detail.startswith("rank 1\n")
        assert "it failed first" in detail
        assert "line of rank 1" in detail
        assert "barrier\t9 calls, 0.50 s" in detail
        assert "for rank 0\t0.25 s" in detail
        assert HOSTILE[:40] in detail
        assert browser.run("document.title") == "train"
        assert browser.picture(tmp_path / "after.png") != before

        browser.press("ArrowUp")
        assert self.text(browser, "#detail").startswith("rank 0\n")
        browser.press("Escape")
        assert browser.run("document.getElementById('detail').hidden")

    def test_curves_end_where_a_group_is_restarted(self, browser: Browser, tmp_path: Path) -> None:
        recording = make_recording(2, failed=1)
        recording.starts.append(10.0)
        for lane in recording.lanes:
            lane.starts(10.1, 5000 + lane.rank)
            lane.is_in("running", 10.5)
            lane.reports(Steps(1, 100, {"loss": 1.0}), 11)
            lane.reports(Steps(2, 100, {"loss": 0.5}), 12)
            lane.ends(Ended("done", "done", 12.0), 12.0)
        recording.seconds = 12.0
        self.show(browser, tmp_path, recording.as_data())
        assert self.has_colour(browser, 11.5 / 12)
        assert not self.has_colour(browser, 10.5 / 12)

    def has_colour(self, browser: Browser, part: float) -> bool:
        """Whether a curve goes through the chart there; the lines behind it are grey."""
        colours = browser.run(
            "(() => { const chart = document.getElementById('chart');"
            f"const at = 108 + {part} * (document.getElementById('scroll').clientWidth - 116);"
            "return [...chart.getContext('2d').getImageData(at, 0, 1, chart.height).data]; })()"
        )
        pixels = [colours[at : at + 3] for at in range(0, len(colours), 4)]
        return any(max(pixel) - min(pixel) > 60 for pixel in pixels)

    def test_a_thousand_ranks(self, browser: Browser, tmp_path: Path) -> None:
        self.show(browser, tmp_path, data_of(1000, failed=437))
        # As much is drawn as is seen, however many there are.
        assert browser.run("document.getElementById('lanes').height") < 900
        browser.press("n")
        assert self.text(browser, "#detail").startswith("rank 437\n")
        assert browser.run("document.getElementById('scroll').scrollTop") > 1000
        browser.run(
            "(() => { const f = document.getElementById('filter'); f.value = '10-12';"
            "f.dispatchEvent(new Event('input')); })()"
        )
        assert browser.run("document.getElementById('spacer').offsetHeight") < 100

    @pytest.mark.parametrize("dark", [False, True])
    def test_a_telephone(self, dark: bool, browser: Browser, tmp_path: Path) -> None:
        self.show(browser, tmp_path, data_of(4, failed=2), width=390, height=800, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") <= 390
        back = browser.run("getComputedStyle(document.body).backgroundColor")
        assert back == ("rgb(20, 23, 28)" if dark else "rgb(255, 255, 255)")
        browser.run("document.getElementById('next').click()")
        assert self.text(browser, "#detail").startswith("rank 2\n")
        browser.run("document.getElementById('close').click()")
        assert browser.run("document.getElementById('detail').hidden")
