from __future__ import annotations

import math

import numpy as np

from tools.world.curves import (
    arctangent,
    arctangent_of,
    ease,
    ease_bend,
    ease_slope,
    sin_cos,
    sine_cosine,
)


def test_one_angle_has_the_bits_of_many() -> None:
    angles = np.random.default_rng(1).uniform(-400.0, 400.0, 2000)
    sines, cosines = sin_cos(angles)
    pairs = [sine_cosine(angle) for angle in angles.tolist()]
    assert pairs == list(zip(sines.tolist(), cosines.tolist(), strict=True))
    assert abs(pairs[0][0] - math.sin(angles[0])) < 1e-13


def test_one_slope_has_the_bits_of_many() -> None:
    slopes = np.linspace(-0.25, 0.25, 101)
    assert [arctangent_of(slope) for slope in slopes.tolist()] == arctangent(slopes).tolist()
    assert abs(arctangent_of(0.2) - math.atan(0.2)) < 1e-12


def test_derivatives_of_ease_are_those_of_differences() -> None:
    t = np.linspace(-0.2, 1.2, 1401)
    step = float(t[1] - t[0])
    np.testing.assert_allclose(np.gradient(ease(t), step), ease_slope(t), atol=1e-4)
    inner = slice(205, 1195)
    np.testing.assert_allclose(
        np.gradient(ease_slope(t), step)[inner], ease_bend(t)[inner], atol=1e-3
    )
