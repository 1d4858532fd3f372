"""Lines and the car ahead are looked for in the cells in which they are painted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tools.training.straight_road import HEIGHT_M, LINE_M, straight, with_lead
from tools.training.cells import (
    CELL_PX,
    COLUMNS,
    ROWS,
    column_scale,
    lead_places,
    lead_readings,
    line_columns,
    row_scale,
)
from tools.training.heads import VISION_TARGETS, places_in_target
from tools.world.view import MED_LENS, WIDE_LENS, Lens


@pytest.mark.parametrize(("view", "lens"), [(0, MED_LENS), (1, WIDE_LENS)])
def test_line_is_where_its_projection_crosses_rows(view: int, lens: Lens) -> None:
    found = line_columns(straight())[0, view]
    assert np.isnan(found[[0, 1, 3, 4, 5]]).all()
    middles = CELL_PX * (np.arange(ROWS) + 0.5)
    # A point y to the right and h below at x is at (f y / x, f h / x): x drops out.
    wanted = (lens.cx_px + (middles - lens.cy_px) * LINE_M / HEIGHT_M) / CELL_PX
    known = np.isfinite(found[2])
    assert known.sum() >= 5
    np.testing.assert_allclose(found[2][known], wanted[known], atol=0.02)
    # Nothing is above the horizon or beside the picture.
    assert (middles[known] > lens.cy_px).all()
    assert (found[2][known] < COLUMNS).all()


def test_behind_a_crest_nothing_is_seen() -> None:
    target = straight()
    place = places_in_target(VISION_TARGETS)["lane_lines"]
    lines = target[0, place].reshape(4, 33, 2)
    seen = line_columns(target)[0, 0, 2].copy()
    # From the tenth place on the road falls away steeply.
    lines[2, 10:, 1] += 30.0
    hidden = line_columns(target)[0, 0, 2]
    assert np.isfinite(hidden).sum() < np.isfinite(seen).sum()
    near = np.isfinite(hidden)
    np.testing.assert_allclose(hidden[near], seen[near], atol=0.5)


def test_columns_count_from_the_middle() -> None:
    scale = column_scale()
    assert scale.shape == (COLUMNS,)
    np.testing.assert_allclose(scale, -scale[::-1])
    assert scale[16] == 0.25
    assert row_scale().shape == (ROWS,)
    np.testing.assert_allclose(row_scale(), -row_scale()[::-1])
    assert row_scale()[0] == -3.75


def test_car_ahead_is_where_its_rear_stands_on_the_road() -> None:
    found = lead_places(with_lead(20.0, 1.0))[0]
    # Focal lengths 910 and 455, horizons at rows 47.6 and 151.8 of 256, middles at column 256.
    road = ((256.0 + 910.0 * 1.0 / 20.0) / 16.0, (47.6 + 910.0 * 1.25 / 20.0) / 16.0)
    wide = ((256.0 + 455.0 * 1.0 / 20.0) / 16.0, (151.8 + 455.0 * 1.25 / 20.0) / 16.0)
    np.testing.assert_allclose(found, [road, wide], atol=1e-4)


def test_car_beside_the_picture_or_behind_it_is_in_no_cell() -> None:
    road, wide = lead_places(with_lead(4.0, 1.5))[0]
    # 910 * 1.5 / 4 is more than half of 512 pixels; 455 * 1.5 / 4 is less.
    assert np.isnan(road).all()
    # Where it stands is below the picture: the lowest row stands for it.
    np.testing.assert_allclose(wide, [(256.0 + 455.0 * 1.5 / 4.0) / 16.0, ROWS - 0.5], atol=1e-4)
    assert np.isnan(lead_places(straight())).all()


@pytest.mark.parametrize(
    ("ahead_m", "lead_mps", "growths"),
    [
        (20.0, 10.0, 0.0),
        # 5 m/s for 0.2 s are 1 m of 20, which is one time 5 %.
        (20.0, 5.0, 1.0),
        (40.0, 20.0, -1.0),
        (2.0, 0.0, 3.0),
    ],
)
def test_car_reads_how_far_it_is_and_how_it_grows(
    ahead_m: float, lead_mps: float, growths: float
) -> None:
    found = lead_readings(with_lead(ahead_m, 0.0, lead_mps))
    np.testing.assert_allclose(found, [[np.log(ahead_m / 20.0), growths]], atol=1e-6)
    assert np.isnan(lead_readings(straight())).all()
