"""Positions of lines and cars in pictures, the road's displacement, and mirrored samples."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.tools.training.straight_road import (
    HEIGHT_M,
    LINE_M,
    PLACES,
    singles,
    straight,
    with_lead,
)
from tools.simulator.training.heads import (
    PLAN,
    VISION_HEADS,
    VISION_TARGETS,
    Singles,
    mirror_desires,
    mirror_images,
    mirror_target,
    size_of,
)
from tools.simulator.training.networks import cells, sweep
from tools.simulator.training.networks.cells import (
    CELL_PX,
    COLUMNS,
    ROWS,
    lead_places,
    lead_readings,
    line_columns,
)
from tools.simulator.world.view import MED_LENS, WIDE_LENS, Lens


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
    seen = line_columns(target)[0, 0, 2].copy()
    # From the tenth place on the road falls away steeply.
    target[0, PLACES["lane_lines"]].reshape(4, 33, 2)[2, 10:, 1] += 30.0
    hidden = line_columns(target)[0, 0, 2]
    near = np.isfinite(hidden)
    assert near.sum() < np.isfinite(seen).sum()
    np.testing.assert_allclose(hidden[near], seen[near], atol=0.5)


def test_cells_count_from_the_middle() -> None:
    for scale, size in ((cells.column_scale(), COLUMNS), (cells.row_scale(), ROWS)):
        assert scale.shape == (size,)
        np.testing.assert_allclose(scale, -scale[::-1])
    assert (cells.column_scale()[16], cells.row_scale()[0]) == (0.25, -3.75)


def test_car_ahead_is_where_its_rear_stands_on_the_road() -> None:
    # Focal lengths 910 and 455, horizons at rows 47.6 and 151.8 of 256, middles at column 256.
    road = ((256.0 + 910.0 * 1.0 / 20.0) / 16.0, (47.6 + 910.0 * 1.25 / 20.0) / 16.0)
    wide = ((256.0 + 455.0 * 1.0 / 20.0) / 16.0, (151.8 + 455.0 * 1.25 / 20.0) / 16.0)
    np.testing.assert_allclose(lead_places(with_lead(20.0, 1.0))[0], [road, wide], atol=1e-4)


def test_car_beside_the_picture_or_behind_it_is_in_no_cell() -> None:
    road, wide = lead_places(with_lead(4.0, 1.5))[0]
    # 910 * 1.5 / 4 is more than half of 512 pixels; 455 * 1.5 / 4 is less.
    assert np.isnan(road).all()
    # Where it stands is below the picture: the lowest row stands for it.
    np.testing.assert_allclose(wide, [(256.0 + 455.0 * 1.5 / 4.0) / 16.0, ROWS - 0.5], atol=1e-4)
    assert np.isnan(lead_places(straight())).all()


# 5 m/s for 0.2 s are 1 m of 20, which is one time 5 %.
@pytest.mark.parametrize(
    ("ahead_m", "lead_mps", "growths"),
    [(20.0, 10.0, 0.0), (20.0, 5.0, 1.0), (40.0, 20.0, -1.0), (2.0, 0.0, 3.0)],
)
def test_car_reads_how_far_it_is_and_how_it_grows(
    ahead_m: float, lead_mps: float, growths: float
) -> None:
    found = lead_readings(with_lead(ahead_m, 0.0, lead_mps))
    np.testing.assert_allclose(found, [[np.log(ahead_m / 20.0), growths]], atol=1e-6)
    assert np.isnan(lead_readings(straight())).all()


def places_seen(road: NDArray[Any], driven_m: float) -> NDArray[Any]:
    """Return what all places of a sweep see of stripes across a road, after some metres."""
    rows = 2.0 * sweep.STRIDE * (np.arange(44) + 20) + 0.5
    ahead = MED_LENS.focal_px * sweep.HEIGHT_M / (rows - MED_LENS.cy_px)
    stripes = np.interp(ahead + driven_m, 1.5 * np.arange(len(road)), road)
    features = np.repeat(stripes, 128)[sweep.place_indices()]
    seen = (features * sweep.place_weights()).sum(axis=0)
    return np.asarray(seen.reshape(sweep.OLDER_ROWS, sweep.COLUMNS))


@pytest.mark.parametrize("displacement", [0, 4, 11, 20, 28])
def test_true_displacement_scores_highest(displacement: int) -> None:
    road = np.random.default_rng(0).normal(size=200)
    older, newer = places_seen(road, 0.0), places_seen(road, sweep.STEP_M * displacement)
    products = (newer[: sweep.ROWS] @ older.T).ravel()[sweep.displacement_indices()]
    scores = products.reshape(-1, sweep.DISPLACEMENTS).sum(axis=0)
    assert abs(int(np.argmax(scores)) - displacement) <= 1


def test_places_lie_between_features_in_the_view() -> None:
    at, share = sweep.place_indices(), sweep.place_weights()
    assert at.min() >= 0
    assert at.max() < 44 * 128
    middle = slice(8, None, sweep.COLUMNS)
    np.testing.assert_allclose(share[:, middle].sum(axis=0), 1.0, atol=1e-6)
    rows = (at // 128 * share).sum(axis=0)[middle]
    # Further away is higher in the picture: 910 px and 1.22 m, places from 5.5 m on, 4 px a row.
    wanted = (47.6 + 910.0 * 1.22 / (5.5 + 0.25 * np.arange(95)) - 0.5) / 4.0 - 20.0
    np.testing.assert_allclose(rows, np.clip(wanted, 0.0, 43.0), atol=1e-4)
    # What lies beside the view is not compared.
    seen = share.sum(axis=0).reshape(sweep.OLDER_ROWS, sweep.COLUMNS)
    assert seen[0, 0] == 0.0
    assert seen[:, 8].all()
    assert seen[-1].all()


def test_ways_are_those_that_are_driven() -> None:
    # 20 m/s are 4 m from frame to frame; a camera twice as high sees half of it.
    found = sweep.displacement_of(singles(20.0, 20.0, 0.0), singles(1.22, 2.44, 1.22))
    np.testing.assert_allclose(found, [16.0, 8.0, 0.0])
    assert sweep.displacement_indices().max() == sweep.ROWS * sweep.OLDER_ROWS - 1


def bump(centre: float) -> NDArray[np.uint8]:
    """Return the model's six channels of a picture, 512 by 256, that is bright about a column."""
    luma, chroma = np.arange(512.0) + np.zeros((256, 1)), np.arange(256.0) + np.zeros((128, 1))
    # A chroma sample lies half way between two luma columns.
    y, c = (
        (200.0 * np.exp(-(((columns - centre) / 30.0) ** 2))).astype(np.uint8)
        for columns in (luma, 2.0 * chroma + 0.5)
    )
    return np.stack([y[0::2, 0::2], y[1::2, 0::2], y[0::2, 1::2], y[1::2, 1::2], c, c])


