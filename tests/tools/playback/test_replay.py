"""``modeld replay`` from video to log and report, with the hand-written artifact."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from cereal.log_reader import read_log, read_log_bytes
from tests.tools.conftest import FRAMES, SIZE, MakeVideo
from tests.tools.tiny_driving import write_tiny_driving
from tools.cli import main
from tools.lib.drive_log import OUTPUT_SERVICES, summarize
from tools.lib.drive_messages import DRIVE_SERVICES
from tools.playback.frame_table import frames_path, load_frames

pytestmark = pytest.mark.opencl

FOOTAGE = Path(__file__).parents[4] / "shared/data/dashcam/solidWhiteRight.mp4"


def _replay(video: Path, model: Path, log: Path, *more: str) -> int:
    return main(["replay", str(video), "--model", str(model), "-o", str(log), *more])


def test_each_frame_gives_three_valid_messages_with_consecutive_ids(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = tmp_path / "out.rlog.zst"
    assert _replay(make_video(), tiny_model, log, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["frames"] == FRAMES
    assert result["messages"] == dict.fromkeys(OUTPUT_SERVICES, FRAMES)
    events = list(read_log(log))
    for name in OUTPUT_SERVICES:
        ids = [getattr(event, name).frameId for event in events if event.which() == name]
        assert ids == list(range(FRAMES))
        assert all(event.valid for event in events if event.which() == name)
    assert {str(event.which()) for event in events} == {*OUTPUT_SERVICES, *DRIVE_SERVICES}
    stamps = [event.logMonoTime for event in events]
    assert stamps == sorted(stamps)
    assert summarize(events).all_finite


def test_first_frame_is_already_calibrated(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    log = tmp_path / "out.rlog"
    assert _replay(make_video(), tiny_model, log, "--limit", "1") == 0
    (first,) = [event for event in read_log(log) if event.which() == "modelV2"]
    assert first.valid


def test_two_runs_are_the_same_bytes(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    video = make_video()
    logs = [tmp_path / name for name in ("a.rlog", "b.rlog.bz2")]
    for log in logs:
        assert _replay(video, tiny_model, log) == 0
    first, second = (list(read_log_bytes(log)) for log in logs)
    assert first == second
    assert load_frames(frames_path(logs[0])).execution_s.min() > 0
    slower = tmp_path / "c.rlog"
    assert _replay(make_video("other.mkv", frames=FRAMES, fps=10), tiny_model, slower) == 0
    assert list(read_log_bytes(slower)) != first


def test_frames_reach_the_model(tmp_path: Path, make_video: MakeVideo, tiny_model: Path) -> None:
    log = tmp_path / "out.rlog"
    assert _replay(make_video(), tiny_model, log) == 0
    drive = summarize(read_log(log), curves_of=range(FRAMES))
    # The artifact moves its lane lines to the right with the brightness, which grows.
    moves = np.diff([drive.curves[i].lane_lines_m[1, 0, 1] for i in range(FRAMES)])
    assert (moves > 1e-4).all()


def test_telemetry_becomes_car_state(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    table = tmp_path / "car.csv"
    table.write_text("t_s,speed_mps,steering_angle_deg,left_blinker\n0,10,1,0\n0.4,14,3,1\n")
    log = tmp_path / "out.rlog"
    assert _replay(make_video(), tiny_model, log, "--telemetry", str(table)) == 0
    cars = [event.carState for event in read_log(log) if event.which() == "carState"]
    assert [car.vEgo for car in cars] == pytest.approx(10.0 + 0.5 * np.arange(FRAMES))
    assert cars[4].steeringAngleDeg == pytest.approx(2.0)
    assert [car.leftBlinker for car in cars] == [False] * 8 + [True]


@pytest.mark.parametrize(("fps", "expected"), [(25, 9), (30, 9), (40, 5), (60, 3)])
def test_fast_video_is_thinned_to_at_least_20_hz(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path, fps: int, expected: int
) -> None:
    log = tmp_path / "out.rlog"
    assert _replay(make_video(fps=fps), tiny_model, log) == 0
    drive = summarize(read_log(log))
    assert drive.frame_ids.tolist() == list(range(expected))


def test_focal_length_changes_what_the_model_sees(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    report = tmp_path / "out.html"
    options = ("--report", str(report), "--focal-px", "300")
    assert _replay(make_video(), tiny_model, tmp_path / "out.rlog", *options) == 0
    assert "focal length 300 px (35 degrees, given)" in report.read_text(encoding="utf-8")


def _refused(
    capsys: pytest.CaptureFixture[str], folder: Path, code: int, text: str, *command: str
) -> None:
    before = sorted(folder.iterdir())
    assert main(["replay", *command]) == code
    output = capsys.readouterr()
    assert re.search(text, output.err), output.err
    assert output.err.startswith("modeld: error: ")
    assert output.err.count("\n") == 1
    assert sorted(folder.iterdir()) == before


def test_size_the_artifact_has_no_room_for_is_refused(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = make_video(size=(320, 240))
    log = str(tmp_path / "o.rlog")
    text = r"expected frames of at most \d+ bytes, found 320x240 with \d+; .*--camera 320x240"
    _refused(capsys, tmp_path, 4, text, str(video), "--model", str(tiny_model), "-o", log)


def test_missing_and_truncated_artifacts_are_refused(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video, log = str(make_video()), str(tmp_path / "o.rlog")
    missing = str(tmp_path / "none.pkl")
    _refused(capsys, tmp_path, 4, r"none\.pkl", video, "--model", missing, "-o", log)
    cut = tmp_path / "cut.pkl"
    cut.write_bytes(tiny_model.read_bytes()[:-500])
    _refused(capsys, tmp_path, 4, r"cut\.pkl.*truncated", video, "--model", str(cut), "-o", log)


def test_video_that_ends_early_leaves_no_log(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    video = make_video(name="cut.avi", frames=40, codec="mpeg4")
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    log = str(tmp_path / "o.rlog.zst")
    text = r"cut\.avi: expected 40 frames, found .* after \d+ decoded frames"
    _refused(capsys, tmp_path, 4, text, str(video), "--model", str(tiny_model), "-o", log)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--limit", "0"], "--limit: expected at least 1 frame"),
        (["--focal-px", "-3"], "--focal-px: expected a positive"),
        (["--report", "nowhere/report.html"], "--report nowhere/report.html: expected its dir"),
    ],
)
def test_bad_options_are_refused(
    tmp_path: Path,
    make_video: MakeVideo,
    tiny_model: Path,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    text: str,
) -> None:
    command = [str(make_video()), "--model", str(tiny_model), "-o", str(tmp_path / "o.rlog")]
    _refused(capsys, tmp_path, 2, re.escape(text), *command, *options)


def test_non_finite_outputs_fail_the_replay(
    tmp_path: Path, make_video: MakeVideo, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_driving(tmp_path / "bad.pkl", SIZE, bad_frame=4)
    assert _replay(make_video(), model, tmp_path / "o.rlog") == 1
    assert "expected 9 valid messages" in capsys.readouterr().err


class _Page(HTMLParser):
    """Collects tags and what they refer to; fails on tags that do not match."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        self.links += [value or "" for name, value in attrs if name in ("href", "src")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_report_is_one_self_contained_page(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    report = tmp_path / "out.html"
    video = make_video("a & b.mkv")
    assert _replay(video, tiny_model, tmp_path / "o.rlog", "--report", str(report)) == 0
    text = report.read_text(encoding="utf-8")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.seen.count("image") == 4
    assert page.links
    assert all(link.startswith("data:image/jpeg;base64,") for link in page.links)
    assert not {"script", "link", "iframe"} & set(page.seen)
    assert "url(#" in text
    assert "http" not in text
    assert "Replay of a &amp; b.mkv" in text
    # Each picture: two road edges, four lane lines, one path.
    assert [text.count(f'<path class="{css}"') for css in ("edge", "lane", "path")] == [8, 16, 4]


