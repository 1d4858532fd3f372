"""The live view in a real browser: live and from a log, by keys and for screen readers."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from tests.tools.conftest import MakeVideo
from tests.tools.live.speaker import View, drive_log, speaking, write_log
from tests.tools.views.browser import Browser
from tests.tools.waiting import wait_until

pytestmark = [pytest.mark.alone, pytest.mark.slow]

SIZES = ((390, 844), (1024, 768), (1920, 1080))
CANVASES = ("picture", "top", "plot-speed", "plot-curvature", "plot-acceleration", "plot-execution")
# A sum over the pixels of a canvas that differs with each of them, and how many colours it has.
PIXELS = """
(id => {
  const canvas = document.getElementById(id);
  const data = new Uint32Array(
    canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  let sum = 0;
  for (let at = 0; at < data.length; at += 1) sum = (sum * 31 + data[at]) >>> 0;
  return [sum, new Set(data).size];
})('%s')
"""
TEXT = "document.getElementById('%s').textContent"
GROUND = "getComputedStyle(document.body).backgroundColor"
ARROW_LEFT, ARROW_RIGHT, HOME, END, SPACE = 37, 39, 36, 35, 32


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return write_log(tmp_path / "drive.rlog", drive_log(range(200)))


def pixels(page: Browser, canvas: str) -> tuple[int, int]:
    found: list[int] = page.ask(PIXELS % canvas)
    return found[0], found[1]


def moved(page: Browser, canvas: str, before: tuple[int, int]) -> bool:
    return pixels(page, canvas)[0] != before[0]


def text(page: Browser, name: str) -> str:
    return str(page.ask(TEXT % name))


def frame_id(page: Browser) -> int:
    """Return the id that the clock of the timeline shows."""
    return int(text(page, "clock").rpartition("#")[2])


def check_layout(page: Browser, width: int) -> None:
    assert page.ask("document.documentElement.scrollWidth") == width
    cut = """
    [...document.querySelectorAll('button, dd, h1, h2, td, figcaption')]
      .filter(one => one.offsetParent !== null && one.scrollWidth > one.clientWidth + 1
                     && getComputedStyle(one).display !== 'inline')
      .map(one => one.textContent)
    """
    assert page.ask(cut) == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_daemon_is_watched_and_everything_moves(
    chromium: Browser, tmp_path: Path, width: int, height: int
) -> None:
    bus, server = f"ipc://{tmp_path}", f"view-{os.getpid()}"
    with speaking(bus, server), View("--bus", bus, "--camera-server", server) as view:
        chromium.open(view.url, width, height)
        wait_until(lambda: text(chromium, "state-text") == "running", "it runs")
        wait_until(lambda: "frame" in text(chromium, "picture-note"), "a picture")
        wait_until(lambda: "healthy" in text(chromium, "health-state"), "health")
        before = {name: pixels(chromium, name) for name in CANVASES}
        for name in CANVASES:
            wait_until(partial(moved, chromium, name, before[name]), name)
        assert all(colours > 5 for _, colours in before.values())
        assert text(chromium, "numbers").startswith("frame")
        assert "model" in text(chromium, "stage-rows")
        assert "frameOverwritten2" in text(chromium, "fault-rows")
        assert "a device" in text(chromium, "facts")
        check_layout(chromium, width)
        seen = chromium.seen()
        assert seen.errors == []
        assert all(one.startswith(view.url) for one in seen.requests)
        # Space freezes what is seen, and only that.
        chromium.press(" ", SPACE)
        wait_until(lambda: "frozen" in text(chromium, "state-text"), "frozen")
        # A picture that was being decoded may still come.
        chromium.ask("new Promise(done => setTimeout(done, 400))")
        frozen = pixels(chromium, "picture")
        chromium.ask("new Promise(done => setTimeout(done, 600))")
        assert pixels(chromium, "picture") == frozen
        chromium.press(" ", SPACE)
        wait_until(lambda: pixels(chromium, "picture") != frozen, "it goes on")


def test_a_page_without_a_daemon_says_so_and_goes_on_when_one_comes(
    chromium: Browser, tmp_path: Path
) -> None:
    bus = f"ipc://{tmp_path}"
    with View("--bus", bus, "--camera-server", "nobody-at-all") as view:
        chromium.open(view.url, 1024, 768)
        waits = f"waiting for modelV2 on {bus}"
        wait_until(lambda: text(chromium, "banner-text") == waits, "the banner")
        wait_until(lambda: "since 1 s" in text(chromium, "banner-more"), "since when")
        wait_until(lambda: waits in text(chromium, "announce"), "it is said")
        assert "nobody-at-all" in chromium.ask("picture.getAttribute('aria-label')")
        with speaking(bus):
            wait_until(lambda: text(chromium, "state-text") == "running", "it runs")
            assert chromium.ask("document.getElementById('banner').hidden")
        wait_until(lambda: text(chromium, "state-text") == "waiting", "it waits again")
        assert "it came before" in text(chromium, "banner-more")
    wait_until(lambda: text(chromium, "state-text") == "not connected", "the end of the view")


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_keys_drive_the_timeline(
    chromium: Browser, tmp_path: Path, make_video: MakeVideo, width: int, height: int
) -> None:
    log = write_log(tmp_path / "drive.rlog", drive_log(range(70)))
    video = make_video(frames=70)
    with View(str(log), "--drive", str(video)) as view:
        chromium.open(view.url, width, height)
        wait_until(lambda: "frame 0," in text(chromium, "picture-note"), "the first picture")
        at = {name: pixels(chromium, name) for name in (*CANVASES, "strip")}
        chromium.press("ArrowRight", ARROW_RIGHT)
        assert frame_id(chromium) == 1
        chromium.press("ArrowRight", ARROW_RIGHT, shift=True)
        assert frame_id(chromium) == 21
        chromium.press("ArrowLeft", ARROW_LEFT)
        assert frame_id(chromium) == 20
        wait_until(lambda: "frame 20," in text(chromium, "picture-note"), "its picture")
        for name, before in at.items():
            wait_until(partial(moved, chromium, name, before), name)
        chromium.press("End", END)
        assert frame_id(chromium) == 69
        chromium.press("Home", HOME)
        assert frame_id(chromium) == 0
        # Also where the slider itself has the focus; a step is a step there, too.
        chromium.ask("position.focus()")
        chromium.press("ArrowRight", ARROW_RIGHT)
        assert frame_id(chromium) == 1
        assert "frame 1" in chromium.ask("position.getAttribute('aria-valuetext')")
        chromium.press(" ", SPACE)
        wait_until(lambda: frame_id(chromium) > 5, "it plays")
        assert chromium.ask("play.getAttribute('aria-label')") == "Pause"
        chromium.press(" ", SPACE)
        stands = frame_id(chromium)
        chromium.ask("new Promise(done => setTimeout(done, 200))")
        assert frame_id(chromium) == stands
        check_layout(chromium, width)
        assert chromium.seen().errors == []


def test_a_place_is_found_by_time_and_by_frame(chromium: Browser, log: Path) -> None:
    with View(str(log)) as view:
        chromium.open(view.url, 1024, 768)
        wait_until(lambda: "#0" in text(chromium, "clock"), "the log")
        for place, expected in (("5", 100), ("0:01.5", 30), ("#77", 77), ("nowhere", 77)):
            chromium.ask(f"place.value = {place!r}; document.forms[0].requestSubmit()")
            assert frame_id(chromium) == expected
        assert chromium.ask("place.getAttribute('aria-invalid')") == "true"
        # Keys of the page are letters in a text.
        chromium.press("g", 71)
        assert chromium.ask("document.activeElement.id") == "place"
        chromium.press("o", 79)
        assert chromium.ask("overlay.getAttribute('aria-pressed')") == "true"
        assert chromium.ask("place.value") == "o"


def test_logs_that_lack_something_say_what(chromium: Browser, tmp_path: Path, log: Path) -> None:
    def banner(view: View) -> str:
        chromium.open(view.url, 1024, 768)
        wait_until(lambda: text(chromium, "banner-text"), "the banner")
        return text(chromium, "banner-text")

    with View(str(log)) as view:
        assert "No pictures: this log has no frames" in banner(view)
        wait_until(lambda: pixels(chromium, "top")[1] > 5, "all else is shown")
        label = "picture.getAttribute('aria-label')"
        wait_until(lambda: "no frames" in chromium.ask(label), "why there is no picture")
        assert "no messages of health" in text(chromium, "health-state")
    silent = write_log(tmp_path / "silent.rlog", drive_log(range(30), answers=False))
    with View(str(silent)) as view:
        assert banner(view) == "This log has no output of a model: no modelV2 in it."
        # The first row precedes the first word of the car.
        chromium.press("ArrowRight", ARROW_RIGHT)
        wait_until(lambda: "car2" in text(chromium, "numbers").replace(" ", ""), "the car's speed")
        label = "document.getElementById('top').ariaLabel"
        wait_until(lambda: "no answer" in chromium.ask(label), "that there is no answer")
    log.write_bytes(log.read_bytes()[:-5000])
    with View(str(log)) as view:
        banner(view)
        assert "ends inside a message" in text(chromium, "notes")


def test_a_screen_reader_is_told_of_everything(chromium: Browser, log: Path) -> None:
    with View(str(log)) as view:
        chromium.open(view.url, 1024, 768)
        wait_until(lambda: "#0" in text(chromium, "clock"), "the log")
        chromium.ask("new Promise(done => setTimeout(done, 1500))")
        found = chromium.accessible()
        named = {role: [name for one, name in found if one == role] for role, _ in found}
        controls = ("button", "slider", "combobox", "textbox", "image", "table", "form")
        nameless = [(role, name) for role, name in found if role in controls and not name.strip()]
        assert [one for one in nameless if one[0] not in ("table", "form")] == []
        assert "Position in the log" in named["slider"]
        assert {"Play", "One frame back", "One frame forth", "Keys"} <= set(named["button"])
        assert any(name.startswith("Speed in m/s: car 20") for name in named["image"])
        assert any(name.startswith("View from above: the path leads") for name in named["image"])
        assert {"heading", "main", "status", "toolbar"} <= set(named)
        # Where Tab leads is where things stand.
        order = chromium.ask(
            "[...document.querySelectorAll('button, input, select')]"
            ".filter(one => one.offsetParent)"
            ".map(one => [one.getBoundingClientRect().top, one.tabIndex])"
        )
        assert all(index == 0 for _, index in order)
        assert np.all(np.diff([top for top, _ in order]) > -60)
        wait_until(lambda: "log" in text(chromium, "announce"), "it is said")


def test_less_motion_and_dark_colours_are_respected(chromium: Browser, tmp_path: Path) -> None:
    bus, server = f"ipc://{tmp_path}", f"view-{os.getpid()}"
    with speaking(bus, server), View("--bus", bus, "--camera-server", server) as view:
        try:
            chromium.open("about:blank", 1024, 768)
            chromium.prefer(prefers_reduced_motion="reduce", prefers_color_scheme="dark")
            chromium.open(view.url, 1024, 768)
            wait_until(lambda: text(chromium, "state-text") == "running", "it runs")
            assert chromium.ask(f"{GROUND} === 'rgb(11, 16, 22)'")
            # The number of pictures in three seconds, by what the page says of frames: at most two
            # a second, and one more at either end.
            counted = chromium.ask(
                """
                new Promise(done => {
                  const seen = new Set(), note = document.getElementById('picture-note');
                  const look = setInterval(() => seen.add(note.textContent), 20);
                  setTimeout(() => { clearInterval(look); done(seen.size); }, 3000);
                })
                """
            )
            assert 2 <= counted <= 8
            chromium.prefer(prefers_color_scheme="light")
            light = f"{GROUND} === 'rgb(243, 245, 248)'"
            wait_until(lambda: chromium.ask(light), "light colours")
        finally:
            chromium.prefer()
