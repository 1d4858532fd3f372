"""The pages that commands write, in a real browser: they open, are drawn, and ask for nothing."""

from pathlib import Path
from typing import Any

import pytest

from tests.tools.compare import made_logs
from tests.tools.compare.made_logs import move_lines, unchanged
from tests.tools.conftest import SIZE, write_video
from tests.tools.lib.test_history import STEADY, runs_of
from tests.tools.regress.conftest import moved_lines
from tests.tools.regress.planted import jobs_here
from tests.tools.tiny_driving import write_tiny_driving
from tests.tools.views.browser import Browser
from tools.cli import main
from tools.report.history import append_run

pytestmark = [pytest.mark.opencl, pytest.mark.alone, pytest.mark.slow]

PAGES = ("replay", "set", "compare", "regress", "history")
DESKTOP_PX, PHONE_PX, WIDE_PX = 1280, 390, 1920
# The longest line of text in pixels, and how high letters of charts are at least.
LONGEST_LINE = "Math.max(...[...document.querySelectorAll('p')].map(one => one.offsetWidth))"
SMALLEST_LETTERS = """
Math.min(...[...document.querySelectorAll('.pair svg text')].filter(one => one.checkVisibility())
  .map(one => one.getBoundingClientRect().height))
"""
# Boxes in the page, from its upper left corner.
BOXES = """
[...document.querySelectorAll('svg')].map(svg => {
  const box = svg.getBoundingClientRect();
  return {x: box.x + scrollX, y: box.y + scrollY, width: box.width, height: box.height,
          shapes: svg.querySelectorAll('path, circle, polyline, line, rect, image').length,
          name: svg.getAttribute('aria-label') || ''};
})
"""
# How many cells of numbers take more than one line.
BROKEN_NUMBERS = """
[...document.querySelectorAll('td.number')].filter(cell => {
  const range = document.createRange();
  range.selectNodeContents(cell);
  return new Set([...range.getClientRects()].map(box => Math.round(box.top))).size > 1;
}).length
"""
OPEN_ALL = "document.querySelectorAll('details').forEach(one => { one.open = true; })"
IMAGES = """
[...document.querySelectorAll('svg image')].map(image => {
  const box = image.getBoundingClientRect();
  return {x: box.x, width: box.width, height: box.height};
})
"""


def move_lines_and_path(service: str, frame_id: int, event: Any) -> None:
    """Move a lane line by a quarter of a metre, and the path by a millimetre a point."""
    move_lines(service, frame_id, event)
    if service == "modelV2" and frame_id >= 120:
        lateral = event.modelV2.position.y
        for point in range(len(lateral)):
            lateral[point] += 1e-3 * point


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """One page of each kind, with differences to show."""
    root = tmp_path_factory.mktemp("pages")
    found = {name: root / f"{name}.html" for name in PAGES}

    def modeld(code: int, *words: object) -> None:
        assert main([*map(str, words)]) == code

    before = write_tiny_driving(root / "before.pkl", SIZE)
    after = moved_lines(root / "after.pkl", 0.3)
    drives = [write_video(root / name, frames) for name, frames in (("a.mkv", 12), ("b.mkv", 9))]
    one = ["--model", before, "-o", root / "out.rlog", "--report", found["replay"]]
    modeld(0, "replay", drives[0], *one)
    models = ["--model", before, after, "-o", root / "set", "--report", found["set"]]
    modeld(0, "replay", *drives, *models)
    logs = [
        made_logs.write_log(root / name, made_logs.drive(range(100, 150), change))
        for name, change in (("left.rlog", unchanged), ("right.rlog", move_lines_and_path))
    ]
    modeld(1, "compare", *logs, "--html", found["compare"])
    for run in runs_of(*STEADY, *[13.0] * 6, 17.0):
        append_run(root / "history", run)
    modeld(1, "history", root / "history", "--html", found["history"])
    with jobs_here():
        rest = ["--reference", root / "references", "--no-timing", "--drives", *drives]
        modeld(0, "regress", "--model", before, *rest, "--update", "--reason", "the first one")
        modeld(1, "regress", "--model", after, "--report", found["regress"], *rest)
    return found


def blank_boxes(page: Browser) -> list[str]:
    """Return the names of the drawings of which nothing can be seen."""
    picture = page.picture()
    found = []
    for box in page.ask(BOXES):
        left, top = int(box["x"]), int(box["y"])
        area = picture[top : top + int(box["height"]), left : left + int(box["width"])]
        if area.size == 0 or not box["shapes"] or area.reshape(-1, 3).std(axis=0).max() < 1.0:
            found.append(box["name"])
    return found


