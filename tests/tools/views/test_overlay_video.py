"""The overlay video: what is drawn, where, and what comes out of the encoder."""

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from cereal.log_reader import read_log
from cereal.schema import new_event
from modeld.vehicle.cameras import Camera
from tests.cereal.shared import write_log
from tests.tools.conftest import FRAMES, Modeld
from tests.tools.films import write_film
from tests.tools.messages import event_of
from tests.tools.playback.synthetic_drive import PERIOD_NS, START_NS, SyntheticDrive
from tools.drives.open_drive import DriveOptions
from tools.drives.video_drive import open_drive
from tools.errors import DriveError
from tools.messages.camera import project
from tools.playback.outcome import frames_path, load_frames
from tools.views import canvas
from tools.views.answer import AnswerReader
from tools.views.canvas import Canvas, text_size
from tools.views.overlay import BLUE, GREEN, FrameFacts, draw_overlay, ribbon
from tools.views.pass_over import Written, pass_over
from tools.views.recordings import write_overlay_video

CAMERA = Camera(640, 384, 500.0)
WHITE = (255, 255, 255)

Rgb = NDArray[np.uint8]


def black(width: int, height: int) -> Rgb:
    return np.zeros((height, width, 3), np.uint8)


def model_event(frame_id: int, **changes: Any) -> Any:
    """Return a modelV2 Event with a straight plan, one lane line to the left and one lead."""
    event = new_event("modelV2", mono_time_ns=START_NS + frame_id * PERIOD_NS, valid=True)
    model = event.modelV2
    model.frameId = frame_id
    model.position.x, model.position.y = [0.0, 60.0], [0.0, 0.0]
    model.position.z, model.velocity.x = [0.0, 0.0], [15.0, 15.0]
    (line,) = model.init("laneLines", 1)
    line.x, line.y, line.z = [0.0, 60.0], [-1.8, -1.8], [1.22, 1.22]
    model.laneLineProbs = [changes.pop("probability", 1.0)]
    for name, value in changes.items():
        setattr(model, name, value)
    return event


def answer_of(**changes: Any) -> Any:
    return AnswerReader().take("modelV2", model_event(7, **changes))


def drawn(answer: Any, missing: int = 0) -> Rgb:
    rgb = np.full((CAMERA.height, CAMERA.width, 3), 90, np.uint8)
    draw_overlay(rgb, CAMERA, FrameFacts(7, 0.35, missing, 12.5, answer))
    return rgb


def test_a_box_covers_pixels_by_their_share_and_opacity() -> None:
    rgb = black(6, 4)
    Canvas(rgb).box(1.5, 1.0, 2.0, 1.5, (WHITE, 1.0))
    half, quarter, full = 128, 64, 255
    assert rgb[:, :, 0].tolist() == [
        [0, 0, 0, 0, 0, 0],
        [0, half, full, half, 0, 0],
        [0, quarter, half, quarter, 0, 0],
        [0, 0, 0, 0, 0, 0],
    ]
    rgb = np.full((2, 2, 3), 100, np.uint8)
    Canvas(rgb).box(0, 0, 2, 1, ((200, 0, 100), 0.25))
    assert (rgb[0].tolist(), rgb[1].tolist()) == ([[125, 75, 100]] * 2, [[100, 100, 100]] * 2)
    # What lies outside is clipped, and what is not finite left out.
    rgb = black(8, 8)
    outline = np.array([[-1e9, -1e9], [4.0, np.nan], [1e9, -1e9], [1e9, 1e9], [-1e9, 1e9]])
    Canvas(rgb).fill(outline, WHITE, 1.0)
    assert rgb.min() == 255
    beside = np.array([[9.0, 9], [12, 9], [9, 12]])
    for outline in (np.zeros((0, 2)), np.full((5, 2), np.nan), beside):
        rgb = black(8, 8)
        Canvas(rgb).fill(outline, WHITE, 1.0)
        assert rgb.max() == 0
    # Twice inside is outside.
    rgb = black(10, 10)
    outer = [[1, 1], [9, 1], [9, 9], [1, 9], [1, 1]]
    inner = [[4, 4], [6, 4], [6, 6], [4, 6], [4, 4]]
    Canvas(rgb).fill(np.array(outer + inner, np.float64), WHITE, 1.0)
    assert (rgb[5, 5, 0], rgb[:, :, 0].sum()) == (0, 255 * (64 - 4))


