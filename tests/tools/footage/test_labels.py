"""The kept labels make sense, and files of labels that do not are refused in one line."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.tools.footage.clip import LABELS
from tools.behaviour.footage import DISTANCES_M, nearest_row
from tools.behaviour.labels import Labels, read_labels
from tools.errors import LabelsError
from tools.messages.camera import project

# What a lane of 3.66 m may come out as: the car's pitching moves the horizon by 3 rows.
WIDTHS_M = (3.2, 4.2)


@pytest.fixture(scope="module")
def labels() -> Labels:
    return read_labels(LABELS)


def test_twenty_frames_are_spread_over_the_clip(labels: Labels) -> None:
    numbers = [frame.number for frame in labels.frames]
    assert len(numbers) == 20
    assert numbers[0] < 20
    assert numbers[-1] > 200
    assert max(np.diff(numbers)) <= 12
    assert LABELS.stat().st_size < 30_000
    # Rows lie near the distances that are reported.
    ahead = [labels.ahead_m[nearest_row(labels, at)] for at in DISTANCES_M]
    np.testing.assert_allclose(ahead, DISTANCES_M, rtol=0.05)


def test_lines_are_a_lane_apart_in_every_row(labels: Labels) -> None:
    widths = []
    for frame in labels.frames:
        left, right = labels.on_road(frame)
        width = right[:, 1] - left[:, 1]
        assert (width > WIDTHS_M[0]).all(), frame.number
        assert (width < WIDTHS_M[1]).all(), frame.number
        assert np.median(width) == pytest.approx(labels.lane_width_m, abs=0.2), frame.number
        assert (left[:, 1] < -1.0).all()
        assert (right[:, 1] > 1.0).all()
        widths.append(np.median(width))
        # The solid line is all paint, and dashes are in every frame.
        assert frame.is_paint[1].all()
        assert 2 <= frame.is_paint[0].sum() < labels.rows_px.size
        assert np.isfinite(frame.columns_px).all()
    assert np.mean(widths) == pytest.approx(labels.lane_width_m, abs=0.05)


def test_the_camera_is_the_one_that_the_lines_give(labels: Labels) -> None:
    """Straight lines of all frames meet at the calibrated horizon, and lie a lane apart."""
    meeting, slopes = [], []
    for frame in labels.frames:
        (a, b), (c, d) = (np.polyfit(labels.rows_px, one, 1) for one in frame.columns_px)
        row = (d - b) / (a - c)
        meeting.append((a * row + b, row))
        slopes.append(c - a)
    # Far ahead, where the car drives to; a row is 0.066 degrees.
    camera = labels.video_camera
    ((column, row),) = project(np.array([[1e6, 0.0, 0.0]]), labels.camera, camera.rpy_rad)
    np.testing.assert_allclose(np.mean(meeting, axis=0), [column, row], atol=1.0)
    height = labels.lane_width_m / np.mean(slopes)
    assert labels.video_camera.height_m == pytest.approx(height, abs=0.02)


def changed(change: Callable[[dict[str, Any]], Any]) -> str:
    content = json.loads(LABELS.read_text())
    change(content)
    return json.dumps(content)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda t: t.pop("rows"), "KeyError: 'rows'"),
        (lambda t: t.update(rows=[400, 500, 300]), "expected at least 3 that decrease"),
        (lambda t: t["rows"].__setitem__(-1, 250), "below the horizon of the camera"),
        (lambda t: t["rows"].__setitem__(0, "6_0"), "expected a number, found '6_0'"),
        (lambda t: t["frames"][0]["left"].__setitem__(0, "9"), "expected a number, found '9'"),
        (lambda t: t["frames"][0].update(frame=10.5), "expected a whole number, found 10.5"),
        (lambda t: t.update(lane_width_m="3_5"), "expected a number, found '3_5'"),
        (lambda t: t.update(frames=[]), "numbers that increase from 0"),
        (lambda t: t["frames"].reverse(), "numbers that increase from 0"),
        (lambda t: t["frames"][0]["left"].pop(), "ValueError"),
        (lambda t: t["frames"][0]["left"].__setitem__(0, 900), "frame 10: expected the left"),
        (lambda t: t["frames"][0].update(left_paint="1"), "ValueError"),
        (lambda t: t["camera"].update(height_m=0), "camera.height_m: expected more than 0"),
        (lambda t: t["camera"].update(zoom=2), "camera.zoom: expected one of focal_px"),
        (lambda t: t["camera"].update(pitch_deg=80), "camera.pitch_deg"),
        (lambda t: t["camera"].update(yaw_deg="0"), "expected a finite number, found '0'"),
        ("{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        *((text, "as docs/footage.md describes") for text in ("[]", "null", '{"rows": 3}')),
        (None, "No such file"),
    ],
)
def test_damaged_labels_and_what_is_no_file_of_them_are_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any] | str | None, problem: str
) -> None:
    path = tmp_path / "labels.json"
    if change is not None:
        path.write_text(change if isinstance(change, str) else changed(change))
    with pytest.raises(LabelsError) as caught:
        read_labels(path)
    assert problem in str(caught.value)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_column_that_nobody_can_tell_is_nan(tmp_path: Path) -> None:
    path = tmp_path / "labels.json"
    path.write_text(changed(lambda t: t["frames"][0]["left"].__setitem__(3, None)))
    labels = read_labels(path)
    assert np.flatnonzero(np.isnan(labels.frames[0].columns_px[0])).tolist() == [3]
    assert labels.frames[0].columns_px.shape == (2, 12)
    assert np.isnan(labels.on_road(labels.frames[0])[0, 3]).all()
