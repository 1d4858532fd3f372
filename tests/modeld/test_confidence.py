"""Confidence and hard braking from the disengagements that the model predicts."""

import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.outputs.verdict import (
    Confidence,
    ConfidenceFilter,
    HardBrakeFilter,
    independent_disengagements,
)

NEVER = [0.0] * 5


def make_meta(
    gas: list[float] = NEVER,
    brake: list[float] = NEVER,
    steer: list[float] = NEVER,
    *,
    step: int = 6,
    meta: NDArray[np.float32] | None = None,
) -> NDArray[np.float32]:
    meta = np.zeros(55, np.float32) if meta is None else meta
    for column, values in ((1, gas), (2, brake), (3, steer)):
        meta[column : column + 5 * step : step][:5] = values
    return meta


# Where causes begin and how far apart horizons are: gas, brake, steer at 1, 2, 3; then hard
# braking by 3, 4, 5 m/s^2 at 4, 5, 6.
@pytest.mark.parametrize(("width", "step"), [(48, 7), (53, 8), (55, 6)])
def test_independent_disengagements_in_the_three_layouts_of_meta(width: int, step: int) -> None:
    # Together 1 - (1-brake)(1-gas)(1-steer) is 0.1, 0.28, 0.28, 0.64, 0.64; each slice of its own
    # is 0.1, then 0.18/0.9, 0, 0.36/0.72, 0. Everything else is certain, and must not count.
    causes = ([0.0, 0.2, 0.2, 0.2, 0.2], [0.1] * 5, [0.0, 0.0, 0.0, 0.5, 0.5])
    meta = make_meta(*causes, step=step, meta=np.ones(width, np.float32))
    np.testing.assert_allclose(independent_disengagements(meta), [0.1, 0.2, 0, 0.5, 0], atol=1e-6)
    # Hard braking looks at the first horizon only.
    meta[4::step], meta[6::step] = 1.0, 1.0
    meta[4], meta[6] = 0.71, 0.16
    hard_brake = HardBrakeFilter()
    assert [hard_brake.update(meta) for _ in range(5)] == [False] * 4 + [True]
    meta[6] = 0.15
    assert not hard_brake.update(meta)


def test_independent_disengagements_certain_before_is_certain() -> None:
    found = independent_disengagements(make_meta(brake=[1.0] * 5))
    np.testing.assert_array_equal(found, [1.0] * 5)


def test_confidence_updates_every_forty_frames() -> None:
    confidence = ConfidenceFilter()
    sure = make_meta(brake=[1.0] * 5)
    assert confidence.update(make_meta(), 1) is Confidence.GREEN
    assert confidence.update(sure, 39) is Confidence.GREEN
    # One row of ones puts 1 into the newest row, column 0: score 1/5.
    assert confidence.update(sure, 40) is Confidence.RED
    assert confidence.history[-1].tolist() == [1.0] * 5


@pytest.mark.parametrize(
    ("score", "expected"),
    [
        (0.0116, Confidence.GREEN),
        (0.0117, Confidence.YELLOW),
        (0.0615, Confidence.YELLOW),
        (0.0616, Confidence.RED),
    ],
)
def test_confidence_scores_the_anti_diagonal(score: float, expected: Confidence) -> None:
    confidence = ConfidenceFilter()
    confidence.history[...] = 0.9
    for row in range(5):
        confidence.history[row, 4 - row] = 0.0
    confidence.history[1, 3] = 5 * score
    assert confidence.update(make_meta(), 1) is expected


def test_confidence_history_moves_up() -> None:
    confidence = ConfidenceFilter()
    for step in range(5):
        # The horizon that is about the moment 10 s after the first row.
        probabilities = [0.0] * (4 - step) + [0.1] * (step + 1)
        confidence.update(make_meta(brake=probabilities), 40 * step)
    # Every row says 0.1 for its slice on the anti-diagonal: score 0.1.
    assert np.trace(confidence.history[:, ::-1]) == pytest.approx(0.5)
    assert confidence.update(make_meta(), 1) is Confidence.RED


# Probabilities of braking by 3 and by 5 m/s^2 in each frame; thresholds are strict.
@pytest.mark.parametrize(
    ("p3", "p5", "expected"),
    [
        ([0.71] * 5, [0.16] * 5, True),
        ([0.71] * 4, [0.16] * 4, False),
        ([0.7] * 5, [0.2] * 5, False),
        ([0.0, 0.0, 0.0, 0.0, 0.8], [0.2] * 5, False),  # only one of 3
        ([0.0, 0.0, 0.0, 0.8, 0.8], [0.2] * 5, True),
        # Older frames have a lower threshold.
        ([0.8] * 5, [0.06, 0.06, 0.16, 0.16, 0.16], True),
        ([0.8] * 5, [0.05, 0.2, 0.2, 0.2, 0.2], False),
        ([0.8] * 5, [0.2, 0.05, 0.2, 0.2, 0.2], False),
        ([0.8] * 5, [0.2, 0.2, 0.15, 0.2, 0.2], False),
    ],
)
def test_hard_brake_needs_five_frames_of_5_and_two_of_3(
    p3: list[float], p5: list[float], expected: bool
) -> None:
    hard_brake = HardBrakeFilter()
    found = []
    for three, five in zip(p3, p5, strict=True):
        meta = np.zeros(55, np.float32)
        meta[4], meta[6] = three, five
        found.append(hard_brake.update(meta))
    assert found == [False] * (len(p3) - 1) + [expected]