@given(st.lists(st.tuples(st.floats(2, 38), st.floats(2, 28)), min_size=3, max_size=3, unique=True))
def test_triangles_have_their_area(corners: list[tuple[float, float]]) -> None:
    rgb = black(40, 30)
    points = np.array(corners)
    Canvas(rgb).fill(points, WHITE, 1.0)
    (ax, ay), (bx, by), (cx, cy) = corners
    area = abs((bx - ax) * (cy - ay) - (cx - ax) * (by - ay)) / 2
    # Lines sample it every quarter of a pixel; a pixel holds whole levels only.
    sides = sum(np.abs(np.diff([*corners, corners[0]], axis=0)).sum(axis=1))
    assert abs(rgb[:, :, 0].sum() / 255 - area) < 0.1 + 0.05 * sides


def test_text_is_read_cell_by_cell() -> None:
    rgb = black(30, 16)
    Canvas(rgb).text(2, 1, "1T", 2, WHITE)
    found = ["".join(".#"[int(v > 0)] for v in row[2:24:2]) for row in rgb[1:15:2, :, 0]]
    assert found == [
        "..#...#####",
        ".##.....#..",
        "..#.....#..",
        "..#.....#..",
        "..#.....#..",
        "..#.....#..",
        ".###....#..",
    ]
    assert text_size("1T", 2) == (22, 14)
    # Over every border; a character that the font lacks is a question mark.
    for u, v in ((-5, -5), (26, 12), (100, 100), (-100, 3)):
        Canvas(rgb).text(u, v, "ab\N{SNOWMAN}", 3, WHITE)
    assert np.array_equal(canvas.text_mask("\N{SNOWMAN}", 1), canvas.text_mask("?", 1))
    # Glyphs differ and fit their cells.
    masks = {name: canvas.text_mask(name, 1) for name in canvas._GLYPHS}
    assert len({mask.tobytes() for mask in masks.values()}) == len(masks)
    assert all(mask.shape == (7, 6) and not mask[:, 5].any() for mask in masks.values())
    # All that the overlay writes.
    shown = "frame time model car plan curvature accel drops 0123456789.-+/% ms s km m/s² no answer"
    shown += "for this frame not valid dropped before lane change left right wanted starts"
    assert set(shown) <= set(canvas._GLYPHS)


def test_the_path_lies_where_the_car_would_drive() -> None:
    rgb = drawn(answer_of())
    for x_m in (8.0, 15.0, 30.0):
        (u, v), (left, _), (line, _) = project(
            np.array([[x_m, 0, 1.22], [x_m, -1.4, 1.22], [x_m, -1.8, 1.22]]), CAMERA, (0, 0, 0)
        )
        path, beside, lane = (rgb[int(v), int(at)].astype(float) for at in (u, left, line))
        np.testing.assert_allclose(path, 90 + 0.4 * (np.array(GREEN) - 90.0), atol=1)
        assert beside.tolist() == [90, 90, 90]
        if x_m < 10:
            np.testing.assert_allclose(lane, BLUE, atol=1)
    # Improbable lines are faint.
    at = project(np.array([[6.0, -1.8, 1.22]]), CAMERA, (0, 0, 0))[0].astype(int)
    for probability, opacity in ((1.0, 1.0), (0.5, 0.5), (0.0, 0.12), (float("nan"), 0.12)):
        pixel = drawn(answer_of(probability=probability))[at[1], at[0]]
        np.testing.assert_allclose(pixel, 90 + opacity * (np.array(BLUE) - 90.0), atol=1)


def test_curves_end_where_they_turn_back_and_may_be_anything() -> None:
    rpy = (0.0, 0.0, 0.0)
    nan = float("nan")
    for x in ([], [1.0], [0.0, 1.0, 2.0], [30.0, 20.0, 10.0], [nan] * 4, [0.0, 1e30, nan]):
        curve = np.zeros((len(x), 3))
        curve[:, 0], curve[:, 2] = x, 1.22
        outline = ribbon(curve, 0.5, CAMERA, rpy)
        assert outline.shape[1] == 2
    hook = np.array([[0, 0, 1.22], [20.0, 0, 1.22], [10.0, 9.0, 1.22]])
    outline = ribbon(hook, 0.5, CAMERA, rpy)
    furthest = project(np.array([[20.0, 0, 1.22]]), CAMERA, rpy)[0, 1]
    assert outline[:, 1].min() == pytest.approx(furthest)


