"""Targets and outputs: their order, their scaling, their rounding, and figures of their errors."""

from types import SimpleNamespace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from tests.tools.training.straight_road import PLACES
from tools.example_models.outputs import POLICY_OUTPUTS, VISION_OUTPUTS
from tools.simulator.training import heads
from tools.simulator.training.figures import judge
from tools.simulator.training.heads import (
    LEAST_DEVIATION,
    PLAN,
    POLICY_HEADS,
    VISION_HEADS,
    VISION_TARGETS,
    Scaling,
    Singles,
    fold,
    measure,
    part_of,
    size_of,
)
from tools.simulator.training.networks.architecture import HEAD_GROUPS, in_eight_bits
from tools.simulator.training.samples.replay import Sample


def test_heads_have_the_order_and_widths_of_the_interface() -> None:
    assert [(head.name, head.width) for head in VISION_HEADS] == list(VISION_OUTPUTS[:-1])
    assert [(head.name, head.width) for head in POLICY_HEADS] == list(POLICY_OUTPUTS)
    grouped = [head.name for group in HEAD_GROUPS.values() for head in group]
    assert sorted(grouped) == sorted(head.name for head in VISION_HEADS)


def test_places_follow_each_other() -> None:
    places = heads.places_in_output(POLICY_HEADS)
    assert places == {"plan": slice(0, 990), "desire_state": slice(990, 998)}
    assert heads.places_in_target(POLICY_HEADS)["desire_state"] == slice(495, 503)
    assert size_of(VISION_HEADS) == 581
    assert heads.width_of(VISION_HEADS) == 1576 - 512


def test_target_keeps_values_where_the_places_say() -> None:
    truth = SimpleNamespace(plan=np.arange(495.0).reshape(33, 15), desire_state=np.eye(8)[3])
    target = heads.target_of((PLAN, heads.DESIRE_STATE), truth)
    assert target.dtype == np.float32
    assert target[heads.places_in_target(POLICY_HEADS)["plan"]].tolist() == list(range(495))
    assert target[-8:].tolist() == [0, 0, 0, 1, 0, 0, 0, 0]


def test_chances_of_lines_are_spread_over_both_columns() -> None:
    head = next(head for head in VISION_HEADS if head.name == "lane_lines_prob")
    truth = SimpleNamespace(lane_lines_prob=np.array([0.0, 1.0, 0.25, np.nan]))
    values = heads.target_of((head,), truth).reshape(4, 2)
    # The second column is the one that the daemon reads: that the line is there.
    assert_array_equal(values[:, 1], np.array([0.0, 1.0, 0.25, np.nan], np.float32))
    assert_array_equal(values[:3, 0], np.array([1.0, 0.0, 0.75], np.float32))


def test_measured_scaling_brings_targets_to_one_and_ignores_what_is_not_known() -> None:
    rng = np.random.default_rng(0)
    targets = rng.normal(7.0, 3.0, (4000, size_of(VISION_TARGETS))).astype(np.float32)
    targets[rng.random(targets.shape) < 0.3] = np.nan
    scaling = measure(VISION_TARGETS, targets)
    for head in VISION_TARGETS:
        wanted = (7.0, 3.0) if head.kind == "gaussian" else (0.0, 1.0)
        assert_allclose(scaling.mean[PLACES[head.name]], wanted[0], atol=0.4)
        assert_allclose(scaling.deviation[PLACES[head.name]], wanted[1], rtol=0.12)


def test_values_that_never_change_and_values_never_known_have_a_finite_unit() -> None:
    targets = np.full((10, PLAN.size), 4.0, np.float32)
    targets[:, 5] = np.nan
    scaling = measure((PLAN,), targets)
    assert (scaling.deviation == np.float32(LEAST_DEVIATION["plan"])).all()
    assert scaling.mean[5:7].tolist() == [0.0, 4.0]


def test_folded_layer_answers_in_units_of_its_heads() -> None:
    rng, size = np.random.default_rng(1), PLAN.size
    weight, bias = rng.normal(size=(2 * size + 8, 16)), rng.normal(size=2 * size + 8)
    scaling = Scaling(
        np.append(rng.normal(size=size), np.zeros(8)).astype(np.float32),
        np.append(rng.uniform(0.1, 90.0, size), np.ones(8)).astype(np.float32),
    )
    x, unit = rng.normal(size=16), scaling.deviation[:size]
    plain = weight @ x + bias
    folded_weight, folded_bias = fold(POLICY_HEADS, scaling, weight, bias)
    folded = folded_weight @ x + folded_bias
    assert_allclose(folded[:size], plain[:size] * unit + scaling.mean[:size], rtol=1e-4)
    # A deviation in metres is the one in units times the unit.
    deviations = slice(size, 2 * size)
    assert_allclose(np.exp(folded[deviations]), np.exp(plain[deviations]) * unit, rtol=1e-4)
    assert_allclose(folded[2 * size :], plain[2 * size :], rtol=1e-5)


