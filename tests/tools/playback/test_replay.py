"""``modeld replay`` from video to log and report, with artifacts of each kind."""

import os
import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.log_reader import read_log
from tests.support.built import example_artifact
from tests.tools.conftest import FRAMES, SIZE, MakeVideo, Modeld
from tests.tools.films import cut, joined, write_film
from tests.tools.page import Page
from tests.tools.tiny_driving import write_tiny_driving
from tools.messages.drive_log import OUTPUT_SERVICES, summarize
from tools.messages.drive_messages import DRIVE_SERVICES
from tools.playback.outcome import frames_path, load_frames
from tools.playback.session import PlaybackSession

pytestmark = pytest.mark.opencl

FOOTAGE = Path(__file__).parents[4] / "shared/data/dashcam/solidWhiteRight.mp4"


class Replay:
    """Replays drives with the hand-written artifact into a log of the test's."""

    def __init__(self, modeld: Modeld, model: Path, log: Path) -> None:
        self.modeld, self.model, self.log = modeld, model, log

    def __call__(self, drive: Path, *more: object, code: int = 0, **other: Path) -> Any:
        words = ["--model", other.get("model", self.model), "-o", other.get("log", self.log)]
        return self.modeld(code, "replay", drive, *words, *more)

    def events(self, service: str) -> list[Any]:
        return [event for event in read_log(self.log) if event.which() == service]

    def refused(self, code: int, text: str, drive: Path, *more: object, **other: Path) -> None:
        """Replay what cannot be: one line says so, and nothing is left."""
        before = sorted(self.log.parent.iterdir())
        said = self(drive, *more, code=code, **other).err
        assert re.search(text, said), said
        assert said.startswith("modeld: error: ")
        assert (said.count("\n"), sorted(self.log.parent.iterdir())) == (1, before)


@pytest.fixture
def replay(modeld: Modeld, tiny_model: Path, tmp_path: Path) -> Replay:
    return Replay(modeld, tiny_model, tmp_path / "out.rlog")


def test_each_frame_gives_three_valid_messages(replay: Replay, video: Path) -> None:
    replay.log = replay.log.with_suffix(".rlog.zst")
    result = replay(video, "--json").json
    assert result["frames"] == FRAMES
    assert result["messages"] == dict.fromkeys(OUTPUT_SERVICES, FRAMES)
    events = list(read_log(replay.log))
    assert {str(event.which()) for event in events} == {*OUTPUT_SERVICES, *DRIVE_SERVICES}
    # The first one is already calibrated.
    assert all(event.valid for event in events if event.which() in OUTPUT_SERVICES)
    drive = summarize(events, curves_of=range(FRAMES))
    assert drive.all_finite
    assert drive.frame_ids.tolist() == list(range(FRAMES))
    # The artifact moves its lane lines to the right with the brightness, which grows.
    moves = np.diff([drive.curves[i].lane_lines_m[1, 0, 1] for i in range(FRAMES)])
    assert (moves > 1e-4).all()


def test_telemetry_becomes_car_state(replay: Replay, video: Path, tmp_path: Path) -> None:
    table = tmp_path / "car.csv"
    table.write_text("t_s,speed_mps,steering_angle_deg,left_blinker\n0,10,1,0\n0.4,14,3,1\n")
    replay(video, "--telemetry", table)
    cars = [event.carState for event in replay.events("carState")]
    assert [car.vEgo for car in cars] == pytest.approx(10.0 + 0.5 * np.arange(FRAMES))
    assert cars[4].steeringAngleDeg == pytest.approx(2.0)
    assert [car.leftBlinker for car in cars] == [False] * 8 + [True]


@pytest.mark.parametrize(("fps", "expected"), [(25, 9), (30, 9), (40, 5), (60, 3)])
def test_fast_video_is_thinned_to_at_least_20_hz(
    replay: Replay, make_video: MakeVideo, fps: int, expected: int
) -> None:
    replay(make_video(fps=fps))
    assert summarize(read_log(replay.log)).frame_ids.tolist() == list(range(expected))


def test_sizes_and_videos_that_cannot_be_are_refused(
    replay: Replay, make_video: MakeVideo, tmp_path: Path, video: Path
) -> None:
    text = r"expected frames of at most \d+ bytes, found 320x240 with \d+; .*--camera 320x240"
    replay.refused(4, text, make_video("large.mkv", size=(320, 240)))
    short = cut(make_video("cut.avi", frames=40, codec="mpeg4"), 0.5)
    text = r"cut\.avi: expected at least one picture, found a damaged packet before the first"
    replay.refused(4, text, short, log=tmp_path / "o.rlog.zst")
    # Outputs that are not finite fail it.
    model = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=4)
    assert "expected 9 valid messages" in replay(video, code=1, model=model).err


