"""The page that shows passes, kernels and memory."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest

from scheduler.context import CompileContext, Stages
from scheduler.debug.viz import page, write_page
from scheduler.emit.artifact import emit
from scheduler.pipeline import passes, schedule
from scheduler.tensor.tensor import Tensor
from tests.scheduler.support.programs import floats, x


class _Page(HTMLParser):
    """What a page asks for from elsewhere, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.asked: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href") and value and not value.startswith("#"):
                self.asked.append(value)


def test_one_page_shows_passes_kernels_and_memory(tmp_path: Path) -> None:
    y = (x(8, 16) @ Tensor.weight(floats(16, 8))).contiguous().softmax()
    plan = schedule({"y": y.node}, context=CompileContext(stages=Stages()))
    made = emit({"run": plan}, name="two layers", kind="plain")
    text = page(made.manifest, made.plans)
    found = _Page(text)
    assert found.asked == []  # nothing is fetched from anywhere
    assert found.tags.count("svg") >= 2  # the kernels, and the memory over time
    for name, _ in passes(CompileContext()):
        assert name in text
    for kernel in made.manifest["kernels"]:
        assert kernel["name"] in text
    assert "__kernel" in text
    write_page(tmp_path / "page.html", made.manifest, made.plans)
    assert (tmp_path / "page.html").read_text(encoding="utf-8") == text


def test_viz_in_the_environment_writes_a_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "out.html"
    monkeypatch.setenv("VIZ", str(target))
    (x(8, 16) @ Tensor.weight(floats(16, 8))).relu().schedule()
    text = target.read_text(encoding="utf-8")
    assert "<svg" in text
    assert _Page(text).asked == []
