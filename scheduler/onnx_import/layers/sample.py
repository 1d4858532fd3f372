"""Translators of GridSample and AffineGrid, which read between elements at run-time positions.

Positions and weights of the taps are stored once for all channels; one gather reads all taps, and a
sum follows. Sources: ONNX GridSample-16 to -22, AffineGrid-20.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor

# The `a` of cubic convolution; the operator has no attribute for it.
_CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class AxisTaps:
    """The elements that are read along one axis for each sample."""

    index: Tensor  # int32 (..., taps), within the axis
    weight: Tensor  # float32 (..., taps)


def grid_sample(ctx: NodeContext) -> Value:
    """Translate GridSample: x (N, C, spatial...), grid (N, out..., rank) from -1 to 1, x first."""
    x, grid = ctx.tensor(0), ctx.tensor(1).cast(dt.float32)
    rank = x.ndim - 2
    if rank < 1 or grid.ndim != x.ndim or grid.shape[-1] != rank or grid.shape[0] != x.shape[0]:
        raise ModelError(f"grid {list(grid.shape)} does not fit an input {list(x.shape)}")
    mode, padding = ctx.text("mode", "linear"), ctx.text("padding_mode", "zeros")
    kinds = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic"}
    if mode != "nearest" and mode not in kinds:
        raise ModelError(f"mode must be linear, nearest or cubic, found {mode!r}")
    if padding not in ("zeros", "border", "reflection"):
        raise ModelError(f"padding_mode must be zeros, border or reflection, found {padding!r}")
    aligned = bool(ctx.integer("align_corners", 0))
    taps = []
    for i, size in enumerate(x.shape[2:]):
        wanted = grid[(..., rank - 1 - i)]
        # From -1 .. 1 to the middle of the outermost elements, or to their outer edges.
        at = (wanted + 1) * ((size - 1) / 2) if aligned else ((wanted + 1) * size - 1) * 0.5
        edge = 0.0 if aligned else -0.5
        taps.append(_padded_taps(at, kinds.get(mode, "nearest"), padding, (size, edge)))
    return sampled(x, taps)


def _padded_taps(at: Tensor, kind: str, padding: str, axis: tuple[int, float]) -> AxisTaps:
    """Return taps of coordinates; those outside are moved, as exporters of cubic ones mean."""
    size, edge = axis
    if padding == "border":  # farther out all taps are the same element; infinity has no fraction
        at = at.clip(-3.0, size + 2.0)
    if kind == "nearest":
        places, weight = at.round().unsqueeze(-1), Tensor.ones(*at.shape, 1)
    else:
        places, weight = _neighbours(at, cubic=kind == "cubic")
    if padding == "zeros":
        return taps_inside(places, weight, size)
    if padding == "reflection":
        places = _reflected(places, size, edge)
    return AxisTaps(_within(places, size), weight)


def _reflected(at: Tensor, size: int, edge: float) -> Tensor:
    """Mirror positions at `edge` and at the other end until they lie between."""
    length = size - 1 - 2 * edge
    if length == 0:
        return at * 0.0
    distance = (at - edge).abs()
    rest = distance - (distance * (0.5 / length)).floor() * (2 * length)
    return (length + edge) - (rest - length).abs()


def _neighbours(at: Tensor, *, cubic: bool) -> tuple[Tensor, Tensor]:
    """Return places (float32) and weights of the 2 or 4 elements around coordinates."""
    offsets = np.arange(-1, 3) if cubic else np.arange(2)
    base = at.floor().unsqueeze(-1)
    part = at.unsqueeze(-1) - base
    far = (part - Tensor.weight(offsets.astype(np.float32))).abs()
    if not cubic:
        return base + Tensor.weight(offsets.astype(np.float32)), 1.0 - far
    a = _CUBIC
    near = ((a + 2) * far - (a + 3)) * far * far + 1
    outer = ((a * far - 5 * a) * far + 8 * a) * far - 4 * a
    return base + Tensor.weight(offsets.astype(np.float32)), (far <= 1).where(near, outer)


def linear_taps(at: Tensor, size: int) -> AxisTaps:
    """Return the two elements around coordinates; those outside the axis weigh nothing."""
    places, weight = _neighbours(at, cubic=False)
    return taps_inside(places, weight, size)


def taps_inside(places: Tensor, weight: Tensor, size: int) -> AxisTaps:
    """Return taps of which those outside the axis weigh nothing."""
    inside = (places >= 0) & (places <= size - 1)
    return AxisTaps(_within(places, size), inside.where(weight, 0.0))


def _within(places: Tensor, size: int) -> Tensor:
    """Return the nearest elements of an axis (int32); of NaN the first one."""
    return (places > 0).where(places.minimum(size - 1), 0.0).cast(dt.int32)


def sampled(x: Tensor, taps: Sequence[AxisTaps]) -> Tensor:
    """Return sums (N, C, out...) of elements of x (N, C, spatial...), weighted by taps per axis."""
    index, weight = joined_taps(taps, x.shape[2:])
    if all(t.index.shape[-1] == 1 for t in taps):
        read = read_flat(x, index.squeeze(-1))
        one = weight.squeeze(-1).unsqueeze(1)
        return one.ne(0).where(read, 0) if x.dtype.is_int else (read * one).as_type(x.dtype)
    wide = x if x.dtype is dt.float64 else x.cast(dt.float32)
    total = (read_flat(wide, index) * weight.unsqueeze(1)).sum(-1)
    return (total.round() if x.dtype.is_int else total).as_type(x.dtype)


def joined_taps(taps: Sequence[AxisTaps], spatial: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return flat positions and weights (..., product of counts) of all combinations of taps."""
    rank = len(taps)
    lead = taps[0].index.ndim - 1
    counts = [t.index.shape[-1] for t in taps]
    index: Tensor | None = None
    weight: Tensor | None = None
    for i, tap in enumerate(taps):
        shape = (*tap.index.shape[:lead], *(counts[i] if j == i else 1 for j in range(rank)))
        place, factor = tap.index.reshape(shape), tap.weight.reshape(shape)
        index = place if index is None else index * spatial[i] + place
        weight = factor if weight is None else weight * factor
    assert index is not None
    assert weight is not None
    flat = (*index.shape[:lead], math.prod(counts))
    # Computed once here, else for each channel.
    return index.reshape(flat).contiguous(), weight.reshape(flat).contiguous()


