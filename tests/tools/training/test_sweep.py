"""A flat road that has moved by some way is found again by just that way."""

from __future__ import annotations

import numpy as np
import pytest

from tests.tools.training.straight_road import singles
from tools.training import sweep
from tools.world.view import MED_LENS


def features_of(road: np.ndarray, driven_m: float) -> np.ndarray:
    """Return the rows of features that see stripes across a road, after some metres of driving."""
    rows = 2.0 * sweep.STRIDE * (np.arange(44) + 20) + 0.5
    ahead = MED_LENS.focal_px * sweep.HEIGHT_M / (rows - MED_LENS.cy_px)
    stripes = np.interp(ahead + driven_m, 1.5 * np.arange(len(road)), road)
    return np.repeat(stripes[:, None], 128, axis=1)


def scores_of(older: np.ndarray, newer: np.ndarray) -> np.ndarray:
    """Return the score of each way, all bands together."""
    at, share = sweep.place_indices(), sweep.place_weights()
    places = [
        (features.ravel()[at] * share).sum(axis=0).reshape(sweep.OLDER_ROWS, sweep.COLUMNS)
        for features in (older, newer)
    ]
    products = (places[1][: sweep.ROWS] @ places[0].T).ravel()[sweep.way_indices()]
    return np.asarray(products.reshape(-1, sweep.WAYS).sum(axis=0))


@pytest.mark.parametrize("way", [0, 4, 11, 20, 28])
def test_true_way_scores_highest(way: int) -> None:
    road = np.random.default_rng(0).normal(size=200)
    driven = sweep.STEP_M * way
    scores = scores_of(features_of(road, 0.0), features_of(road, driven))
    assert abs(int(np.argmax(scores)) - way) <= 1


def test_places_lie_between_features() -> None:
    at, share = sweep.place_indices(), sweep.place_weights()
    assert at.min() >= 0
    assert at.max() < 44 * 128
    middle = slice(8, None, sweep.COLUMNS)
    np.testing.assert_allclose(share[:, middle].sum(axis=0), 1.0, atol=1e-6)
    rows = (at // 128 * share).sum(axis=0)[middle]
    # Further away is higher in the picture: 910 px and 1.22 m, places from 5.5 m on, 4 px a row.
    wanted = (47.6 + 910.0 * 1.22 / (5.5 + 0.25 * np.arange(95)) - 0.5) / 4.0 - 20.0
    np.testing.assert_allclose(rows, np.clip(wanted, 0.0, 43.0), atol=1e-4)


def test_ways_are_those_that_are_driven() -> None:
    # 20 m/s are 4 m from frame to frame; a camera twice as high sees half of it.
    found = sweep.way_of(singles(20.0, 20.0, 0.0), singles(1.22, 2.44, 1.22))
    np.testing.assert_allclose(found, [16.0, 8.0, 0.0])
    assert sweep.way_indices().max() == sweep.ROWS * sweep.OLDER_ROWS - 1


def test_places_beside_the_view_are_not_compared() -> None:
    seen = sweep.place_weights().sum(axis=0).reshape(sweep.OLDER_ROWS, sweep.COLUMNS)
    assert seen[0, 0] == 0.0
    assert seen[:, 8].all()
    assert seen[-1].all()
