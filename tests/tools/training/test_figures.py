"""Figures of held-out moments: computed by hand, and told apart by situation."""

from __future__ import annotations

import numpy as np
import pytest

from tools.training.figures import judge
from tools.training.heads import VISION_TARGETS, Singles, places_in_target, size_of
from tools.training.replay import Sample

PLACES = places_in_target(VISION_TARGETS)
NO_IMAGES = np.zeros((2, 12, 1, 1), np.uint8)


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
    queue, other = target(0.4, (6.0, 0.0)), target(15.0, (30.0, 12.0))
    samples = [
        Sample(NO_IMAGES, truth, 0)
        for truth in (
            queue,
            other,
            target(0.4, (6.0, 4.0)),
            target(20.0, None, -1.5),
            target(20.0, (100.0, 15.0)),
        )
    ]
    said = np.stack([sample.target for sample in samples])
    said[0, PLACES["lead"]] = np.tile([7.0, 0.0, 4.0, 0.0], 18)
    said[1, PLACES["lead"]] = np.tile([28.0, 0.0, 12.5, 0.0], 18)
    said[4, PLACES["lead"]] = np.tile([90.0, 0.0, 18.0, 0.0], 18)
    # Plans are 33 rows of 15; forward acceleration is the seventh value.
    said[3, PLACES["plan"]] += np.tile(np.arange(15) == 6, 33) * 0.7
    found = judge(said, samples)
    assert list(found) == ["all", "day", "queue", "curve"]
    assert found["queue"].samples == found["curve"].samples == 1
    assert found["queue"].lead_mps == pytest.approx(4.0)
    assert found["queue"].lead_m == pytest.approx(1.0)
    assert found["all"].lead_mps == pytest.approx((4.0 + 0.5 + 0.0) / 3)
    assert found["all"].lead_m == pytest.approx((1.0 + 2.0 + 0.0) / 3)
    assert found["all"].far_lead_m == pytest.approx(10.0)
    assert found["curve"].acceleration_mps2 == pytest.approx(0.7, abs=1e-6)
    assert np.isnan(found["curve"].lead_mps)
