"""What a model sees of the frames before: everything is kept in lists, and looked up by age.

Ages are in rows of the list relative to its end: 0 is the newest row, -1 the one before it.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Row = NDArray[np.float32]


class Past:
    """Rows since the start; what was before it is zero."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.rows: list[Row] = []

    def push(self, row: Row) -> None:
        """Append a copy of a row, reshaped."""
        self.rows.append(np.array(row, np.float32).reshape(self.shape))

    def back(self, age: int) -> Row:
        """The row of an age <= 0; zeros from before the start."""
        at = len(self.rows) - 1 + age
        return self.rows[at] if at >= 0 else np.zeros(self.shape, np.float32)

    def at(self, ages: Sequence[int]) -> NDArray[np.float32]:
        """Rows of several ages, (n, *shape)."""
        return np.stack([self.back(age) for age in ages])

    def largest(self, groups: int, of: int) -> NDArray[np.float32]:
        """Elementwise maximum of groups of consecutive rows; the newest row ends the last."""
        found = []
        for group in range(groups):
            end = -(groups - 1 - group) * of
            found.append(np.max([self.back(end - i) for i in range(of)], axis=0))
        return np.stack(found)


class Images:
    """The pictures of one camera as the models see them, (6, 128, 256) uint8 each."""

    def __init__(self) -> None:
        self.recent: list[NDArray[np.uint8]] = []

    def push(self, image: NDArray[np.uint8]) -> None:
        """Append the newest; only the last few are ever asked for."""
        self.recent = [*self.recent[-9:], image]

    def pair(self, gap: int) -> NDArray[np.uint8]:
        """(12, 128, 256): the picture of `gap` frames before, then the newest."""
        black = np.zeros((6, 128, 256), np.uint8)
        before = self.recent[-1 - gap] if len(self.recent) > gap else black
        return np.concatenate([before, self.recent[-1]])
