"""Hints for cells lie where lines are painted and move as the road does."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from modeld.constants import X_IDXS
from tools.training.heads import VISION_TARGETS, Singles, places_in_target, size_of
from tools.training.hints import CELL_PX, flow_hints, hint_loss, line_hints
from tools.world.view import MED_LENS, WIDE_LENS

PLACES = places_in_target(VISION_TARGETS)
HEIGHT_M = 1.25


def straight(speed_mps: float = 10.0, yaw_rate_radps: float = 0.0) -> Singles:
    """Return the target of a straight, level road with one line, 1.8 m to the right."""
    target = np.full((1, size_of(VISION_TARGETS)), np.nan, np.float32)
    lines = np.full((4, X_IDXS.size, 2), np.nan)
    lines[2, :, 0], lines[2, :, 1] = 1.8, HEIGHT_M
    target[0, PLACES["lane_lines"]] = lines.reshape(-1)
    target[0, PLACES["pose"]] = (speed_mps, 0, 0, 0, 0, yaw_rate_radps)
    target[0, PLACES["road_transform"]] = (0, 0, HEIGHT_M, 0, 0, 0)
    return target


def test_only_cells_of_the_line_are_marked() -> None:
    hints = line_hints(straight())[0]
    assert hints[:, [0, 1, 3, 4, 5]].max() == 0.0
    for view, lens in enumerate((MED_LENS, WIDE_LENS)):
        rows, columns = np.nonzero(hints[view, 2])
        assert len(rows) > 4
        # The middle of a marked cell is within a cell of the line.
        across = CELL_PX * (columns + 0.5) - lens.cx_px
        below = np.maximum(CELL_PX * (rows + 0.5) - lens.cy_px, 1.0)
        wanted = 1.8 / HEIGHT_M * below
        assert np.abs(across - wanted).max() < CELL_PX * (1.0 + 1.8 / HEIGHT_M)


def test_road_moves_as_far_as_the_car_drives() -> None:
    flow = flow_hints(straight(10.0))[0]
    for view, lens in enumerate((MED_LENS, WIDE_LENS)):
        row = round(lens.cy_px / CELL_PX) + 4
        below = CELL_PX * (row + 0.5) - lens.cy_px
        ahead_m = lens.focal_px * HEIGHT_M / below
        # Two metres further away it was 0.2 s before.
        before = lens.focal_px * HEIGHT_M / (ahead_m + 2.0)
        np.testing.assert_allclose(flow[view, 1, row], (below - before) / CELL_PX, rtol=1e-5)
        assert np.isnan(flow[view, :, : int(lens.cy_px / CELL_PX)]).all()
        # Away from the middle on both sides.
        assert flow[view, 0, row, 4] < 0 < flow[view, 0, row, 27]


def test_road_stands_still_with_the_car_and_turns_against_it() -> None:
    still = flow_hints(straight(0.0))
    assert np.nanmax(np.abs(still)) < 1e-6
    # A turn to the right moves what is ahead to the left.
    turned = flow_hints(straight(0.0, 0.1))[0, 0, 0]
    assert np.nanmax(turned) < 0.0
    assert np.nanmedian(turned) == pytest.approx(-0.02 * MED_LENS.focal_px / CELL_PX, rel=0.1)


def test_loss_is_least_where_cells_say_what_is_true() -> None:
    target = straight(10.0)
    right = np.concatenate(
        [20.0 * line_hints(target) - 10.0, np.nan_to_num(flow_hints(target))], axis=2
    )
    best = hint_loss(torch.from_numpy(right), target)
    assert 0.0 <= best.item() < 0.01
    assert hint_loss(torch.zeros(1, 2, 8, 16, 32), target).item() > 1.0
    unknown = np.full_like(target, np.nan)
    assert torch.isfinite(hint_loss(torch.zeros(1, 2, 8, 16, 32), unknown))
