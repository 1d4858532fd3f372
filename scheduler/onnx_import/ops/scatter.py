"""Translators of ScatterElements, ScatterND and TensorScatter.

A graph cannot store at computed positions, so each element of the result finds its own update:

constant indices                   a gather from data and updates; none if the indices form a box
constant indices with a reduction  a gather with a table of the updates of each element
run-time indices, few              a search: each element compares itself with every index
run-time indices, many             a hand-written kernel (`scatter_store`)

A search costs elements x updates; for ScatterElements only along the axis. Run-time indices that
are out of range write nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value, as_tensor, normal_axis
from scheduler.onnx_import.ops.index import (
    element_positions,
    pick_flat,
    pick_in_batches,
    ramp,
    rows_within,
    strides_of,
    tuple_positions,
)
from scheduler.onnx_import.ops.reduce import Monoid, reduction_named
from scheduler.onnx_import.ops.scatter_store import combined, last_writers
from scheduler.tensor.custom_kernel import alternatives
from scheduler.tensor.tensor import Tensor

# --- Scattered writes with constant indices ---------------------------------------------------
#
# data[t[u]] = updates[u]      ->   gather(cat(data, updates), map)      the last of equal t wins
# data[t[u]] += updates[u]     ->   data + sum(gather(updates, table))   table: (rows, most updates)
# t is a box, in order         ->   where(inside, pad(updates), data)    no constant needed
#
# u is the number of an update, t[u] its target row, and += the node's reduction.

# The maximum number of entries of a constant table; beyond it, the graph searches at run time.
MAX_TABLE = 2**24
# A table with more entries than this has only the written rows.
LARGE_TABLE = 2**18


def scatter_known(
    data: Tensor, updates: Tensor, at: Array, depth: int, how: Monoid | None
) -> Tensor | None:
    """Return data with updates written into it, or None if the constant would be too large.

    Args:
        data: the tensor to write into.
        updates: (U, *inner), where inner are the axes of data from `depth` on.
        at: flat positions (U,) in the axes before `depth`.
        depth: number of indexed axes.
        how: operation that combines an update with the element; None replaces it.
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
        source[at] = rows + np.arange(at.size, dtype=np.int32)  # of equal positions the last wins
        return Tensor.cat([table, updates], 0).gather(as_tensor(source), 0).reshape(data.shape)
    total = _known_combined(updates, at, rows, how)
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
    data: Tensor, updates: Tensor, box: list[tuple[int, int]], how: Monoid | None
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


def _known_combined(updates: Tensor, at: Array, rows: int, how: Monoid) -> Tensor | None:
    """Return the combined updates of each row, or the neutral element for a row without any.

    Returns None if the table would be too large.
    """
    # table[row, j] is the number of the row's j-th update. Unused entries are `none`, the number of
    # the neutral element that is appended to the updates. If `few` rows are written, the table has
    # only these, and `back` maps each row to its row of the table.
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


# Maximum number of comparisons of a search: about 30 us on one core. Beyond it, a hand-written
# kernel is faster, although it takes two more launches.
MAX_VISITS = 2**18
# The maximum for SIMT devices, which make thousands of comparisons in parallel; chosen by hand.
MAX_SIMT_VISITS = 2**26


def scatter_elements(ctx: NodeContext) -> Value:
    """Translate ScatterElements and Scatter: out[index[i, j], j] = updates[i, j] for axis 0."""
    data, index, updates = ctx.tensor(0), ctx.value(1), ctx.tensor(2)
    axis = normal_axis(ctx.integer("axis", 0), data.ndim)
    how = reduction_named(ctx.text("reduction", "none"))
    shape = tuple(index.shape)
    fits = len(shape) == data.ndim and all(
        n <= s for i, (n, s) in enumerate(zip(shape, data.shape, strict=True)) if i != axis
    )
    if not fits or updates.shape != shape:
        raise ModelError(
            f"indices {shape} and updates {updates.shape} do not fit data {data.shape} on axis "
            f"{axis}"
        )
    if prod(shape) == 0:
        return data
    if not isinstance(index, Tensor):
        rows = rows_within(index, data.shape[axis])
        at = np.asarray(element_positions(rows, axis, data.shape)).reshape(-1)
        found = scatter_known(data, updates.reshape((updates.size,)), at, data.ndim, how)
        if found is not None:
            return found
    return _search_line(data, as_tensor(index), updates, axis, how)


