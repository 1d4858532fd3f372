"""From counts to times: the factor's mean and interval, computed by hand."""

import math

import pytest

from tools.adreno.cost import ANALYTIC, ANCHORS, SLOTS, factor_of


def test_a_factor_is_the_geometric_mean_with_a_prediction_interval() -> None:
    # Logarithms 0, 1, 1, 2: mean 1, standard deviation sqrt(2/3).
    factor = factor_of([1.0, math.e, math.e, math.e**2])
    width = 2.353 * math.sqrt(2 / 3) * math.sqrt(5 / 4)
    assert factor.mean == pytest.approx(math.e)
    assert math.log(factor.high) == pytest.approx(1 + width)
    assert math.log(factor.low) == pytest.approx(1 - width)
    assert factor_of([2.0, 2.0, 2.0, 2.0]).plain(1.5) == {"ms": 3.0, "low_ms": 3.0, "high_ms": 3.0}
    assert factor_of([2.0, 2.0, 2.0, 2.0]).text(6.2) == "about 12 ms (12 to 12)"
    assert factor_of([2.0, 2.0, 2.0, 2.0]).text(1.53) == "about 3.1 ms (3.1 to 3.1)"


def test_every_published_time_lies_in_the_interval_of_its_count() -> None:
    for anchor in ANCHORS:
        for factor, counted in ((SLOTS, anchor.slots_ms), (ANALYTIC, anchor.analytic_ms)):
            assert factor.low * counted < anchor.ms < factor.high * counted
