from __future__ import annotations

import numpy as np
import pytest

from modeld.calibration import Camera
from tools.lib.demo_drive import (
    ASPHALT,
    LANE_LINES_Y_M,
    LEAD_DISTANCE_M,
    PALETTE,
    SPEED_MPS,
    SWAY_PERIOD_M,
    YELLOW,
    DemoDrive,
    drive_state,
)

CAMERA = Camera(640, 400, 400.0)


def test_picture_has_nv12_planes_in_limited_range() -> None:
    luma, chroma = DemoDrive(CAMERA).render(0.0)
    assert luma.shape == (400, 640)
    assert chroma.shape == (200, 640)
    assert luma.dtype == chroma.dtype == np.uint8
    assert luma.min() >= 16
    assert luma.max() <= 235


def test_same_time_gives_same_picture_and_another_time_another() -> None:
    first, _ = DemoDrive(CAMERA).render(0.7)
    again, _ = DemoDrive(CAMERA).render(0.7)
    later, _ = DemoDrive(CAMERA).render(0.75)
    np.testing.assert_array_equal(first, again)
    assert (first != later).mean() > 0.05


def test_outer_line_is_where_a_pinhole_camera_sees_it() -> None:
    # Near the car the road is straight: the left line is 5.4 m left. In row r (centre r + 0.5)
    # the road is 400 * 1.22 / (r + 0.5 - 200) m away, so the line is at 320 - 400 * 5.4 / depth.
    row = 270
    depth_m = 400.0 * 1.22 / (row + 0.5 - 200.0)
    column = 320.0 + 400.0 * LANE_LINES_Y_M[0] / depth_m
    # At a curvature of zero crossing only the heading term remains, below 2 cm at 7 m.
    _, chroma = DemoDrive(CAMERA).render(0.0)
    uv = chroma.reshape(200, 320, 2)[row // 2]
    is_line = (uv == PALETTE[YELLOW, 1:]).all(axis=1)
    columns = 2.0 * np.flatnonzero(is_line)
    assert columns.size > 0
    assert columns.mean() == pytest.approx(column, abs=4.0)


def test_sky_is_above_and_road_below_the_horizon() -> None:
    luma, _ = DemoDrive(CAMERA).render(0.0)
    assert luma[:100].mean() > luma[300:].mean() + 40
    assert abs(float(luma[330, 320]) - float(PALETTE[ASPHALT, 0])) < 16


def test_lead_car_stands_in_its_lane() -> None:
    # Its rear is 1.8 m wide at about 34 m: some 21 px wide at 400 px, dark against the road.
    luma, _ = DemoDrive(CAMERA).render(0.0)
    row = 200 + round(400.0 * (1.22 - 0.6) / LEAD_DISTANCE_M)
    dark = np.flatnonzero(luma[row, 280:360] < 75)
    assert 14 <= dark.size <= 30


def test_state_drives_on_and_sways() -> None:
    quarter_s = SWAY_PERIOD_M / 4 / SPEED_MPS
    assert drive_state(0.0).curvature_1pm == 0.0
    assert drive_state(quarter_s).distance_m == pytest.approx(SWAY_PERIOD_M / 4)
    assert drive_state(quarter_s).curvature_1pm == pytest.approx(2e-3)
    assert drive_state(3 * quarter_s).curvature_1pm == pytest.approx(-2e-3)