def test_part_of_a_scaling_is_that_of_the_wanted_heads() -> None:
    everything = np.arange(size_of(VISION_TARGETS), dtype=np.float32)
    part = part_of(VISION_TARGETS, Scaling(everything, everything + 1), (PLAN,))
    assert part.mean[0] == size_of(VISION_TARGETS) - PLAN.size
    assert part.deviation[-1] == size_of(VISION_TARGETS)


@pytest.mark.parametrize(
    ("weight", "outputs", "scales", "wanted"),
    [
        # -63.5 lies between two: to the even one; 1.4 to 1, 2.6 to 3.
        (
            [[1.27, -0.635, 0.014, 0.0], [0.0, 12.7, -12.7, 0.26]],
            0,
            [0.01, 0.1],
            [[127, -64, 1, 0], [0, 127, -127, 3]],
        ),
        ([[1.27, 0.0], [0.5, 12.7]], 1, [0.01, 0.1], [[127, 0], [50, 127]]),
    ],
)
def test_each_output_has_a_scale_of_its_own(
    weight: list[list[float]], outputs: int, scales: list[float], wanted: list[list[int]]
) -> None:
    numbers, scale = in_eight_bits(np.array(weight, np.float32), outputs=outputs)
    assert_allclose(scale, scales, rtol=1e-6)
    assert numbers.tolist() == wanted
    assert numbers.dtype == np.int8
    assert scale.dtype == np.float32


def test_an_output_of_zeros_stays_zero() -> None:
    numbers, scale = in_eight_bits(np.zeros((2, 3), np.float32))
    assert not numbers.any()
    assert (scale > 0).all()


def test_what_is_rounded_stays_as_it_is_also_when_it_is_stretched() -> None:
    rng = np.random.default_rng(0)
    weight = rng.normal(size=(64, 32, 3, 3)).astype(np.float32)
    numbers, scale = in_eight_bits(weight)
    stretch = np.exp(rng.normal(size=64)).astype(np.float32)
    again = numbers * scale[:, None, None, None]
    found, wider = in_eight_bits(again * stretch[:, None, None, None])
    assert_array_equal(found, numbers)
    assert_allclose(wider, scale * stretch, rtol=1e-6)
    assert np.abs(weight - again).max() == pytest.approx(0.5 * scale.max(), rel=0.02)


def target(
    speed_mps: float, lead: tuple[float, float] | None = None, for_curves_mps2: float = 1.0
) -> Singles:
    """Return a moment: own speed, distance and speed of a car ahead, and what curves ask for."""
    found = np.zeros(size_of(VISION_TARGETS), np.float32)
    found[PLACES["pose"].start] = speed_mps
    found[PLACES["lead"]] = np.nan
    if lead is not None:
        found[PLACES["lead_prob"].start] = 1.0
        found[PLACES["lead"]] = np.tile([lead[0], 0.0, lead[1], 0.0], 18)
    found[PLACES["for_curves"]] = for_curves_mps2
    return found


def test_crawling_behind_a_standing_car_and_curves_ahead_have_figures_of_their_own() -> None:
    truths = [
        target(0.4, (6.0, 0.0)),
        target(15.0, (30.0, 12.0)),
        target(0.4, (6.0, 4.0)),
        target(20.0, None, -1.5),
        target(20.0, (100.0, 15.0)),
    ]
    said = np.stack(truths)
    for row, (ahead_m, lead_mps) in {0: (7.0, 4.0), 1: (28.0, 12.5), 4: (90.0, 18.0)}.items():
        said[row, PLACES["lead"]] = np.tile([ahead_m, 0.0, lead_mps, 0.0], 18)
    # Plans are 33 rows of 15; forward acceleration is the seventh value.
    said[3, PLACES["plan"]] += np.tile(np.arange(15) == 6, 33) * 0.7
    images = np.zeros((2, 12, 1, 1), np.uint8)
    found = judge(said, [Sample(images, truth, 0) for truth in truths])
    assert list(found) == ["all", "day", "queue", "curve"]
    assert found["queue"].samples == found["curve"].samples == 1
    assert found["queue"].lead_mps == pytest.approx(4.0)
    assert found["queue"].lead_m == pytest.approx(1.0)
    assert found["all"].lead_mps == pytest.approx((4.0 + 0.5 + 0.0) / 3)
    assert found["all"].lead_m == pytest.approx((1.0 + 2.0 + 0.0) / 3)
    assert found["all"].far_lead_m == pytest.approx(10.0)
    assert found["curve"].acceleration_mps2 == pytest.approx(0.7, abs=1e-6)
    assert np.isnan(found["curve"].lead_mps)
