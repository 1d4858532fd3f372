"""Weights of 8 bits: whole numbers and scales, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from tools.training.rounding import in_eight_bits


def test_each_output_has_a_scale_of_its_own() -> None:
    weight = np.array([[1.27, -0.635, 0.014, 0.0], [0.0, 12.7, -12.7, 0.26]], np.float32)
    numbers, scale = in_eight_bits(weight)
    np.testing.assert_allclose(scale, [0.01, 0.1], rtol=1e-6)
    # -63.5 lies between two: to the even one; 1.4 to 1, 2.6 to 3.
    assert numbers.tolist() == [[127, -64, 1, 0], [0, 127, -127, 3]]
    assert numbers.dtype == np.int8
    assert scale.dtype == np.float32


def test_outputs_may_be_another_axis() -> None:
    weight = np.array([[1.27, 0.0], [0.5, 12.7]], np.float32)
    numbers, scale = in_eight_bits(weight, outputs=1)
    np.testing.assert_allclose(scale, [0.01, 0.1], rtol=1e-6)
    assert numbers.tolist() == [[127, 0], [50, 127]]


def test_an_output_of_zeros_stays_zero() -> None:
    numbers, scale = in_eight_bits(np.zeros((2, 3), np.float32))
    assert not numbers.any()
    assert (scale > 0).all()


def test_what_is_rounded_stays_as_it_is_also_when_it_is_stretched() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(64, 32, 3, 3)).astype(np.float32)
    numbers, scale = in_eight_bits(weight)
    stretch = np.exp(rng.normal(size=64)).astype(np.float32)
    again = (numbers * scale[:, None, None, None]) * stretch[:, None, None, None]
    found, wider = in_eight_bits(again)
    np.testing.assert_array_equal(found, numbers)
    np.testing.assert_allclose(wider, scale * stretch, rtol=1e-6)
    assert np.abs(weight - numbers * scale[:, None, None, None]).max() == pytest.approx(
        0.5 * scale.max(), rel=0.02
    )