def read_flat(x: Tensor, index: Tensor) -> Tensor:
    """Return elements (N, C, out...) of x (N, C, spatial...) at positions, int32 (N, out...)."""
    batch, channels = x.shape[:2]
    size = math.prod(x.shape[2:])
    rest = (1,) * (index.ndim - 1)
    first = Tensor.arange(batch * channels).reshape((batch, channels, *rest)) * size
    return x.reshape((batch * channels * size,)).gather(index.unsqueeze(1) + first, 0)


def affine_grid(ctx: NodeContext) -> Value:
    """Translate AffineGrid: theta (N, rank, rank + 1) applied to positions from -1 to 1.

    Returns (N, out..., rank), x first.
    """
    theta = ctx.tensor(0)
    size = ctx.ints(1, "size")
    rank = len(size) - 2
    if rank not in (2, 3) or theta.shape != (size[0], rank, rank + 1):
        raise ModelError(f"theta {list(theta.shape)} does not fit a grid for {size}")
    aligned = bool(ctx.integer("align_corners", 0))
    spread = (size[0], *(1,) * rank, rank)
    total = theta[:, :, rank].reshape(spread)
    for i in range(rank):
        axis = rank - 1 - i
        shape = [1] * (rank + 2)
        shape[1 + axis] = size[2 + axis]
        steps = _steps(size[2 + axis], aligned=aligned).astype(theta.dtype.np).reshape(shape)
        total = total + theta[:, :, i].reshape(spread) * Tensor.weight(steps)
    return total.broadcast_to((size[0], *size[2:], rank))


def _steps(count: int, *, aligned: bool) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """Return positions from -1 to 1: at both ends, or in the middle of equal parts."""
    if aligned:
        return np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(count)
    return (np.arange(count) * 2 + 1) / count - 1
