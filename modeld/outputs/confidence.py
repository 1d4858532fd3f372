"""Follows disengagement probabilities over time: confidence and expected hard braking.

Figures: openpilot, 2023-2025.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

import numpy as np
from numpy.typing import NDArray

from modeld.constants import DISENGAGE_HORIZONS_S, META_LAYOUTS, MODEL_RUN_HZ

HORIZONS: Final = len(DISENGAGE_HORIZONS_S)
# One new row per horizon step of 2 s, so the anti-diagonal holds predictions for one moment.
CONFIDENCE_PERIOD_FRAMES: Final = 2 * MODEL_RUN_HZ
GREEN_BELOW: Final = 0.01165
YELLOW_BELOW: Final = 0.06157

# Hard braking is announced only when every recent frame agrees, the newest ones most firmly.
# As float32, like the probabilities.
HARD_BRAKE_5_THRESHOLDS: Final = np.array([0.05, 0.05, 0.15, 0.15, 0.15], np.float32).tolist()
HARD_BRAKE_3_THRESHOLDS: Final = np.array([0.7, 0.7], np.float32).tolist()

# A survival probability below this is "certainly disengaged by then".
MIN_SURVIVAL: Final = 1e-6


class Confidence(IntEnum):
    """Ordinals of ``log.ModelDataV2.ConfidenceClass``."""

    RED = 0
    YELLOW = 1
    GREEN = 2


def independent_disengagements(meta: NDArray[np.float32]) -> NDArray[np.float64]:
    """Return the chance of a disengagement inside each 2 s slice, given none before it.

    `meta` are float32 probabilities, one of ``META_LAYOUTS``. The model predicts cumulative chances
    per cause: any(t) = 1 - product of (1 - cause(t)). The slice's own chance is (any(t) - any(t-1))
    / (1 - any(t-1)). The result is (5,) float64. If a disengagement is certain before the slice,
    the quotient is undefined and 1 is returned: doubt must not look like confidence (see ADR 0021).
    """
    causes, layout = meta.astype(np.float64), META_LAYOUTS[meta.size]
    survival = (
        (1.0 - causes[layout.brake_disengage])
        * (1.0 - causes[layout.gas_disengage])
        * (1.0 - causes[layout.steer_override])
    )
    before = np.concatenate(([1.0], survival[:-1]))
    lost = before - survival
    certain = before < MIN_SURVIVAL
    return np.where(certain, 1.0, lost / np.where(certain, 1.0, before))


@dataclass(slots=True)
class ConfidenceFilter:
    """Grades how well past predictions agree that no disengagement is near.

    `history` is (5, 5), one row per 2 s, newest last; columns are horizons.
    """

    history: NDArray[np.float64] = field(default_factory=lambda: np.zeros((HORIZONS, HORIZONS)))

    def update(self, meta: NDArray[np.float32], frame_id: int) -> Confidence:
        """Return the grade for the meta probabilities of a frame."""
        if frame_id % CONFIDENCE_PERIOD_FRAMES == 0:
            self.history[:-1] = self.history[1:]
            self.history[-1] = independent_disengagements(meta)
        # Row i was made (4 - i) slices ago; its column (4 - i) is about the slice before us now.
        score = sum(float(self.history[row, -1 - row]) for row in range(HORIZONS)) / HORIZONS
        if score < GREEN_BELOW:
            return Confidence.GREEN
        return Confidence.YELLOW if score < YELLOW_BELOW else Confidence.RED


@dataclass(slots=True)
class HardBrakeFilter:
    """Recognises a lasting prediction of hard braking within 2 s.

    `braking_5` has 5 recent P(harder than 5 m/s^2), `braking_3` 2 of 3 m/s^2, newest last.
    """

    braking_5: list[float] = field(default_factory=lambda: [0.0] * len(HARD_BRAKE_5_THRESHOLDS))
    braking_3: list[float] = field(default_factory=lambda: [0.0] * len(HARD_BRAKE_3_THRESHOLDS))

    def update(self, meta: NDArray[np.float32]) -> bool:
        """Return whether to expect hard braking by the meta probabilities of a frame."""
        layout = META_LAYOUTS[meta.size]
        self.braking_5 = [*self.braking_5[1:], float(meta[layout.hard_brake_5][0])]
        self.braking_3 = [*self.braking_3[1:], float(meta[layout.hard_brake_3][0])]
        return _all_above(self.braking_5, HARD_BRAKE_5_THRESHOLDS) and _all_above(
            self.braking_3, HARD_BRAKE_3_THRESHOLDS
        )


def _all_above(values: Sequence[float], thresholds: Sequence[float]) -> bool:
    return all(value > limit for value, limit in zip(values, thresholds, strict=True))
