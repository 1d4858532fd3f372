from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cereal.schema import new_event, read_event
from modeld.vehicle.cameras import Camera
from tests.cereal.shared import largest_file
from tools.errors import UsageError
from tools.messages.drive_log import summarize, with_measured_times
from tools.messages.drive_messages import Mounting
from tools.report.picture import PictureKeeper, encode_jpeg
from tools.report.report import Picture, Report, pictures_of, render, write_report

CAMERA = Camera(320, 200, 288.0)


def _model(frame_id: int, *, y_m: float = 0.0, valid: bool = True) -> Any:
    eof_ns = 1_000_000_000 + 50_000_000 * frame_id
    event = new_event("modelV2", mono_time_ns=eof_ns + 20_000_000, valid=valid)
    model = event.modelV2
    model.frameId = frame_id
    model.timestampEof = eof_ns
    model.modelExecutionTime = 0.030 + 0.001 * frame_id
    far = np.linspace(0.0, 80.0, 33)
    for curve, offset in [(model.position, y_m)]:
        curve.x, curve.y, curve.z = far.tolist(), [offset] * 33, [0.0] * 33
    model.velocity.x = [15.0] * 33
    for name, offsets in (("laneLines", (-5.4, -1.8, 1.8, 5.4)), ("roadEdges", (-7.0, 7.0))):
        for curve, offset in zip(model.init(name, len(offsets)), offsets, strict=True):
            curve.x, curve.y, curve.z = far.tolist(), [offset] * 33, [1.22] * 33
    model.action.desiredCurvature = -1e-9  # shown without the sign of a rounded zero
    model.laneLineProbs = [0.1, 0.9, 0.9, 0.1]
    return read_event(event.to_bytes())


def _report(events: list[Any], frames_sent: int) -> Report:
    drive = summarize(
        events, curves_of={event.modelV2.frameId for event in events if event.which() == "modelV2"}
    )
    grey = np.full((200, 320), 100, np.uint8)
    jpeg = encode_jpeg(grey, grey[:100])
    pictures = [Picture(row, jpeg, CAMERA) for row in range(min(1, drive.frame_ids.size))]
    return Report("A <title>", "s", {"a & b": "c"}, drive, frames_sent, pictures, Mounting())


def test_summary_reads_what_the_messages_say() -> None:
    # The drive's time begins with the log, where the car speaks first; a route began before it.
    models = [_model(3), _model(4, valid=False), _model(7, y_m=2.0)]
    first = [new_event("initData", mono_time_ns=0), new_event("carState", mono_time_ns=900_000_000)]
    drive = summarize([*first, *models], curves_of={7})
    assert (drive.time.route_from_s, drive.car_times_s.tolist()) == (0.9, [0.0])
    assert drive.frame_ids.tolist() == [3, 4, 7]
    assert drive.missing_frames == 2
    np.testing.assert_allclose(drive.times_s, [0.25, 0.3, 0.45])
    np.testing.assert_allclose(drive.execution_ms, [33.0, 34.0, 37.0], rtol=1e-6)
    assert (drive.counts["modelV2"], drive.counts["modelV2:valid"]) == (3, 2)
    assert drive.curves.keys() == {7}
    curves = drive.curves[7]
    assert curves.lane_lines_m.shape == (4, 33, 3)
    assert curves.road_edges_m[1, 5].tolist() == pytest.approx([12.5, 7.0, 1.22])
    assert curves.plan_m[0].tolist() == [0.0, 2.0, 0.0]
    assert drive.all_finite
    assert not summarize([_model(0, y_m=float("nan"))]).all_finite


def test_measured_times_replace_those_of_the_messages() -> None:
    drive = summarize([_model(3), _model(4), _model(7)])
    measured = with_measured_times(drive, np.array([2, 3, 7]), np.array([0.1, 0.02, 0.05]))
    np.testing.assert_allclose(measured.execution_ms, [20.0, np.nan, 50.0])


def test_a_picture_says_whose_speed_it_is() -> None:
    car = new_event("carState", mono_time_ns=1_000_000_000, valid=True)  # frame 0 is of then
    car.carState.vEgo = 12.25
    captions = [
        render(_report([*events, _model(0)], 1)).partition("<figcaption>")[2]
        for events in ([read_event(car.to_bytes())], [])
    ]
    assert "planned speed 15.0 m/s, actual speed 12.2 m/s" in captions[0]
    assert "planned speed 15.0 m/s, actual speed unknown" in captions[1]
    assert "planned curvature +0.0000 1/m" in captions[0]