def test_what_precedes_damage_is_replayed(replay: Replay, make_video: MakeVideo) -> None:
    """As of logs that are cut off: a line, and all that there is."""
    short = cut(make_video("cut.mkv", frames=30), 0.6)
    found = replay(short, "--json")
    result, said = found.json, found.err
    assert said.count("\n") == 1
    assert 1 < result["frames"] < 30
    assert "found the file cut off at byte" in said
    assert f"after {result['frames']} decoded frames" in said
    assert summarize(read_log(replay.log)).frame_ids.tolist() == list(range(result["frames"]))


def test_what_precedes_another_size_is_kept_and_the_error_is_said(
    replay: Replay, tmp_path: Path
) -> None:
    parts = [write_film(tmp_path / f"{w}.ts", 5, size=(w, 128)) for w in (192, 96)]
    said = replay(joined(tmp_path / "both.ts", *parts), code=4).err
    assert said.startswith("modeld: error: ")
    assert "both.ts: frame 5: expected a picture of 192x128 like those before it, found 96" in said
    assert said.count("\n") == 1
    assert summarize(read_log(replay.log)).frame_ids.tolist() == list(range(5))
    assert load_frames(frames_path(replay.log)).frame_id.tolist() == list(range(5))


def test_report_is_one_self_contained_page(
    replay: Replay, make_video: MakeVideo, tmp_path: Path
) -> None:
    report = tmp_path / "out.html"
    replay(make_video("a & b.mkv"), "--report", report, "--focal-px", 300)
    page = Page(report)
    assert page.seen.count("image") == 4
    assert page.links
    assert all(link.startswith("data:image/jpeg;base64,") for link in page.links)
    assert not {"script", "link", "iframe"} & set(page.seen)
    assert "url(#" in page.text
    assert "http" not in page.text
    assert "Replay of a &amp; b.mkv" in page.text
    assert "focal length 300 px (35 degrees, given)" in page.text
    # Each picture: two road edges, four lane lines, one path.
    shown = [page.text.count(f'<path class="{css}"') for css in ("edge", "lane", "path")]
    assert shown == [8, 16, 4]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_replay_leaves_nothing(
    replay: Replay, video: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: int
) -> None:
    interrupt(monkeypatch, at=4, number=number)
    said = replay(video, code=code).err
    assert "Traceback" not in said
    assert list(replay.log.parent.iterdir()) == []


def interrupt(patch: pytest.MonkeyPatch, at: int, number: int) -> None:
    """Have a replay interrupt itself at a frame, as Ctrl-C would."""
    step = PlaybackSession.step

    def interrupted(self: PlaybackSession, moment: Any) -> Any:
        if moment.index == at:
            os.kill(os.getpid(), number)
        return step(self, moment)

    patch.setattr(PlaybackSession, "step", interrupted)


FEW = 6
FOOTAGE_FRAMES = 221
INTERFACES = [
    *("supercombo-0.9.7", "split-2025", "on-off-2026", "history-2026", "supercombo-2026-action")
]


@pytest.mark.slow
@pytest.mark.parametrize("interface", INTERFACES)
@pytest.mark.parametrize(
    "size",
    [
        *((192, 128), (322, 180)),
        pytest.param(
            None,
            marks=[
                pytest.mark.footage,
                pytest.mark.skipif(not FOOTAGE.exists(), reason="the footage is not checked out"),
            ],
        ),
    ],
    ids=str,
)
def test_a_model_of_each_kind_replays_videos_and_the_dashcam_clip(
    interface: str,
    size: tuple[int, int] | None,
    tmp_path: Path,
    make_video: MakeVideo,
    modeld: Modeld,
) -> None:
    log = tmp_path / "out.rlog"
    video = make_video(size=size, frames=FEW) if size else FOOTAGE
    modeld(0, "replay", video, "--model", example_artifact(interface), "-o", log, "--json")
    events = list(read_log(log))
    for name in OUTPUT_SERVICES:
        said = [event for event in events if event.which() == name]
        found = [getattr(event, name).frameId for event in said]
        assert found == list(range(FEW if size else FOOTAGE_FRAMES))
        assert all(event.valid for event in said)
    if size is None:
        # From the first event on, which is the start of the first frame: 10 ms before its end.
        assert summarize(events).times_s[-1] == pytest.approx(8.81)
    for message in (event.modelV2 for event in events if event.which() == "modelV2"):
        assert np.isfinite([list(line.y) for line in message.laneLines]).all()
        assert np.isfinite(list(message.position.x)).all()
        if size is not None:
            near = [line.y[0] for line in message.laneLines]
            assert near == pytest.approx([-5.4, -1.8, 1.8, 5.4], abs=0.8)
            assert message.position.x[-1] == pytest.approx(150.0, abs=40.0)
