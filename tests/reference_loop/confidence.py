"""Confidence of the drive, and whether hard braking is to be expected, from the head `meta`."""

from collections.abc import Sequence

import numpy as np

RED, YELLOW, GREEN = range(3)


class Confidence:
    """Every 2 s a row of five chances; row i says of its column 4 - i what it says of now."""

    def __init__(self) -> None:
        self.rows = [[0.0] * 5 for _ in range(5)]

    def step(self, frame_id: int, causes: Sequence[Sequence[float]]) -> int:
        """Grade a frame.

        `causes`: brake, gas and steer, cumulative chances at 2, 4, 6, 8, 10 s.
        """
        if frame_id % 40 == 0:
            self.rows = [*self.rows[1:], slices_of(causes)]
        score = sum(self.rows[i][4 - i] for i in range(5)) / 5
        if score < 0.01165:
            return GREEN
        return YELLOW if score < 0.06157 else RED


def slices_of(causes: Sequence[Sequence[float]]) -> list[float]:
    """The chance of each 2 s given none before; 1 where one before is certain, not 0/0."""
    chances, before = [], 1.0
    for i in range(5):
        left = 1.0
        for cause in causes:
            left *= 1.0 - float(cause[i])
        chances.append((before - left) / before if before > 1e-6 else 1.0)
        before = left
    return chances


class HardBrake:
    """True when the last five frames agree on harder than 5, and the last two on harder than 3."""

    def __init__(self) -> None:
        self.five, self.three = [0.0] * 5, [0.0] * 2

    def step(self, first_of_five: float, first_of_three: float) -> bool:
        """`first_of_...`: chance within 2 s of braking harder than 5, 3 m/s^2."""
        self.five = [*self.five[1:], first_of_five]
        self.three = [*self.three[1:], first_of_three]
        return all(
            value > float(np.float32(limit))
            for value, limit in zip(
                [*self.five, *self.three], [0.05, 0.05, 0.15, 0.15, 0.15, 0.7, 0.7], strict=True
            )
        )