def test_marks_appear_with_what_they_stand_for() -> None:
    plain = drawn(answer_of())
    top = slice(0, 60)
    assert (plain[top] == 90).all()
    assert (drawn(None)[top] != 90).any()
    assert (drawn(answer_of(), missing=2)[0] != 90).all()  # a red line across
    event = model_event(7)
    event.modelV2.meta.laneChangeState = "laneChangeStarting"
    event.modelV2.meta.laneChangeDirection = "left"
    event.modelV2.meta.desireState = [0.1, 0, 0, 0.8, 0.1, 0, 0, 0]
    answer = AnswerReader().take("modelV2", event)
    assert answer is not None
    assert (answer.lane_change, answer.desire) == ("lane change left starts", "change left 80%")
    assert (drawn(answer)[top] != 90).any()


def test_a_lead_is_framed_where_it_is() -> None:
    event = model_event(7)
    (lead,) = event.modelV2.init("leadsV3", 1)
    lead.x, lead.y, lead.v, lead.prob = [20.0], [0.5], [13.0], 0.9
    answer = AnswerReader().take("modelV2", event)
    changed = (drawn(answer) != drawn(answer_of())).any(axis=2)
    sides = np.array([[20.0, 0.5 + s * 0.9, 1.22 - 0.7] for s in (-1, 1)])
    (left, v), (right, _) = project(sides, CAMERA, (0, 0, 0))
    # Below the frame stands its distance.
    rows, columns = np.nonzero(changed[: int(v)])
    assert abs(columns.min() - left) < 3
    assert abs(columns.max() - right) < 3
    assert abs(rows.min() - (v - (right - left) / 2)) < 3
    lead.prob = 0.49
    assert np.array_equal(drawn(AnswerReader().take("modelV2", event)), drawn(answer_of()))


def decode(path: Path) -> list[tuple[float, Rgb]]:
    container: Any = av.open(str(path))
    with container:
        assert container.streams.video[0].codec_context.name == "h264"
        assert container.streams.video[0].format.name == "yuv420p"
        return [(float(f.time), f.to_ndarray(format="rgb24")) for f in container.decode(video=0)]


def made_log(path: Path, frame_ids: list[int], *more: tuple[int, bytes]) -> Path:
    events = [(START_NS + i * PERIOD_NS, model_event(i).to_bytes()) for i in frame_ids]
    ordered = sorted([*events, *more], key=lambda pair: pair[0])
    return write_log(path, [data for _, data in ordered])


def test_one_picture_a_frame_and_gaps_stay_gaps(tmp_path: Path) -> None:
    drive = SyntheticDrive(count=9, size=(320, 192), missing=frozenset({(3, "road"), (4, "road")}))
    log = made_log(tmp_path / "log.rlog", [1, 2, 5, 7])
    written = Written(tmp_path / "out.mp4")
    write_overlay_video(drive, log, written)
    # Behind the last answer the replay may have been stopped.
    assert (written.frames, written.answered) == (6, 4)
    pictures = decode(tmp_path / "out.mp4")
    assert [round(20 * time) for time, _ in pictures] == [0, 1, 2, 5, 6, 7]
    assert pictures[0][1].shape == (192, 320, 3)
    # Frames 3 and 4 were lost before 5: red across the top.
    kept, lost = (pictures[index][1][0, :, 0].mean() for index in (2, 3))
    assert lost > kept + 100
    assert drive.opened == [1, 1]


def test_frames_are_shown_at_their_times_and_as_wide_as_they_are(tmp_path: Path) -> None:
    """Of a film whose rate varies, with pixels that are not square."""

    def squeeze(stream: Any) -> None:
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)

    times = [0, 1, 2, 12, 13, 40, 41, 42]
    film = write_film(tmp_path / "a.mkv", 8, size=(320, 192), times=times, set_up=squeeze)
    drive = open_drive(str(film), DriveOptions())
    log = made_log(tmp_path / "log.rlog", list(range(8)))
    write_overlay_video(drive, log, Written(tmp_path / "out.mp4"))
    np.testing.assert_allclose([t for t, _ in decode(tmp_path / "out.mp4")], np.divide(times, 20))
    with av.open(str(tmp_path / "out.mp4")) as container:
        assert container.streams.video[0].sample_aspect_ratio == 2


