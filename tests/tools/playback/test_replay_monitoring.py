"""``modeld replay --monitoring``: the loop of driver monitoring over a segment's driver camera."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.log_reader import read_log, read_log_bytes
from tests.reference_loop.warps import bilinear
from tests.tools.conftest import Modeld
from tests.tools.driver_drive import (
    FRAMES,
    LOST,
    RECORDED_ID,
    driver_segment,
    driving_model,
    small_monitoring,
)
from tests.tools.small_monitoring import WIDTH
from tools.drives.open_drive import DriveOptions, open_drive
from tools.messages.drive_log import MONITORING_SERVICE, OUTPUT_SERVICES
from tools.playback.outcome import frames_path, load_frames
from tools.playback.session import PROCESSING_NS

pytestmark = pytest.mark.opencl
ALL = list(range(FRAMES))
# The road camera's first frame after the one that it lost has none before it.
DRIVEN = [one for one in ALL if one not in (LOST, LOST + 1)]
# K_camera inv(K_view), by hand: three quarters of the focal length.
MATRIX = np.array([[0.75, 0.0, 132.0], [0.0, 0.75, 113.0], [0.0, 0.0, 1.0]], np.float32)


class Replays:
    """Replays of the segment, each into a log of its own."""

    def __init__(self, modeld: Modeld, place: Path) -> None:
        self.modeld, self.place = modeld, place

    def __call__(self, *words: object, name: str = "out", code: int = 0) -> Any:
        self.log = self.place / f"{name}.rlog.zst"
        return self.modeld(code, "replay", driver_segment(), *words, "-o", self.log)

    def said(self, service: str = MONITORING_SERVICE) -> list[Any]:
        return [event for event in read_log(self.log) if event.which() == service]

    def others(self) -> list[bytes]:
        """Return what the last log has of all other services."""
        pairs = zip(read_log(self.log), read_log_bytes(self.log), strict=True)
        return [data for event, data in pairs if event.which() != MONITORING_SERVICE]


@pytest.fixture
def replays(modeld: Modeld, tmp_path: Path) -> Replays:
    return Replays(modeld, tmp_path)


BOTH = ("--model", driving_model, "--monitoring", small_monitoring)
ALONE = ("--monitoring", small_monitoring)


def given(words: tuple[Any, ...]) -> list[object]:
    return [word() if callable(word) else word for word in words]


def expected_vectors() -> dict[int, Any]:
    """Return frame id -> output vector, by numpy, without calibration's angles."""
    weights = np.random.default_rng(0).normal(0, 1e-3, (64, WIDTH)).astype(np.float32)
    drive = open_drive(str(driver_segment()), DriveOptions(driver_camera=True))
    found = {}
    for moment in drive.moments():
        frame = moment.frames.get("driver")
        if frame is not None:
            form = frame.format
            luma = frame.data[: form.stride * form.height].reshape(form.height, form.stride)
            view = bilinear(luma[:, : form.width], MATRIX, (1, 64))
            found[frame.frame_id] = view.reshape(64).astype(np.float32) @ weights
    drive.close()
    return found


@pytest.mark.parametrize("words", [BOTH, ALONE], ids=["beside", "alone"])
def test_each_frame_of_the_driver_camera_is_answered(
    replays: Replays, words: tuple[Any, ...]
) -> None:
    figures = replays(*given(words), "--json").json
    driven = words is BOTH
    counts = dict.fromkeys(OUTPUT_SERVICES, len(DRIVEN)) if driven else {}
    assert figures["messages"] == {**counts, MONITORING_SERVICE: FRAMES}
    monitoring = figures["monitoring"]
    assert (monitoring["frames"], monitoring["valid"], monitoring["dropped"]) == (FRAMES, FRAMES, 0)
    assert figures["problem"] is None
    table = load_frames(frames_path(replays.log))
    assert table.frame_id.size == (FRAMES - 1) * driven
    assert table.driver is not None
    assert table.driver.frame_id.tolist() == ALL
    assert (table.driver.execution_s > 0).all()
    angles = sum(replays.said("liveCalibration")[0].liveCalibration.rpyCalib)
    vectors, said = expected_vectors(), replays.said()
    assert [event.driverStateV2.frameId for event in said] == ALL
    for event in said:
        state = event.driverStateV2
        assert event.valid
        assert state.modelExecutionTime == 0.0
        wanted = vectors[state.frameId][:3] + angles
        assert list(state.leftDriverData.faceOrientation) == pytest.approx(wanted, abs=1e-4)
    stamps = [event.logMonoTime for event in read_log(replays.log)]
    assert stamps == sorted(stamps)
    # The camera's own state, or those of the moment, and the time that processing takes.
    states = replays.said("driverCameraState")
    for state, event in zip(states, said, strict=True):
        assert PROCESSING_NS <= event.logMonoTime - state.logMonoTime < PROCESSING_NS + 50_000_000


