"""Lines are looked for in the cells in which they are painted."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tools.training.straight_road import HEIGHT_M, LINE_M, straight
from tools.training.cells import CELL_PX, COLUMNS, ROWS, column_scale, line_columns
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
