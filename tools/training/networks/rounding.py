"""Rounds weights to 8 bits: whole numbers from -127 to 127, and a scale for each output.

    scale = largest |weight| of the output / 127        weight = number * scale

Numbers are symmetric, so that 0 is 0. What is rounded already stays as it is, also when an output
is multiplied by something: its scale takes it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LARGEST = 127
# The scale of an output whose weights are all 0; any would do.
LEAST_SCALE = 1e-12


def in_eight_bits(
    weight: NDArray[np.floating[Any]], outputs: int = 0
) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Return the numbers of a weight and their scales.

    Numbers have the shape of the weight, scales are (outputs,) along that axis. The weight is
    finite.
    """
    others = tuple(axis for axis in range(weight.ndim) if axis != outputs)
    largest = np.abs(weight).max(axis=others, keepdims=True).astype(np.float64)
    scale = np.maximum(largest / LARGEST, LEAST_SCALE).astype(np.float32)
    numbers = np.rint(weight / scale.astype(np.float64))
    # The scale was rounded to float32, so the largest number may be a little above 127.
    return np.clip(numbers, -LARGEST, LARGEST).astype(np.int8), scale.reshape(-1)
