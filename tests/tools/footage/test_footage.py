"""Errors of made-up curves, by hand, and what the references make of the kept labels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from modeld.constants import X_IDXS
from tests.tools.conftest import MakeVideo
from tests.tools.footage.clip import LABELS
from tools.behaviour.footage import (
    Figures,
    Subject,
    judge,
    lane_ahead,
    perfect_fit,
    subject_of,
)
from tools.behaviour.labels import LabelledFrame, Labels, read_labels
from tools.cli import main
from tools.lib.drive_log import Curves
from tools.lib.video_camera import VideoCamera

# A level camera of 500 px focal length, 1.2 m over the road: rows 375, 340, 320 are 8, 15, 30 m
# ahead, and there 62.5, 33.3 and 16.7 px are a metre.
ROWS = np.array([375.0, 340.0, 320.0])
AHEAD_M = np.array([8.0, 15.0, 30.0])


def _labels(*lanes: tuple[float, float]) -> Labels:
    """Straight lanes, one for each frame, given by the y of their lines."""
    frames = tuple(
        LabelledFrame(
            number=10 * index,
            columns_px=500.0 + 500.0 * np.array(lane)[:, None] / AHEAD_M,
            is_paint=np.array([[True, False, False], [True, True, True]]),
        )
        for index, lane in enumerate(lanes)
    )
    camera = VideoCamera(focal_px=500.0, height_m=1.2)
    return Labels(Path("x.json"), "x.mp4", "0" * 64, (1000, 600), 3.6, camera, ROWS, frames)


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
    errors = judge(_labels((-1.8, 1.8)), {0: _lane(-1.6, 1.7)})
    np.testing.assert_allclose(errors.metres["left"], [[0.2] * 3], atol=1e-6)
    np.testing.assert_allclose(errors.metres["right"], [[-0.1] * 3], atol=1e-6)
    np.testing.assert_allclose(errors.metres["centre"], [[0.05] * 3], atol=1e-6)
    np.testing.assert_allclose(errors.metres["path"], [[0.05] * 3], atol=1e-6)
    # 500 px * 0.2 m / 8, 15 and 30 m.
    np.testing.assert_allclose(errors.pixels["left"], [[12.5, 20 / 3, 10 / 3]], atol=1e-3)
    np.testing.assert_allclose(errors.pixels["path"], [[3.125, 5 / 3, 2.5 / 3]], atol=1e-3)


def test_figures_are_of_absolute_errors_and_the_bias_keeps_its_sign() -> None:
    subject = subject_of("x", _labels((-1.8, 1.8)), {0: _lane(-1.6, 1.7)})
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
    labels = _labels((-1.8, 1.8), (-1.8, 1.8))
    subject = subject_of("x", labels, {10: _lane(-1.8, 1.8, probability=0.4)})
    assert subject.errors.answered == 1
    assert subject.errors.coverage == (0.0, 0.0)
    both = _figures(subject, "both lines", "all")
    assert (both.points, both.missing, both.mean_m) == (12, 6, 0.0)
    nothing = subject_of("x", labels, {})
    assert _figures(nothing, "both lines", "all").mean_m is None
    assert nothing.following is None


def test_coverage_is_the_share_of_probable_lines_of_all_labelled_frames() -> None:
    labels = _labels((-1.8, 1.8), (-1.8, 1.8))
    seen = replace(_lane(-1.8, 1.8), lane_line_probs=np.array([0, 0.6, 0.5, 0], np.float32))
    assert judge(labels, {0: seen}).coverage == (0.5, 0.0)


def test_a_curve_that_is_not_finite_or_flies_is_missing_in_the_picture() -> None:
    curves = _lane(-1.8, 1.8)
    curves.lane_lines_m[1] = np.nan
    curves.lane_lines_m[2, :, 2] = -5.0  # above the camera: it crosses no row of the road
    subject = subject_of("x", _labels((-1.8, 1.8)), {0: curves})
    assert _figures(subject, "left", "all").mean_m is None
    right = _figures(subject, "right", "all")
    assert (right.missing, right.mean_m, right.mean_px) == (3, 0.0, None)


def test_a_model_that_sees_follows_and_one_that_guesses_does_not() -> None:
    lanes = [(-2.0, 1.6), (-1.8, 1.8), (-1.5, 2.1)]
    labels = _labels(*lanes)
    seeing = {
        10 * index: _lane(left + 0.3, right + 0.3) for index, (left, right) in enumerate(lanes)
    }
    assert subject_of("x", labels, seeing).following == pytest.approx(1.0, abs=1e-3)
    half = {10 * index: _lane(left / 2, right / 2) for index, (left, right) in enumerate(lanes)}
    assert subject_of("x", labels, half).following == pytest.approx(0.75, abs=1e-3)
    assert subject_of("x", labels, lane_ahead(labels)).following == pytest.approx(0.0, abs=1e-3)
    wrong = {10 * index: _lane(-right, -left) for index, (left, right) in enumerate(lanes)}
    assert subject_of("x", labels, wrong).following == pytest.approx(-3.0, abs=1e-3)


def test_the_references_are_the_labels_themselves_and_the_middle_of_a_lane() -> None:
    labels = _labels((-2.0, 1.6), (-1.8, 1.8), (-1.5, 2.1))
    best = subject_of("best", labels, perfect_fit(labels))
    assert _figures(best, "both lines", "all").mean_m == pytest.approx(0.0, abs=1e-4)
    blind = subject_of("blind", labels, lane_ahead(labels))
    assert _figures(blind, "both lines", "all").mean_m == pytest.approx(0.5 / 3, abs=1e-4)
    assert best.errors.coverage == blind.errors.coverage == (1.0, 1.0)


# --- the kept labels -----------------------------------------------------------------------------


def test_the_clips_labels_are_within_two_pixels_of_smooth_lines() -> None:
    labels = read_labels(LABELS)
    errors = judge(labels, perfect_fit(labels))
    for name in ("left", "right"):
        assert np.abs(errors.pixels[name]).max() < 2.0
        assert np.abs(errors.metres[name]).max() < 0.05


def test_another_video_is_refused(
    make_video: MakeVideo, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["footage", str(make_video()), "--labels", str(LABELS)]) == 4
    assert "labels another clip" in capsys.readouterr().err
