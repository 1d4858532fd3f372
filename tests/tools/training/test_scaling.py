"""Scaled targets are of about one, and a folded last layer answers in metres."""

from __future__ import annotations

import numpy as np

from tools.training.heads import PLAN, POLICY_HEADS, VISION_TARGETS, size_of
from tools.training.scaling import LEAST_DEVIATION, Scaling, fold, measure, part_of


def test_measured_scaling_brings_targets_to_one_and_ignores_what_is_not_known() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(7.0, 3.0, (4000, size_of(VISION_TARGETS))).astype(np.float32)
    targets[rng.random(targets.shape) < 0.3] = np.nan
    scaling = measure(VISION_TARGETS, targets)
    start = 0
    for head in VISION_TARGETS:
        mean = scaling.mean[start : start + head.size]
        deviation = scaling.deviation[start : start + head.size]
        start += head.size
        wanted = (7.0, 3.0) if head.kind == "gaussian" else (0.0, 1.0)
        np.testing.assert_allclose(mean, wanted[0], atol=0.4)
        np.testing.assert_allclose(deviation, wanted[1], rtol=0.12)


def test_values_that_never_change_and_values_never_known_have_a_finite_unit() -> None:
    targets = np.full((10, PLAN.size), 4.0, np.float32)
    targets[:, 5] = np.nan
    scaling = measure((PLAN,), targets)
    assert (scaling.deviation == np.float32(LEAST_DEVIATION["plan"])).all()
    assert scaling.mean[5] == 0.0
    assert scaling.mean[6] == 4.0


def test_folded_layer_answers_in_units_of_its_heads() -> None:
    rng = np.random.default_rng(1)
    width = 2 * PLAN.size + 8
    weight, bias = rng.normal(size=(width, 16)), rng.normal(size=width)
    scaling = Scaling(
        np.append(rng.normal(size=PLAN.size), np.zeros(8)).astype(np.float32),
        np.append(rng.uniform(0.1, 90.0, PLAN.size), np.ones(8)).astype(np.float32),
    )
    x = rng.normal(size=16)
    plain = weight @ x + bias
    folded_weight, folded_bias = fold(POLICY_HEADS, scaling, weight, bias)
    folded = folded_weight @ x + folded_bias
    size = PLAN.size
    np.testing.assert_allclose(
        folded[:size], plain[:size] * scaling.deviation[:size] + scaling.mean[:size], rtol=1e-4
    )
    # A deviation in metres is the one in units times the unit.
    np.testing.assert_allclose(
        np.exp(folded[size : 2 * size]),
        np.exp(plain[size : 2 * size]) * scaling.deviation[:size],
        rtol=1e-4,
    )
    np.testing.assert_allclose(folded[2 * size :], plain[2 * size :], rtol=1e-5)


def test_part_of_a_scaling_is_that_of_the_wanted_heads() -> None:
    everything = np.arange(size_of(VISION_TARGETS), dtype=np.float32)
    part = part_of(VISION_TARGETS, Scaling(everything, everything + 1), (PLAN,))
    assert part.mean[0] == size_of(VISION_TARGETS) - PLAN.size
    assert part.deviation[-1] == size_of(VISION_TARGETS)