def scatter_nd(ctx: NodeContext) -> Value:
    """Translate ScatterND: each index tuple selects the element, or slice, to write."""
    data, index, updates = ctx.tensor(0), ctx.value(1), ctx.tensor(2)
    how = reduction_named(ctx.text("reduction", "none"))
    shape = tuple(index.shape)
    depth = shape[-1]
    if depth > data.ndim or updates.shape != (*shape[:-1], *data.shape[depth:]):
        raise ModelError(
            f"indices {shape} and updates {updates.shape} do not fit data {data.shape}"
        )
    if updates.size == 0 or data.size == 0:
        return data
    inner = data.shape[depth:]
    rows = updates.reshape((prod(shape[:-1]), *inner))
    if not isinstance(index, Tensor):
        at = np.asarray(tuple_positions(index, data.shape[:depth])).reshape(-1)
        found = scatter_known(data, rows, at, depth, how)
        if found is not None:
            return found
    table = data.reshape((prod(data.shape[:depth]), *inner))
    at_run_time = _targets(as_tensor(index), data.shape[:depth])
    return _search_rows(table, at_run_time, rows, how).reshape(data.shape)


def _search_line(
    data: Tensor, index: Tensor, updates: Tensor, axis: int, how: Monoid | None
) -> Tensor:
    """Return the result of ScatterElements with run-time indices.

    Each element is compared with the indices of its line along the axis, or a hand-written kernel
    writes the updates.
    """
    size, count = data.shape[axis], index.shape[axis]
    rows = _rows_or_outside(index, size)
    match = rows.unsqueeze(axis).eq(ramp(size, axis, data.ndim + 1))
    pairs = [
        (0, 0) if i == axis else (0, s - n)
        for i, (s, n) in enumerate(zip(data.shape, index.shape, strict=True))
    ]
    lines = (prod(index.shape[:axis]), count, prod(index.shape[axis + 1 :]))
    whole = tuple(size if i == axis else n for i, n in enumerate(index.shape))
    if how is None:
        last = _stored_or_found(
            index.size * size,
            lambda: last_writers(rows.reshape(lines), size).reshape(whole),
            lambda: match.where(ramp(count, axis + 1, data.ndim + 1), -1).max(axis + 1),
        )
        at = element_positions(last.maximum(0), axis, updates.shape)
        return (last >= 0).pad(pairs).where(pick_flat(updates, at).pad(pairs), data)

    def stored() -> Tensor:
        own = data.shrink([(0, n) for n in whole]).reshape((lines[0], size, lines[2]))
        result = _combined(rows.reshape(lines), own, updates.reshape(lines), how).reshape(whole)
        if whole == data.shape:
            return result
        return Tensor.full(whole, True).pad(pairs).where(result.pad(pairs), data)

    def found() -> Tensor:
        value = match.where(updates.unsqueeze(axis), how.neutral(data.dtype))
        total = how.over(value, axis + 1)
        return how.join(data, total.pad(pairs, how.neutral(data.dtype)))

    return _stored_or_found(index.size * size, stored, found)


