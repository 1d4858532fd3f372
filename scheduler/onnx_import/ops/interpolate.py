"""Weighted sums of few elements along an axis, with positions and weights known while importing.

Every tap is one read at a known position and one product. Reads at even distances are slices, and
repeated ones are broadcasts; the rest are gathers from a vector of positions. Filters with many
taps (antialiasing a strong reduction) are one gather of all taps and a sum.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array
from scheduler.tensor.tensor import Tensor

# More than these are summed by a reduction instead of one product after the other.
FEW_TAPS = 8


@dataclass(frozen=True, slots=True)
class Filter:
    """The weight of an element, by its distance from the wanted coordinate.

    Attributes:
        cubic: cubic convolution (R. Keys, Cubic Convolution Interpolation, 1981, equation 4), else
            linear.
        coefficient: the `a` of cubic convolution.
        stretch: how much wider the filter is, at least 1; above 1 its weights are normalised.
        inside: positions outside the axis do not count, else they repeat the outermost element.
    """

    cubic: bool
    coefficient: float = -0.75
    stretch: float = 1.0
    inside: bool = False

    @property
    def radius(self) -> float:
        """Distance from which on elements do not count."""
        return (2.0 if self.cubic else 1.0) * self.stretch

    def weights(self, distance: Array) -> Array:
        """Return the weights of elements at these distances."""
        d = np.abs(distance) / self.stretch
        if not self.cubic:
            return np.maximum(0.0, 1.0 - d)
        a = self.coefficient
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


@dataclass(frozen=True, slots=True)
class Taps:
    """The elements summed for each position of an axis: (positions, taps) indices and weights."""

    index: Array
    weight: Array


def taps_of(source: Array, size: int, kind: Filter) -> Taps:
    """Return the elements of an axis that count at each coordinate (float64), and how much."""
    first = np.floor(source - kind.radius).astype(np.int64) + 1
    count = int(np.ceil(2 * kind.radius))
    index = first[:, None] + np.arange(count)
    weight = kind.weights(index - source[:, None])
    if kind.inside:
        kept = np.where((index >= 0) & (index < size), weight, 0.0)
        weight = np.where(kept.sum(1, keepdims=True) == 0, weight, kept)
    if kind.inside or kind.stretch > 1:
        weight = weight / weight.sum(1, keepdims=True)
    used = (weight != 0).any(0)
    return Taps(np.clip(index[:, used], 0, size - 1).astype(np.int32), weight[:, used])


def combine(x: Tensor, axis: int, taps: Taps) -> Tensor:
    """Return, for n positions of an axis, weighted sums of their taps in floats: (..., n, ...)."""
    positions, count = taps.index.shape
    weight = taps.weight.astype(x.dtype.np)
    lead, rest = (1,) * axis, (1,) * (x.ndim - axis - 1)
    if count > FEW_TAPS:
        read = x.gather(Tensor.weight(np.asarray(taps.index, order="C")), axis)
        factors = Tensor.weight(weight.reshape((*lead, positions, count, *rest)))
        return (read * factors).sum(axis + 1)
    total = None
    for k in range(count):
        read = read_along(x, axis, taps.index[:, k])
        column = np.asarray(weight[:, k], order="C")
        if (column != column[0]).any():
            term = read * Tensor.weight(column.reshape((*lead, positions, *rest)))
        else:
            term = read if column[0] == 1 else read * float(column[0])
        total = term if total is None else total + term
    if total is None:  # a region of interest that is not finite
        raise ModelError("no element has a weight; expected finite scales and regions")
    return total


def read_along(x: Tensor, axis: int, index: Array) -> Tensor:
    """Return the elements of an axis at known positions (1-D); regular ones take no gather."""
    size, count = x.shape[axis], len(index)
    steps = np.diff(index)
    lead = (slice(None),) * axis
    if count and (steps == (steps[0] if count > 1 else 1)).all() and (count == 1 or steps[0] > 0):
        step = int(steps[0]) if count > 1 else 1
        return x[(*lead, slice(int(index[0]), int(index[-1]) + 1, step))]
    repeat = count // size
    if count == size * repeat and (index == np.arange(size).repeat(repeat)).all():
        wide = (*x.shape[: axis + 1], repeat, *x.shape[axis + 1 :])
        shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
        return x.unsqueeze(axis + 1).expand(wide).reshape(shape)
    return x.gather(Tensor.weight(np.asarray(index.astype(np.int32), order="C")), axis)