def test_path_is_drawn_where_the_camera_sees_it() -> None:
    text = render(_report([_model(0)], 1))
    # 0.9 m left of the centre, on the road 1.22 m below, at the first point beyond 3 m: x = 5 m.
    left, down = 160.0 - 288.0 * 0.9 / 5.0, 100.0 + 288.0 * 1.22 / 5.0
    assert f'<path class="path" fill-opacity="0.45" d="M{left:.1f} {down:.1f}L' in text


def test_what_is_true_is_drawn_beside_what_the_model_said() -> None:
    report = _report([_model(0)], 1)
    assert 'class="true"' not in render(report)
    assert "ground truth" not in render(report)
    said = report.drive.curves[0]
    lines = said.lane_lines_m.copy()
    lines[3] = np.nan  # there is none
    truth = replace(said, lane_lines_m=lines)
    text = render(replace(report, pictures=[replace(report.pictures[0], truth=truth)]))
    # The lines that are there, two edges and the path; in the picture and in the view from above.
    assert text.count('class="true"') == 2 * (2 + 2 + 1)
    assert "ground truth" in text
    # The line 1.8 m left of the centre, 1.22 m below, at the first point beyond 3 m: x = 5 m.
    left, down = 160.0 - 288.0 * 1.8 / 5.0, 100.0 + 288.0 * 1.22 / 5.0
    assert f'<path class="true" d="M{left:.1f} {down:.1f}L' in text


def test_numbers_and_texts_are_on_the_page() -> None:
    text = render(_report([_model(0), _model(2)], 3))
    assert "<h1>A &lt;title&gt;</h1>" in text
    assert "<th>a &amp; b</th>" in text
    assert "median 31.0 ms" in text
    assert "1 frame between the first and the last message without an answer" in text
    assert "1 of 3 frames have no answer. Half took at most 31.0 ms" in text
    assert '<p class="lead bad">' in text
    empty = render(_report([], 5))
    assert "published no modelV2" in empty
    # What is well is not drawn at length.
    whole = render(_report([_model(0), _model(1)], 2))
    assert '<p class="lead good">All 2 frames have valid answers.' in whole
    assert "No frame was dropped." in whole
    # Answers that came too late are no success, and no fault of the drive either.
    late = render(_report([_model(40), _model(41)], 2))
    assert '<p class="lead">All 2 frames have valid answers. Half took at most 70.5 ms' in late
    assert "Smoothed share of dropped frames" not in whole
    assert "nan" not in empty


def test_failed_write_leaves_the_old_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, _report([_model(0)], 1))
    before = path.read_text(encoding="utf-8")
    with (
        largest_file(100),
        pytest.raises(UsageError, match=r"report\.html: the report cannot be written \("),
    ):
        write_report(path, _report([], 5))
    assert path.read_text(encoding="utf-8") == before
    assert list(tmp_path.iterdir()) == [path]


def test_name_that_is_no_text_does_not_cost_the_report(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_report(path, Report("drive\udcff.mp4", "s", {}, summarize([]), 0, [], Mounting()))
    assert "<h1>drive?.mp4</h1>" in path.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("frames", "expected"),
    [(1, [0]), (4, [0, 1, 2, 3]), (221, [0, 64, 128, 192]), (64, [0, 16, 32, 48])],
)
def test_keeper_spreads_a_few_frames_over_any_length(frames: int, expected: list[int]) -> None:
    keeper = PictureKeeper()
    grey = np.zeros((4, 8), np.uint8)
    for frame_id in range(frames):
        keeper.offer(frame_id, grey, grey[:2])
    chosen = [frame_id for frame_id, _ in keeper.choose(4)]
    assert chosen == expected
    with_message = summarize([_model(0), _model(1)], curves_of={0})
    assert [picture.row for picture in pictures_of(with_message, keeper.choose(4), CAMERA)] == [0]


def test_pictures_begin_when_the_history_of_the_model_is_full() -> None:
    long = summarize(map(_model, range(103)), curves_of={0, 99, 102})
    offered = [(0, b"a"), (99, b"b"), (102, b"c")]
    assert [one.row for one in pictures_of(long, offered, CAMERA)] == [102]
    # Better an early frame than none.
    assert [one.row for one in pictures_of(long, offered[:2], CAMERA)] == [0, 99]
