"""Errors of made-up curves, by hand, pixels on a level road, and the references of kept labels."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from modeld.constants import X_IDXS
from modeld.vehicle.cameras import Camera
from tests.tools.conftest import Modeld
from tests.tools.footage.clip import LABELS
from tools.behaviour.footage import Figures, Subject, blind_lane, judge, perfect_fit, subject_of
from tools.behaviour.labels import LabelledFrame, Labels, RoadPlane, read_labels, where_crossed
from tools.messages.camera import VideoCamera, project
from tools.messages.drive_log import Curves

# A level camera of 500 px focal length, 1.2 m over the road: rows 375, 340, 320 are 8, 15, 30 m
# ahead, and there 62.5, 33.3 and 16.7 px are a metre.
ROWS = np.array([375.0, 340.0, 320.0])
AHEAD_M = np.array([8.0, 15.0, 30.0])
CAMERA = Camera(1000, 600, 500.0)
LEVEL = RoadPlane(CAMERA, (0.0, 0.0, 0.0), 1.2)
MIDDLE = (-1.8, 1.8)
LANES = ((-2.0, 1.6), MIDDLE, (-1.5, 2.1))


def _labels(*lanes: tuple[float, float]) -> Labels:
    """Straight lanes, one for each frame, given by the y of their lines."""
    paint = np.array([[True, False, False], [True, True, True]])
    columns_px = [500.0 + 500.0 * np.array(lane)[:, None] / AHEAD_M for lane in lanes]
    frames = [LabelledFrame(10 * index, one, paint) for index, one in enumerate(columns_px)]
    camera = VideoCamera(focal_px=500.0, height_m=1.2)
    return Labels(Path("x.json"), "x.mp4", "0" * 64, (1000, 600), 3.6, camera, ROWS, tuple(frames))


def _lane(left_m: float, right_m: float, probability: float = 0.9) -> Curves:
    """What a model says of a straight lane; its path keeps to the middle."""
    lines = np.zeros((4, X_IDXS.size, 3), np.float32)
    lines[:, :, 0], lines[:, :, 2] = X_IDXS, 1.2
    lines[:, :, 1] = np.array([left_m - 3.6, left_m, right_m, right_m + 3.6])[:, None]
    plan = np.zeros((X_IDXS.size, 3), np.float32)
    plan[:, 0], plan[:, 1] = X_IDXS, (left_m + right_m) / 2
    edges = np.zeros((2, X_IDXS.size, 3), np.float32)
    return Curves(plan, lines, np.full(4, probability, np.float32), edges)


def _figures(subject: Subject, what: str, at: str) -> Figures:
    (found,) = (one for one in subject.figures if (one.what, one.at) == (what, at))
    return found


def test_errors_are_model_minus_label_in_columns_and_metres() -> None:
    errors = judge(_labels(MIDDLE), {0: _lane(-1.6, 1.7)})
    for name, metres in (("left", 0.2), ("right", -0.1), ("centre", 0.05), ("path", 0.05)):
        assert_allclose(errors.metres[name], [[metres] * 3], atol=1e-6)
    # 500 px * 0.2 m / 8, 15 and 30 m.
    assert_allclose(errors.pixels["left"], [[12.5, 20 / 3, 10 / 3]], atol=1e-3)
    assert_allclose(errors.pixels["path"], [[3.125, 5 / 3, 2.5 / 3]], atol=1e-3)


def test_figures_are_of_absolute_errors_and_the_bias_keeps_its_sign() -> None:
    subject = subject_of("x", _labels(MIDDLE), {0: _lane(-1.6, 1.7)})
    both = _figures(subject, "both lines", "15 m")
    assert (both.points, both.missing) == (2, 0)
    assert both.mean_m == both.median_m == pytest.approx(0.15)
    assert both.p90_m == pytest.approx(0.19)  # nine tenths of the way from 0.1 to 0.2
    assert both.bias_m == pytest.approx(0.05)
    assert both.mean_px == pytest.approx(5.0)
    assert _figures(subject, "left", "all").mean_m == pytest.approx(0.2)
    # Paint is seen once on the left and three times on the right.
    paint = _figures(subject, "seen paint", "all")
    assert paint.points == 4
    assert paint.mean_m == pytest.approx((0.2 + 3 * 0.1) / 4)


def test_a_frame_without_an_answer_is_missing() -> None:
    labels = _labels(MIDDLE, MIDDLE)
    subject = subject_of("x", labels, {10: _lane(-1.8, 1.8, probability=0.4)})
    assert subject.errors.answered == 1
    assert subject.errors.coverage == (0.0, 0.0)
    both = _figures(subject, "both lines", "all")
    assert (both.points, both.missing, both.mean_m) == (12, 6, 0.0)
    nothing = subject_of("x", labels, {})
    assert _figures(nothing, "both lines", "all").mean_m is None
    assert nothing.following is None
    # Coverage is the share of probable lines of all labelled frames.
    seen = replace(_lane(-1.8, 1.8), lane_line_probs=np.array([0, 0.6, 0.5, 0], np.float32))
    assert judge(labels, {0: seen}).coverage == (0.5, 0.0)


def test_a_curve_that_is_not_finite_or_flies_is_missing_in_the_picture() -> None:
    curves = _lane(-1.8, 1.8)
    curves.lane_lines_m[1] = np.nan
    curves.lane_lines_m[2, :, 2] = -5.0  # above the camera: it crosses no row of the road
    subject = subject_of("x", _labels(MIDDLE), {0: curves})
    assert _figures(subject, "left", "all").mean_m is None
    right = _figures(subject, "right", "all")
    assert (right.missing, right.mean_m, right.mean_px) == (3, 0.0, None)


# One that sees, one that sees half of it, and one that takes left for right.
@pytest.mark.parametrize(
    ("left", "right", "offset", "following"),
    [((1, 0), (0, 1), 0.3, 1.0), ((0.5, 0), (0, 0.5), 0.0, 0.75), ((0, -1), (-1, 0), 0.0, -3.0)],
)
def test_a_model_that_sees_follows_and_one_that_guesses_does_not(
    left: tuple[float, float], right: tuple[float, float], offset: float, following: float
) -> None:
    said = {
        10 * index: _lane(float(np.dot(left, lane)) + offset, float(np.dot(right, lane)) + offset)
        for index, lane in enumerate(LANES)
    }
    found = subject_of("x", _labels(*LANES), said).following
    assert found == pytest.approx(following, abs=1e-3)


def test_the_references_are_the_labels_themselves_and_the_middle_of_a_lane() -> None:
    labels = _labels(*LANES)
    best = subject_of("best", labels, perfect_fit(labels))
    assert _figures(best, "both lines", "all").mean_m == pytest.approx(0.0, abs=1e-4)
    blind = subject_of("blind", labels, blind_lane(labels))
    assert _figures(blind, "both lines", "all").mean_m == pytest.approx(0.5 / 3, abs=1e-4)
    assert blind.following == pytest.approx(0.0, abs=1e-3)
    assert best.errors.coverage == blind.errors.coverage == (1.0, 1.0)


def test_the_clips_labels_are_within_two_pixels_of_smooth_lines() -> None:
    labels = read_labels(LABELS)
    errors = judge(labels, perfect_fit(labels))
    for name in ("left", "right"):
        assert np.abs(errors.pixels[name]).max() < 2.0
        assert np.abs(errors.metres[name]).max() < 0.05


def test_another_video_is_refused(video: Path, modeld: Modeld) -> None:
    modeld.refused(4, "labels another clip", "footage", video, "--labels", LABELS)


def test_a_pixel_below_the_middle_lies_on_the_road_by_similar_triangles() -> None:
    # 60 px below the middle: 1.2 * 500 / 60 = 10 m ahead; 100 px right of it: 100 / 500 * 10 m.
    assert_allclose(LEVEL.on_road(np.array([[600.0, 360.0]])), [[10.0, 2.0]])
    # The sky has no place on the road.
    found = LEVEL.on_road(np.array([[500.0, 300.0], [500.0, 299.0], [500.0, 301.0]]))
    assert np.isnan(found[:2]).all()
    assert found[2, 0] == pytest.approx(600.0)
    # Pitch -atan(0.1) puts straight ahead 50 px below the middle, and the road's rows with it.
    plane = RoadPlane(CAMERA, (0.0, -math.atan(0.1), 0.0), 1.2)
    assert np.isnan(plane.on_road(np.array([[500.0, 349.0]]))).all()
    far = plane.on_road(np.array([[500.0, 351.0]]))[0, 0]
    # The ray of that row falls at (51 / 500 - 0.1) / (1 + 0.1 * 51 / 500) of its length.
    assert far == pytest.approx(1.2 * (1.0 + 0.1 * 0.102) / 0.002)


def test_pixels_and_places_are_each_others_inverse() -> None:
    plane = RoadPlane(Camera(960, 540, 864.0), (0.01, -0.04, 0.02), 1.23)
    places = np.array([[6.0, -1.8], [15.0, 0.3], [40.0, 2.0]])
    points = np.concatenate([places, np.full((3, 1), 1.23)], axis=1)
    pixels = project(points, plane.camera, plane.rpy_rad)
    assert_allclose(plane.on_road(pixels), places, rtol=1e-9)


def test_a_straight_line_crosses_a_row_where_similar_triangles_say() -> None:
    # 1.5 m to the left: at 60 px below the middle, 10 m ahead, 500 * 1.5 / 10 = 75 px left of it;
    # at 30 px, 20 m ahead, half of that. Nothing is nearer than 4 m or further than 24 m.
    curve = np.array([[x, -1.5, 1.2] for x in (0.0, 4.0, 24.0)])
    found = LEVEL.columns(curve, np.array([460.0, 360.0, 330.0, 320.0]))
    assert_allclose(found, [np.nan, 425.0, 462.5, np.nan])
    # A crossing is the first one, and a gap has none.
    along = np.array([0.0, 2.0, 0.0, np.nan, 5.0, 5.0, 7.0])
    across = np.array([0.0, 20.0, 100.0, 0.0, 1.0, 2.0, 4.0])
    found = where_crossed(along, across, np.array([1.0, 2.0, 3.0, 5.0, 6.0]))
    assert_allclose(found, [10.0, 20.0, np.nan, 1.0, 3.0])
