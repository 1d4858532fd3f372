"""The live view in a real browser: live and from a log, by keys and for screen readers."""

import json
import math
import os
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from cereal.schema import read_event
from tests.cereal.shared import write_log
from tests.tools.conftest import MakeVideo
from tests.tools.live.speaker import View, drive_log, speaking
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
# As the page writes it.
MINUS = "\u2212"
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
        # The first valid answer; a log with more opens behind the model's warm-up.
        wait_until(lambda: "frame 4," in text(chromium, "picture-note"), "the first picture")
        chromium.press("Home", HOME)
        wait_until(lambda: "frame 0," in text(chromium, "picture-note"), "its first frame")
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
        wait_until(lambda: "#104" in text(chromium, "clock"), "the first frame after the warm-up")
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


LOAD = """
(text => {
  const data = new DataTransfer();
  data.items.add(new File([text], 'layout.json', {type: 'application/json'}));
  file.files = data.files;
  file.dispatchEvent(new Event('change'));
})(%s)
"""
SAVE = """
new Promise(done => {
  const make = URL.createObjectURL;
  URL.createObjectURL = blob => { blob.text().then(done); return make(blob); };
  save.click();
})
"""


def choose(page: Browser, words: str, expected: str) -> None:
    """Search a field by words, and take the first one."""
    page.ask("search.focus()")
    page.ask(f"search.value = {words!r}; search.oninput()")
    first = "document.querySelector('#found button')?.firstChild.textContent"
    wait_until(lambda: page.ask(first) == expected, expected)
    page.press("Enter", 13)


def speed(frame_id: int) -> str:
    """Return the car's speed at a frame, as the page writes it."""
    return f"{float(f'{20 + math.sin(frame_id / 12):.5g}'):g} m/s"


def value(page: Browser, number: int, kind: str = "value") -> str:
    """Return what a chosen field holds at the cursor."""
    return str(page.ask(f"document.querySelectorAll('.field .{kind}')[{number}]?.textContent"))


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_any_field_is_searched_and_its_layout_saved_and_loaded(
    chromium: Browser, log: Path, width: int, height: int
) -> None:
    with View(str(log)) as view:
        chromium.open(view.url, width, height)
        wait_until(lambda: "#104" in text(chromium, "clock"), "the log")
        choose(chromium, "car vego m/s", "carState.vEgo")
        choose(chromium, "lanelines y m", "modelV2.laneLines[].y[]")
        choose(chromium, "calstatus", "liveCalibration.calStatus")
        choose(chromium, "lefty", "drivingModelData.laneLineMeta.leftY")
        wait_until(lambda: value(chromium, 0) == speed(104), "the car's speed")
        wait_until(lambda: value(chromium, 2) == "calibrated", "a name")
        # An index is chosen, and the unit is that of the structure.
        chromium.ask("document.querySelector('.name input').value = 3")
        chromium.ask("document.querySelector('.name input').onchange()")
        wait_until(lambda: value(chromium, 1) == "5.4 m", "the line to the far right")
        canvas = "document.querySelector('.field canvas')"
        assert f"carState.vEgo: {speed(104)}" in chromium.ask(f"{canvas}.ariaLabel")
        chromium.press("Escape", 27)
        chromium.press("End", END)
        wait_until(lambda: value(chromium, 0) == speed(199), "another time")
        # As text, and one card less.
        chromium.ask("document.querySelectorAll('.field .as')[3].click()")
        chromium.ask("document.getElementById('layout-button').click()")
        chromium.ask("document.querySelector('#shown input[value=top]').click()")
        assert not chromium.ask("document.getElementById('top').offsetParent !== null")
        check_layout(chromium, width)
        saved = chromium.ask(SAVE)
        assert json.loads(saved) == {
            "format": "modeld view layout",
            "version": 1,
            "fields": [
                {"field": "carState.vEgo", "as": "plot"},
                {"field": "modelV2.laneLines[3].y[0]", "as": "plot"},
                {"field": "liveCalibration.calStatus", "as": "plot"},
                {"field": "drivingModelData.laneLineMeta.leftY", "as": "text"},
            ],
            "hidden": ["top"],
        }
        assert chromium.seen().errors == []
        assert all(one.startswith((view.url, "blob:")) for one in chromium.seen().requests)
        layout = log.parent / "layout.json"
        layout.write_text(saved)
        chromium.ask(LOAD % json.dumps('{"format": "modeld view layout"}'))
        wait_until(lambda: "expected version 1" in text(chromium, "layout-note"), "what is wrong")
        assert chromium.ask("document.querySelectorAll('.field').length") == 4
        chromium.ask(LOAD % json.dumps(saved.replace("vEgo", "aEgo").replace('"top"', "")))
        wait_until(lambda: text(chromium, "layout-note") == "Loaded.", "the file")
        wait_until(lambda: value(chromium, 0).endswith("m/s²"), "its field")
        assert chromium.ask("document.getElementById('top').offsetParent !== null")
    with View(str(log), "--layout", str(layout)) as view:
        chromium.open(view.url, width, height)
        wait_until(lambda: value(chromium, 0) == speed(104), "the layout of the command line")
        assert chromium.ask("document.getElementById('top').offsetParent === null")