def test_facts_of_a_frame(tmp_path: Path) -> None:
    drive = SyntheticDrive(count=6, missing=frozenset({(3, "road")}))
    car = event_of("carState", 1, vEgo=21.5)
    pitched = event_of("liveCalibration", 2, rpyCalib=[0.0, 0.1, 0.0], height=[1.5])
    bad = event_of("liveCalibration", 3, rpyCalib=[0.0, float("nan"), 0.0], height=[-1.0])
    later = START_NS + 2 * PERIOD_NS - 1
    log = made_log(tmp_path / "log.rlog", [0, 2, 4], (0, car), (later, pitched), (later, bad))
    written = Written(log)
    facts = [known for _, known in pass_over(drive, log, written)]
    assert [known.frame_id for known in facts] == [0, 1, 2, 4]
    assert [known.missing for known in facts] == [0, 0, 0, 1]
    assert [round(known.time_s, 6) for known in facts] == [0.0, 0.05, 0.1, 0.2]
    answers = [known.answer for known in facts]
    assert answers[1] is None
    assert answers[0] is not None
    assert answers[2] is not None
    assert (answers[0].rpy_rad, answers[0].height_m) == ((0.0, 0.0, 0.0), 1.22)
    np.testing.assert_allclose(answers[2].rpy_rad, (0.0, 0.1, 0.0), rtol=1e-6)
    assert (answers[2].height_m, answers[2].car_speed_mps) == (1.5, 21.5)
    limited = Written(log)
    assert len(list(pass_over(drive, log, limited, limit=2))) == 2
    assert (limited.frames, limited.answered) == (2, 1)


def test_errors_and_interrupts_leave_nothing(tmp_path: Path) -> None:
    log = made_log(tmp_path / "log.rlog", [100, 101])
    with pytest.raises(DriveError, match="name the drive that the log was made from"):
        write_overlay_video(SyntheticDrive(count=5), log, Written(tmp_path / "out.mp4"))
    damaged = SyntheticDrive(count=5, damaged_at=3)
    log = made_log(tmp_path / "log.rlog", [0, 1, 2, 3, 4])
    with pytest.raises(DriveError, match="expected 5 frames, found 3"):
        write_overlay_video(damaged, log, Written(tmp_path / "out.mp4"))
    assert [path.name for path in tmp_path.iterdir()] == ["log.rlog"]
    assert damaged.opened == [1, 1]

    def interrupt() -> None:
        if written.frames == 3:
            raise KeyboardInterrupt

    log = made_log(tmp_path / "log.rlog", list(range(40)))
    written = Written(tmp_path / "out.mp4", on_frame=interrupt)
    drive = SyntheticDrive(count=40)
    with pytest.raises(KeyboardInterrupt):
        write_overlay_video(drive, log, written)
    assert (drive.opened, [path.name for path in tmp_path.iterdir()]) == ([1, 1], ["log.rlog"])


@pytest.mark.opencl
def test_replay_writes_the_video_beside_the_log(
    tmp_path: Path, video: Path, tiny_model: Path, modeld: Modeld
) -> None:
    log, out, again = tmp_path / "out.rlog", tmp_path / "out.mp4", tmp_path / "again.mp4"
    words = ["replay", video, "--model", tiny_model, "-o", log, "--video", out]
    assert (modeld(0, *words, "--json").json["overlay"], len(decode(out))) == (str(out), FRAMES)
    # The same by the other command; execution times are those measured beside the log.
    said = modeld(0, "export", log, "--video", again, "--drive", video).out
    assert re.fullmatch(rf".*again.mp4: {FRAMES} frames, {FRAMES} with model output.*\n", said)
    for (_, one), (_, other) in zip(decode(out), decode(again), strict=True):
        assert abs(one.astype(float) - other).mean() < 3
    assert load_frames(frames_path(log)).execution_s.min() > 0
    assert all(e.modelV2.modelExecutionTime == 0 for e in read_log(log) if e.which() == "modelV2")
    modeld(0, *words, "--limit", 4)
    assert len(decode(out)) == 4