@pytest.mark.parametrize("width", [DESKTOP_PX, PHONE_PX, WIDE_PX])
@pytest.mark.parametrize("name", PAGES)
def test_a_page_opens_is_drawn_and_asks_for_nothing(
    chromium: Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    seen = chromium.open(pages[name], width)
    assert seen.errors == []
    asked = [address for address in seen.requests if not address.startswith("data:")]
    assert asked == [pages[name].resolve().as_uri()]
    # Nothing sticks out of the page, folded or open; what is wider moves by itself.
    assert chromium.ask("document.documentElement.scrollWidth") == width
    chromium.ask(OPEN_ALL)
    assert chromium.ask("document.documentElement.scrollWidth") == width
    assert chromium.ask(BROKEN_NUMBERS) == 0
    boxes = chromium.ask(BOXES)
    # What is seen of a drawing that moves by itself is the page's width at most.
    assert len(boxes) >= {"replay": 6, "set": 10, "compare": 4, "regress": 4, "history": 1}[name]
    assert all(box["width"] > 100 and box["height"] > 60 for box in boxes), boxes
    assert blank_boxes(chromium) == []
    # No column of words is so narrow that they break up; numbers never do.
    words = "[...document.querySelectorAll('td:not(.number)')]"
    narrowest = f"Math.min(...{words}.map(cell => cell.offsetWidth))"
    assert chromium.ask(narrowest) >= (40 if width == PHONE_PX else 10)


@pytest.mark.parametrize("name", PAGES)
def test_a_wide_window_has_wide_pictures_and_lines_that_can_be_read(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.open(pages[name], WIDE_PX)
    assert 300 < chromium.ask(LONGEST_LINE) < 1050
    assert chromium.ask("document.querySelector('main').offsetWidth") > 1500


@pytest.mark.parametrize("name", ["compare", "history"])
def test_letters_of_charts_do_not_shrink_with_the_page(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.open(pages[name], PHONE_PX)
    assert chromium.ask(SMALLEST_LETTERS) > 11


@pytest.mark.parametrize("name", ["compare", "regress"])
def test_a_page_about_a_change_opens_with_metres_and_the_worst_frame(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.open(pages[name], PHONE_PX)
    words = chromium.ask("document.querySelector('main').innerText")
    said = {
        "compare": "The path moves by at most 1.4 cm after 2 s",
        "regress": "2 of 2 drives changed",
    }
    assert said[name] in words.partition("Effect on the drive")[0]
    # Fields, with their exponents and many digits, are folded.
    assert "e-05" not in words
    top = "document.querySelector('svg').getBoundingClientRect().top + scrollY"
    assert chromium.ask(top) < chromium.ask("document.body.scrollHeight") / 2


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_dark_for_those_who_want_that(
    chromium: Browser, pages: dict[str, Path], name: str
) -> None:
    chromium.open(pages[name], DESKTOP_PX)
    chromium.prefer(prefers_color_scheme="dark")
    dark = int(chromium.picture()[2, 2].sum())
    chromium.prefer()
    light = int(chromium.picture()[2, 2].sum())
    assert dark < 150
    assert light > 700


@pytest.mark.parametrize("name", ["replay", "set", "regress"])
def test_pictures_are_decoded(chromium: Browser, pages: dict[str, Path], name: str) -> None:
    chromium.open(pages[name], DESKTOP_PX)
    images = chromium.ask(IMAGES)
    assert images
    assert all(image["width"] > 300 and image["height"] > 200 for image in images)
    # Each embedded picture is one that the browser can decode.
    decoded = """
    Promise.all([...document.querySelectorAll('svg image')].map(image => {
      const copy = new Image(); copy.src = image.href.baseVal; return copy.decode();
    })).then(all => all.length)
    """
    assert chromium.ask(decoded) == len(images)


def test_what_is_wrong_with_a_page_is_seen(chromium: Browser, tmp_path: Path) -> None:
    page = tmp_path / "bad.html"
    page.write_text(
        "<!doctype html><p style='width: 2000px'>wide</p><svg aria-label='empty' width=200 "
        "height=200></svg><svg aria-label='white' width=200 height=200><rect width=200 height=200 "
        "fill='white'/></svg><img src='missing.png'><script>console.error('oh'); f();</script>"
    )
    seen = chromium.open(page, DESKTOP_PX)
    assert any("oh" in error for error in seen.errors)
    assert any("f is not defined" in error for error in seen.errors)
    assert any(address.endswith("missing.png") for address in seen.requests)
    assert chromium.ask("document.documentElement.scrollWidth") > DESKTOP_PX
    assert blank_boxes(chromium) == ["empty", "white"]
