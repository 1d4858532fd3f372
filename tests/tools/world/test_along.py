"""Patterns along the road against their definitions."""

from __future__ import annotations

import numpy as np
import pytest

from tools.world.along import Grain, Stretches, lengths_of, random_stretches


def test_dashes_are_3_of_12_metres() -> None:
    dashes = Stretches([0.0], [3.0], 12.0)
    edges = np.array([27.0, 24.0, 15.0, 12.0, 6.0, 1.5, 0.0, -9.0, -12.0])
    share = dashes.share(edges, lengths_of(edges))
    np.testing.assert_allclose(share, [1.0, 0.0, 1.0, 0.0, 1.5 / 4.5, 1.0, 0.0, 1.0], atol=1e-12)


def test_stretches_without_period_are_there_once() -> None:
    gap = Stretches([10.0, 40.0], [20.0, 45.0])
    edges = np.array([1000.0, 45.0, 40.0, 30.0, 15.0, 0.0, -50.0])
    share = gap.share(edges, lengths_of(edges))
    np.testing.assert_allclose(share, [0.0, 1.0, 0.0, 1.0 / 3.0, 1.0 / 3.0, 0.0], atol=1e-12)


@pytest.mark.parametrize("share", [0.01, 0.1, 0.6])
def test_random_stretches_cover_their_share(share: float) -> None:
    stretches = random_stretches(np.random.default_rng(1), share, (0.5, 4.0))
    edges = np.array([15000.0, 0.0])
    assert stretches.share(edges, lengths_of(edges))[0] == pytest.approx(share, rel=0.35)


def test_grain_is_a_mean_that_repeats_without_a_jump() -> None:
    grain = Grain(np.random.default_rng(1), 3)
    rows = np.array([2, 0])
    fine = np.tile(np.arange(1300.0, 1100.0, -0.05), (2, 1))
    values = grain.mean(rows, fine, lengths_of(fine))
    assert 0.3 < values.std() < 1.2
    assert np.abs(np.diff(values)).max() < 2.5
    coarse = fine[:, ::40]
    means = grain.mean(rows, coarse, lengths_of(coarse))
    whole = values[:, : 40 * means.shape[1]].reshape(2, -1, 40).mean(axis=2)
    np.testing.assert_allclose(means, whole, atol=1e-6)
    # 4096 cells of 0.3 m.
    again = fine + 4096 * 0.3
    np.testing.assert_allclose(grain.mean(rows, again, lengths_of(again)), values, atol=1e-6)