def test_fields_of_a_daemon_come_as_they_are_sent(chromium: Browser, tmp_path: Path) -> None:
    bus = f"ipc://{tmp_path}"
    with speaking(bus), View("--bus", bus, "--camera-server", "nobody-at-all") as view:
        chromium.open(view.url, 1024, 768)
        wait_until(lambda: text(chromium, "state-text") == "running", "it runs")
        choose(chromium, "devicetype", "deviceState.deviceType")
        choose(chromium, "car aego", "carState.aEgo")
        wait_until(lambda: value(chromium, 0) == "mici", "a name")
        canvas = "(c => c.getContext('2d').getImageData(60, 0, c.width, c.height).data.join())"
        canvas += "(document.querySelectorAll('.field canvas')[1])"
        before = chromium.ask(canvas)
        wait_until(lambda: chromium.ask(canvas) != before, "it moves")
        assert chromium.seen().errors == []


@pytest.mark.parametrize(("width", "height"), SIZES)
def test_a_second_log_lies_over_the_first_and_differences_are_marked(
    chromium: Browser, tmp_path: Path, log: Path, width: int, height: int
) -> None:
    others = []
    for data in drive_log(range(3, 190)):
        event = read_event(data).as_builder()
        event.logMonoTime += 7_000_000_000
        if event.which() == "modelV2" and 120 <= event.modelV2.frameId < 130:
            event.modelV2.action.desiredAcceleration = -2.5
        others.append(bytes(event.to_bytes()))
    other = write_log(tmp_path / "other.rlog", others)
    with View(str(log), "--with", str(other)) as view:
        chromium.open(view.url, width, height)
        said = "10 of 200 frames differ; 13 are not in the second log"
        wait_until(lambda: text(chromium, "pair-text") == said, "the differences")
        before = pixels(chromium, "plot-acceleration")
        chromium.press("n", 78)
        assert frame_id(chromium) == 120
        acceleration = "document.querySelectorAll('#numbers > div')[5]"
        wait_until(
            lambda: f"| {MINUS}2.50" in chromium.ask(f"{acceleration}.textContent"), "both values"
        )
        assert chromium.ask(f"{acceleration}.className") == "differs"
        assert moved(chromium, "plot-acceleration", before)
        choose(chromium, "desiredacceleration modelv2", "modelV2.action.desiredAcceleration")
        wait_until(lambda: value(chromium, 0, "other") == f"{MINUS}2.5 m/s²", "the field of both")
        assert chromium.ask("document.querySelector('.field').classList.contains('differs')")
        # What both say of the same frame is the same, whatever their clocks say.
        choose(chromium, "car vego m/s", "carState.vEgo")
        chromium.press("Escape", 27)
        for at in range(121, 127):
            chromium.press("ArrowRight", ARROW_RIGHT)
            expected = (speed(at), speed(at))
            wait_until(
                lambda: (value(chromium, 1), value(chromium, 1, "other")) == expected,  # noqa: B023
                f"both at {at}",
            )
        # Home is in the first log only; the next difference behind the last is beyond the second.
        chromium.press("Escape", 27)
        chromium.press("Home", HOME)
        chromium.press("p", 80)
        assert frame_id(chromium) == 0
        chromium.press("End", END)
        for _ in range(10):
            chromium.press("p", 80)
        assert frame_id(chromium) == 129
        wait_until(lambda: value(chromium, 0, "other") == f"{MINUS}2.5 m/s²", "the field there")
        chromium.press("ArrowRight", ARROW_RIGHT)
        wait_until(lambda: value(chromium, 0) == value(chromium, 0, "other"), "the same again")
        check_layout(chromium, width)
        assert chromium.seen().errors == []


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
        assert text(chromium, "health-state") == "No health messages so far."
    silent = write_log(tmp_path / "silent.rlog", drive_log(range(30), answers=False))
    with View(str(silent)) as view:
        assert banner(view) == "This log has no output of a model: no modelV2 in it."
        # The first row precedes the first word of the car.
        chromium.press("ArrowRight", ARROW_RIGHT)
        wait_until(
            lambda: "carspeed2" in text(chromium, "numbers").replace(" ", ""), "the car's speed"
        )
        label = "document.getElementById('top').ariaLabel"
        wait_until(lambda: "no answer" in chromium.ask(label), "that there is no answer")
    log.write_bytes(log.read_bytes()[:-5000])
    with View(str(log)) as view:
        banner(view)
        wait_until(lambda: "ends inside a message" in text(chromium, "notes"), "the note")


def test_a_screen_reader_is_told_of_everything(chromium: Browser, log: Path) -> None:
    with View(str(log)) as view:
        chromium.open(view.url, 1024, 768)
        wait_until(lambda: "#104" in text(chromium, "clock"), "the log")
        chromium.ask("new Promise(done => setTimeout(done, 1500))")
        found = chromium.accessible()
        named = {role: [name for one, name in found if one == role] for role, _ in found}
        controls = ("button", "slider", "combobox", "textbox", "image", "table", "form")
        nameless = [(role, name) for role, name in found if role in controls and not name.strip()]
        assert [one for one in nameless if one[0] not in ("table", "form")] == []
        assert "Position in the log" in named["slider"]
        assert {"Play", "One frame back", "One frame forward", "Keys"} <= set(named["button"])
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
