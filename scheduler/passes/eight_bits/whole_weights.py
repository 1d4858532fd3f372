"""Finds weights that are whole numbers of 8 bits times a scale for each output, and keeps them so.

    w (float32)    ->    cast(q, float32) * expand(s)        q int8, s one for each index of an axis

This must give every value of the weight back, bit by bit; the form the exporter wrote does not
matter.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, expanded, new_weight
from scheduler.ir.node import Buffer, Node, alu, make
from scheduler.ir.ops import Op

LARGEST = 127
# Values that a scale stands for, at least: else scales are more than what is saved.
LEAST_SHARED = 16

Singles = NDArray[np.float32]


def eight_bit_weight(node: Node) -> Node | None:
    """Return a float32 weight as numbers of 8 bits times scales, or None if it has no such form."""
    buffer: Buffer = node.arg
    if buffer.data is None:
        raise SchedulerError(f"{buffer}: a weight without values (an internal error)")
    data = np.asarray(buffer.data)
    for axes in _outputs(data.shape):
        found = exact_bytes(data, axes)
        if found is not None:
            numbers, scale = found
            stored = Buffer("weight", buffer.name, data.shape, dt.int8, numbers)
            whole = as_type(make(Op.BUFFER, dt.int8, (), stored), dt.float32)
            return alu(Op.MUL, whole, expanded(new_weight(scale, dt.float32), data.shape))
    return None


def _outputs(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield the axes that may have scales of their own: one, or the first two of a stack."""
    choices = [*((axis,) for axis in range(len(shape))), *([(0, 1)] if len(shape) > 2 else [])]
    for axes in choices:
        if prod(shape) >= LEAST_SHARED * prod(shape[a] for a in axes):
            yield axes


def exact_bytes(data: Singles, axes: tuple[int, ...]) -> tuple[NDArray[np.int8], Singles] | None:
    """Return numbers and scales that give the data back, if there are."""
    others = tuple(axis for axis in range(data.ndim) if axis not in axes)
    if not np.isfinite(data).all():
        return None
    largest = np.abs(data).max(axis=others, keepdims=True)
    first = np.where(largest > 0.0, largest / np.float32(LARGEST), np.float32(1.0))
    scale, settled = first, np.zeros(first.shape, bool)
    # 127 times the scale was rounded, so the scale may be the number beside the quotient.
    for guess in (
        first,
        np.nextafter(first, np.float32(0)),
        np.nextafter(first, np.float32(np.inf)),
    ):
        back = np.rint(data / guess).astype(np.float32) * guess
        good = ((back == data).all(axis=others, keepdims=True)) & ~settled
        scale = np.where(good, guess, scale)
        settled |= good
        if not settled.any():
            return None
    if not settled.all():
        return None
    return np.rint(data / scale).astype(np.int8), scale.astype(np.float32)