def test_two_runs_are_the_same_bytes_and_monitoring_changes_nothing_else(replays: Replays) -> None:
    logs = []
    for name in ("a", "b"):
        assert "driver monitoring: dmonitoring.pkl" in replays(*given(BOTH), name=name).out
        logs.append(replays.log.read_bytes())
    assert logs[0] == logs[1]
    others = replays.others()
    replays("--model", driving_model())
    # What nobody says anew is passed on as it was recorded.
    assert {event.driverStateV2.frameId for event in replays.said()} == {RECORDED_ID}
    assert not Counter(replays.others()) - Counter(others)


@pytest.mark.slow
def test_a_set_and_a_report_name_it(replays: Replays, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    replays(*given(BOTH), "--report", page)
    assert f"{FRAMES} frames of the driver camera, {FRAMES} valid" in page.read_text("utf-8")
    words = [*given(BOTH), "-o", tmp_path / "set", "--json"]
    (tmp_path / "set").mkdir()
    for kept in (False, True):
        (figures,) = replays.modeld(0, "replay", driver_segment(), *words).json["drives"]
        assert (figures["kept"], figures["monitoring"]["valid"]) == (kept, FRAMES)
    without = [*words[:2], *words[4:]]
    (figures,) = replays.modeld(0, "replay", driver_segment(), *without).json["drives"]
    assert "monitoring" not in figures
    assert figures["kept"] is False


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ((), 2, "--model: expected a driving artifact, or --monitoring, found neither"),
        (
            ("--model", small_monitoring),
            4,
            "found a monitoring one; pass driver monitoring to modeld replay with --monitoring",
        ),
        (
            ("--monitoring", driving_model),
            4,
            "expected a monitoring artifact, found a driving one; pass driving models with --",
        ),
        ((*ALONE, "--live"), 2, "--live: expected --model with --monitoring"),
        ((*ALONE, "--report", "x.html"), 2, "--report: expected --model with --monitoring"),
    ],
)
def test_what_cannot_be_is_refused(
    modeld: Modeld, tmp_path: Path, words: tuple[Any, ...], code: int, text: str
) -> None:
    words = (*given(words), "-o", tmp_path / "out.rlog")
    modeld.refused(code, text, "replay", driver_segment(), *words)
    assert not list(tmp_path.iterdir())


def test_a_drive_without_a_driver_camera_says_what_is_missing(
    modeld: Modeld, tmp_path: Path, video: Path
) -> None:
    segment = tmp_path / driver_segment().name
    segment.mkdir()
    for name in ("rlog.zst", "fcamera.hevc"):
        (segment / name).symlink_to(driver_segment() / name)
    out = ("-o", tmp_path / "out.rlog")
    missing = (
        "expected frames of a driver camera (dcamera.hevc of a segment), found none; fetch them, "
        "or leave --monitoring out"
    )
    for drive in (segment, video):
        modeld.refused(4, missing, "replay", drive, *given(BOTH), *out)
    found = "expected dcamera.hevc, found fcamera.hevc, rlog.zst; fetch the videos of the drive"
    modeld.refused(4, found, "replay", segment, *given(ALONE), *out)


@pytest.mark.slow
@pytest.mark.alone
def test_live_says_what_the_replay_says(replays: Replays, modeld: Modeld) -> None:
    replays(*given(BOTH), name="replayed")
    replayed = replays.log
    figures = replays(*given(BOTH), "--live", "--speed", "0.3", "--json", name="live").json
    live = figures["live"]
    assert (live["answered"], live["monitoring"]["answered"]) == (FRAMES - 1, FRAMES)
    assert "AGREE" in modeld(0, "compare", replayed, replays.log, "--bit-exact").out
