"""The examples of real frameworks with ``progress=True``, in a terminal."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.terminal import Session
from tests.test_examples import EXAMPLES, assert_prints

pytestmark = pytest.mark.interop


@pytest.fixture(params=["torch_ddp.py", "paddle_linear.py"])
def session(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Session]:
    pytest.importorskip("rich")
    framework = request.param.partition("_")[0]
    if find_spec(framework) is None:  # not imported: Paddle changes the environment
        pytest.skip(f"{framework} is not installed")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # frameworks keep caches there
    text = (EXAMPLES / request.param).read_text()
    changed = text.replace('backend="gloo")', 'backend="gloo", progress=True)')
    assert changed != text
    one = Session(tmp_path, changed)
    one.name = request.param  # type: ignore[attr-defined]
    yield one
    one.close()


def test_example_with_a_live_view(session: Session) -> None:
    # The import of the framework alone takes longer than what is not worth a view.
    session.read_until("step or last line")
    assert session.finish() == 0, session.output
    assert "2 ranks after" in session.output
    assert "2 done" in session.output
    assert_prints(session.name, session.output)  # type: ignore[attr-defined]


def test_a_tensor_is_reported_as_its_number() -> None:
    torch = pytest.importorskip("torch")
    from rankspawn.reporting import _plain

    assert _plain(torch.tensor(0.25)) == 0.25
    assert _plain(torch.tensor([1.0, 2.0])) != ""
