"""Scattered writes with indices known while importing.

data[t[u]] = updates[u]      ->   gather(cat(data, updates), map)      the last of equal t wins
data[t[u]] += updates[u]     ->   data + sum(gather(updates, table))   table: (rows, most updates)
t is a box, in order         ->   where(inside, pad(updates), data)    no constant at all
"""

from __future__ import annotations

from math import prod

import numpy as np

from scheduler.onnx_import.context import Array, as_tensor
from scheduler.onnx_import.ops.reducers import Reduction
from scheduler.tensor.tensor import Tensor

# Larger constants are not made: the search at run time takes over.
MAX_TABLE = 2**24
# From this many entries on a table is made for the rows that are written only.
LARGE_TABLE = 2**18


def scatter_known(
    data: Tensor, updates: Tensor, at: Array, depth: int, how: Reduction | None
) -> Tensor | None:
    """Write rows into data.

    Args:
        data: (s0, ..., sn).
        updates: (U, *inner), inner being the axes of data from `depth` on.
        at: (U,) flat positions in the first `depth` axes of data.
        depth: number of axes that positions address.
        how: combine with what is there; None replaces it.

    Returns:
        The new data, or None if the constant this takes would be too large.
    """
    sizes, inner = data.shape[:depth], data.shape[depth:]
    box = _box(at, sizes)
    if box is not None:
        return _write_box(data, updates, box, how)
    rows = prod(sizes)
    table = data.reshape((rows, *inner))
    if how is None:
        if rows > MAX_TABLE:
            return None
        source = np.arange(rows, dtype=np.int32)
        source[at] = rows + np.arange(at.size, dtype=np.int32)  # numpy: the last one stays
        return Tensor.cat([table, updates], 0).gather(as_tensor(source), 0).reshape(data.shape)
    total = _combined(updates, at, rows, how)
    return None if total is None else how.join(table, total).reshape(data.shape)


def _box(at: Array, sizes: tuple[int, ...]) -> list[tuple[int, int]] | None:
    """Return (start, stop) per axis if the positions enumerate a box in row-major order."""
    if not sizes:
        return [] if at.size == 1 else None
    ends = np.unravel_index(np.array([int(at.min()), int(at.max())]), sizes)
    bounds = [(int(end[0]), int(end[1]) + 1) for end in ends]
    if any(stop <= start for start, stop in bounds):
        return None
    shape = [stop - start for start, stop in bounds]
    if prod(shape) != at.size:
        return None
    grid = np.ravel_multi_index(
        tuple(i + start for i, (start, _) in zip(np.indices(shape), bounds, strict=True)), sizes
    )
    return bounds if np.array_equal(grid.reshape(-1), at) else None


def _write_box(
    data: Tensor, updates: Tensor, box: list[tuple[int, int]], how: Reduction | None
) -> Tensor:
    inner = data.shape[len(box) :]
    block = updates.reshape((*(stop - start for start, stop in box), *inner))
    pairs = [(start, s - stop) for (start, stop), s in zip(box, data.shape, strict=False)]
    pairs += [(0, 0)] * len(inner)
    if how is not None:
        return how.join(data, block.pad(pairs, how.neutral(data.dtype)))
    if block.shape == data.shape:
        return block
    inside = Tensor.full((1,) * data.ndim, True).broadcast_to(block.shape).pad(pairs)
    return inside.where(block.pad(pairs), data)


def _combined(updates: Tensor, at: Array, rows: int, how: Reduction) -> Tensor | None:
    """Return the reduction of the updates of each row, the neutral element where there is none."""
    written, target, counts = np.unique(at, return_inverse=True, return_counts=True)
    most = int(counts.max())
    everywhere = rows * most
    few = everywhere > LARGE_TABLE and 2 * written.size <= rows
    if (written.size * most if few else everywhere) > MAX_TABLE or rows > MAX_TABLE:
        return None
    none = updates.shape[0]
    pairs = [(0, 1)] + [(0, 0)] * (updates.ndim - 1)
    padded = updates.pad(pairs, how.neutral(updates.dtype))
    order = np.argsort(at, kind="stable")
    layer = np.arange(at.size) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((written.size if few else rows, most), none, np.int32)
    table[target.reshape(-1)[order] if few else at[order], layer] = order
    if most == 1:
        total = padded.gather(as_tensor(table[:, 0].copy()), 0)
    else:
        total = how.over(padded.gather(as_tensor(table), 0), 1)
    if not few:
        return total
    back = np.full(rows, written.size, np.int32)
    back[written] = np.arange(written.size, dtype=np.int32)
    return total.pad(pairs, how.neutral(updates.dtype)).gather(as_tensor(back), 0)