def test_interrupted_replay_leaves_nothing(
    tmp_path: Path, make_video: MakeVideo, tiny_model: Path
) -> None:
    # Interrupts itself in the middle, as Ctrl-C would.
    code = (
        "import os, signal, sys\n"
        "from tools.playback.session import PlaybackSession\n"
        "from tools.cli import main\n"
        # A shell that runs the tests in the background has it ignored, and children inherit that.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "step = PlaybackSession.step\n"
        "def interrupted(self, moment):\n"
        "    if moment.index == 4: os.kill(os.getpid(), getattr(signal, sys.argv[1]))\n"
        "    return step(self, moment)\n"
        "PlaybackSession.step = interrupted\n"
        "sys.exit(main(['replay', *sys.argv[2:]]))\n"
    )
    log = tmp_path / "o.rlog.zst"
    options = [str(make_video()), "--model", str(tiny_model), "-o", str(log)]
    before = sorted(tmp_path.iterdir())
    for name, expected in (("SIGINT", 130), ("SIGTERM", 143)):
        done = subprocess.run(
            [sys.executable, "-c", code, name, *options], capture_output=True, check=False
        )
        assert done.returncode == expected, done.stderr
        assert b"Traceback" not in done.stderr
        assert sorted(tmp_path.iterdir()) == before


@pytest.mark.footage
@pytest.mark.skipif(not FOOTAGE.exists(), reason="the shared footage is not checked out")
def test_footage_gives_221_of_each_message(tmp_path: Path) -> None:
    model = write_tiny_driving(tmp_path / "model.pkl", (960, 540))
    log = tmp_path / "out.rlog.zst"
    assert _replay(FOOTAGE, model, log) == 0
    drive = summarize(read_log(log))
    assert drive.frame_ids.tolist() == list(range(221))
    assert [drive.counts[name] for name in OUTPUT_SERVICES] == [221] * 3
    assert drive.times_s[-1] == pytest.approx(8.8)