@pytest.mark.parametrize("centre", [100.0, 255.0, 256.0, 300.5])
def test_mirrored_picture_is_turned_about_column_256(centre: float) -> None:
    found, wanted = mirror_images(bump(centre)[None])[0], bump(512.0 - centre)
    # The first column has no partner.
    difference = np.abs(found[..., 1:].astype(int) - wanted[..., 1:].astype(int))
    assert difference[:4].max() <= 1
    assert difference[4:].max() <= 2


def mirrored(name: str, values: Singles) -> Singles:
    head = next(head for head in (*VISION_HEADS, PLAN) if head.name == name)
    return mirror_target((head,), values.reshape(-1)).reshape(values.shape)


def test_mirrored_targets_change_sides() -> None:
    target = np.random.default_rng(0).normal(size=(3, size_of(VISION_TARGETS))).astype(np.float32)
    twice = mirror_target(VISION_TARGETS, mirror_target(VISION_TARGETS, target))
    np.testing.assert_array_equal(twice, target)
    # x y z of position, velocity, acceleration; roll pitch yaw and their rates.
    plan = np.tile(np.arange(1.0, 16.0, dtype=np.float32), (33, 1))
    signs = [1, -1, 1] * 3 + [-1, 1, -1] * 2
    assert (mirrored("plan", plan) == plan * signs).all()
    lines = np.zeros((4, 33, 2), np.float32)
    lines[..., 0], lines[..., 1] = np.array([-5.4, -1.8, 1.7, 5.5])[:, None], 1.2
    found = mirrored("lane_lines", lines)
    np.testing.assert_allclose(found[:, 7, 0], [-5.5, -1.7, 1.8, 5.4], rtol=1e-6)
    np.testing.assert_allclose(found[..., 1], 1.2, rtol=1e-6)
    desires = mirror_desires(np.eye(8, dtype=np.float32))
    assert desires.argmax(axis=1).tolist() == [0, 2, 1, 4, 3, 6, 5, 7]
    # Blinkers change sides, pedals do not.
    meta = np.arange(55, dtype=np.float32)
    found = mirrored("meta", meta)
    assert found[:33].tolist() == meta[:33].tolist()
    assert found[33:37].tolist() == [34, 33, 35, 36]
    assert found[53:55].tolist() == [54, 53]