def _search_rows(data: Tensor, at: Tensor, updates: Tensor, how: Monoid | None) -> Tensor:
    """Return data (R, ...) with updates (U, ...) written to rows `at` (U,) at run time.

    Each row is compared with all targets, or a hand-written kernel writes the updates.
    """
    size, count = data.shape[0], at.shape[0]
    targets = at.reshape((1, count, 1))
    match = ramp(size, 0, 2).eq(at)
    inner = (1,) * (data.ndim - 1)
    if how is None:
        last = _stored_or_found(
            size * count,
            lambda: last_writers(targets, size).reshape((size,)),
            lambda: match.where(ramp(count, 1, 2), -1).max(1),
        )
        written = (last >= 0).reshape((size, *inner))
        return written.where(updates.gather(last.maximum(0), 0), data)

    def stored() -> Tensor:
        own, new = (x.reshape((1, x.shape[0], 1, *x.shape[1:])) for x in (data, updates))
        return _combined(targets, own, new, how).reshape(data.shape)

    def found() -> Tensor:
        value = match.reshape((size, count, *inner)).where(updates, how.neutral(data.dtype))
        return how.join(data, how.over(value, 1))

    return _stored_or_found(size * updates.size, stored, found)


def _combined(targets: Tensor, data: Tensor, updates: Tensor, how: Monoid) -> Tensor:
    if data.dtype is dt.float16:
        return combined(targets, data.float(), updates.float(), how).cast(data.dtype)
    return combined(targets, data, updates, how)


def _stored_or_found(
    visits: int, stored: Callable[[], Tensor], found: Callable[[], Tensor]
) -> Tensor:
    """Return `found()`, a search, or `stored()`, a kernel, if the search takes too many visits."""
    if visits <= MAX_VISITS:
        return found()
    return stored() if visits > MAX_SIMT_VISITS else alternatives(stored(), found())


def _rows_or_outside(rows: Tensor, size: int) -> Tensor:
    """Return int32 rows counted from the start; a row out of range becomes -1 or `size`."""
    whole = (rows < 0).where(rows + size, rows)
    return whole.clip(-1, size).int()


def _targets(index: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """Return the flat row of each index tuple in (..., k), or -1 if it is out of range."""
    total: Tensor | None = None
    inside: Tensor | None = None
    for i, (size, step) in enumerate(zip(sizes, strides_of(sizes), strict=True)):
        row = _rows_or_outside(index[..., i].reshape((-1,)), size)
        fits = (row >= 0) & (row < size)
        total = row * step if total is None else total + row * step
        inside = fits if inside is None else inside & fits
    if total is None or inside is None:
        return Tensor.zeros(prod(index.shape[:-1]), dtype=index.dtype).int()
    return inside.where(total, -1)


def tensor_scatter(ctx: NodeContext) -> Value:
    """Translate TensorScatter: write consecutive elements into each sample's cache.

    Each sample has its own first position. Beyond the end of the cache, linear writes are dropped,
    and circular ones continue at the start.
    """
    cache, update = ctx.tensor(0), ctx.tensor(1)
    axis = normal_axis(ctx.integer("axis", -2), cache.ndim)
    mode = ctx.text("mode", "linear")
    size, count = cache.shape[axis], update.shape[axis] if update.ndim == cache.ndim else 0
    expected = tuple(count if i == axis else s for i, s in enumerate(cache.shape))
    if axis == 0 or update.shape != expected or count > size:
        raise ModelError(f"update {update.shape} does not fit cache {cache.shape} on axis {axis}")
    if mode not in ("linear", "circular"):
        raise ModelError(f"mode must be linear or circular, found {mode!r}")
    if update.size == 0:
        return cache
    if not ctx.has(2):
        bounds = [(count if i == axis else 0, s) for i, s in enumerate(cache.shape)]
        return Tensor.cat([update, cache.shrink(bounds)], axis) if count < size else update
    first = ctx.tensor(2).reshape((-1, 1))
    if mode == "circular":
        rows = (ramp(size, 1, 2) - (first % size).int()) % size
    else:
        rows = ramp(size, 1, 2) - first.clip(-size, size).int()
    from_update = ((rows >= 0) & (rows < count)).reshape(_batched(cache, axis))
    picked = pick_in_batches(update, rows.clip(0, count - 1), 0, axis)
    return from_update.where(picked, cache)


def _batched(x: Tensor, axis: int) -> list[int]:
    return [s if i in (0, axis) else 1 for i, s in enumerate(x.shape)]
