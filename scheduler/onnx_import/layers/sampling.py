"""Translators of GridSample, AffineGrid, RoiAlign and NonMaxSuppression.

GridSample and RoiAlign read between the elements of an image, at positions computed at run time.
The elements read for a sample are its taps. Their positions and weights are stored once for all
channels; one gather reads all taps, and a sum follows. Sources: ONNX GridSample-16 to -22,
AffineGrid-20, RoiAlign-16, NonMaxSuppression-11.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value
from scheduler.tensor.tensor import Tensor

# The `a` of cubic convolution; GridSample has no attribute for it.
_CUBIC = -0.75


@dataclass(frozen=True, slots=True)
class AxisTaps:
    """The elements that are read along one axis for each sample."""

    index: Tensor  # int32 (..., taps), within the axis
    weight: Tensor  # float32 (..., taps)


def grid_sample(ctx: NodeContext) -> Value:
    """Translate GridSample: x (N, C, spatial...), grid (N, out..., rank) of (x, y) in [-1, 1]."""
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
        # Map -1 and 1 to the centers of the outermost elements, or to their outer edges.
        at = (wanted + 1) * ((size - 1) / 2) if aligned else ((wanted + 1) * size - 1) * 0.5
        edge = 0.0 if aligned else -0.5
        taps.append(_padded_taps(at, kinds.get(mode, "nearest"), padding, (size, edge)))
    return sampled(x, taps)


def _padded_taps(at: Tensor, kind: str, padding: str, axis: tuple[int, float]) -> AxisTaps:
    """Return the taps of coordinates `at`; `axis` is (size, coordinate of the outer edge).

    Taps outside the axis are moved inside one by one, as exporters of cubic models expect.
    """
    size, edge = axis
    if padding == "border":  # all taps beyond the limits are the edge; this also handles infinity
        at = at.clip(-3.0, size + 2.0)
    if kind == "nearest":
        places, weight = at.round().unsqueeze(-1), Tensor.ones(*at.shape, 1)
    else:
        places, weight = _neighbours(at, cubic=kind == "cubic")
    if padding == "zeros":
        return _taps_inside(places, weight, size)
    if padding == "reflection":
        places = _reflected(places, size, edge)
    return AxisTaps(_within(places, size), weight)


def _reflected(at: Tensor, size: int, edge: float) -> Tensor:
    """Return positions reflected at `edge` and at the other end until they are between them."""
    length = size - 1 - 2 * edge
    if length == 0:
        return at * 0.0
    distance = (at - edge).abs()
    rest = distance - (distance * (0.5 / length)).floor() * (2 * length)
    return (length + edge) - (rest - length).abs()


def _neighbours(at: Tensor, *, cubic: bool) -> tuple[Tensor, Tensor]:
    """Return positions (float32) and weights of the 2 or 4 elements around each coordinate."""
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
    """Return the taps for linear interpolation; taps outside the axis have weight 0."""
    places, weight = _neighbours(at, cubic=False)
    return _taps_inside(places, weight, size)


def _taps_inside(places: Tensor, weight: Tensor, size: int) -> AxisTaps:
    """Return taps with weight 0 outside the axis."""
    inside = (places >= 0) & (places <= size - 1)
    return AxisTaps(_within(places, size), inside.where(weight, 0.0))


def _within(places: Tensor, size: int) -> Tensor:
    """Return the nearest positions within an axis (int32); NaN becomes 0."""
    return (places > 0).where(places.minimum(size - 1), 0.0).cast(dt.int32)


def sampled(x: Tensor, taps: Sequence[AxisTaps]) -> Tensor:
    """Return sums (N, C, out...) of x (N, C, spatial...) weighted by taps along each axis."""
    index, weight = _joined_taps(taps, x.shape[2:])
    if all(t.index.shape[-1] == 1 for t in taps):
        read = _read_flat(x, index.squeeze(-1))
        one = weight.squeeze(-1).unsqueeze(1)
        return one.ne(0).where(read, 0) if x.dtype.is_int else (read * one).as_type(x.dtype)
    wide = x if x.dtype is dt.float64 else x.cast(dt.float32)
    total = (_read_flat(wide, index) * weight.unsqueeze(1)).sum(-1)
    return (total.round() if x.dtype.is_int else total).as_type(x.dtype)


def _joined_taps(taps: Sequence[AxisTaps], spatial: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return flat positions and weights (..., combinations) of all combinations of taps."""
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
    # Store them, because each channel would compute them again.
    return index.reshape(flat).contiguous(), weight.reshape(flat).contiguous()


def _read_flat(x: Tensor, index: Tensor) -> Tensor:
    """Return elements (N, C, out...) of x (N, C, spatial...) at int32 positions (N, out...)."""
    batch, channels = x.shape[:2]
    size = math.prod(x.shape[2:])
    rest = (1,) * (index.ndim - 1)
    first = Tensor.arange(batch * channels).reshape((batch, channels, *rest)) * size
    return x.reshape((batch * channels * size,)).gather(index.unsqueeze(1) + first, 0)


def affine_grid(ctx: NodeContext) -> Value:
    """Translate AffineGrid: theta (N, rank, rank + 1) applied to positions from -1 to 1.

    The result is (N, out..., rank), with coordinates in the order x, y, ...
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
    """Return `count` positions from -1 to 1: including both ends, or centers of equal parts."""
    if aligned:
        return np.linspace(-1.0, 1.0, count) if count > 1 else np.zeros(count)
    return (np.arange(count) * 2 + 1) / count - 1


def roi_align(ctx: NodeContext) -> Value:
    """Translate RoiAlign: x (N, C, H, W), rois (R, 4) as x1, y1, x2, y2, batch indices (R,).

    The result is (R, C, output_height, output_width).
    """
    x, rois, batch = ctx.tensor(0), ctx.tensor(1).cast(dt.float32), ctx.tensor(2)
    count = rois.shape[0]
    if x.ndim != 4 or rois.shape != (count, 4) or batch.shape != (count,):
        raise ModelError(
            f"expected (N, C, H, W), (R, 4), (R,); found {list(x.shape)}, {list(rois.shape)}, "
            f"{list(batch.shape)}"
        )
    mode = ctx.text("mode", "avg").lower()
    if mode not in ("avg", "max"):
        raise ModelError(f"mode must be avg or max, found {mode!r}")
    taps, used, samples = [], [], []
    for axis, name in enumerate(("output_height", "output_width")):
        start, length = _extent(ctx, rois, axis)
        bins = ctx.integer(name, 1)
        most, per_bin = _samples(ctx, length, bins)
        place = _places(start, length, per_bin, (bins, most))
        taps.append(_edge_taps(place, x.shape[2 + axis]))
        used.append(Tensor.arange(most).cast(dt.float32).unsqueeze(0) < per_bin)
        samples.append(per_bin)
    index, weight = _crossed(taps, x.shape[2:])
    index = index + (batch.cast(dt.int32) * math.prod(x.shape[2:])).reshape((-1, *(1,) * 5))
    flat = x.cast(dt.float32).permute((1, 0, 2, 3)).flatten(1)
    read = flat.gather(index.contiguous(), 1) * weight.contiguous()
    rows, columns = used[0].shape[-1], used[1].shape[-1]
    counted = used[0].reshape((count, 1, 1, rows, 1, 1)) & used[1].reshape(
        (count, 1, 1, 1, columns, 1)
    )
    if mode == "avg":
        divisor = (samples[0] * samples[1]).maximum(1.0).reshape((1, count, 1, 1))
        total = counted.where(read, 0.0).sum((-3, -2, -1)) / divisor
    else:
        total = counted.where(read, -np.inf).max((-3, -2, -1))
    return total.permute((1, 0, 2, 3)).as_type(x.dtype)


def _extent(ctx: NodeContext, rois: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return start and length (R, 1) of regions along the height (0) or the width (1)."""
    # Before opset 16, output_half_pixel is the only mode.
    default = "output_half_pixel" if ctx.opset < 16 else "half_pixel"
    coordinates = ctx.text("coordinate_transformation_mode", default)
    if coordinates not in ("half_pixel", "output_half_pixel"):
        raise ModelError(f"coordinate_transformation_mode={coordinates!r} is unknown")
    shifted = coordinates == "half_pixel"
    scale = ctx.number("spatial_scale", 1.0)
    first, last = 1 - axis, 3 - axis
    start, end = (rois[:, i : i + 1] * scale - (0.5 if shifted else 0.0) for i in (first, last))
    length = end - start
    # In output_half_pixel mode, a region has at least one element.
    return start, length if shifted else length.maximum(1.0)


def _samples(ctx: NodeContext, length: Tensor, bins: int) -> tuple[int, Tensor]:
    """Return the maximum samples per bin of all regions, and those of each region (R, 1)."""
    fixed = ctx.integer("sampling_ratio", 0)
    if fixed > 0:
        return fixed, Tensor.full(length.shape, float(fixed), dt.float32)
    if isinstance(ctx.value(1), Tensor):
        raise ModelError(
            "sampling_ratio=0 takes as many samples as a region is large, and the regions depend "
            "on run-time data; expected sampling_ratio of at least 1: export with 2"
        )
    per_bin = (length / bins).ceil().maximum(0.0)
    return max(1, int(per_bin.interp().max(initial=0))), per_bin


def _places(start: Tensor, length: Tensor, per_bin: Tensor, counts: tuple[int, int]) -> Tensor:
    """Return the coordinates of the samples of each bin, (R, bins, samples)."""
    bins, most = counts
    size = (length / bins).unsqueeze(-1)
    bin_starts = (
        start.unsqueeze(-1) + Tensor.arange(bins).cast(dt.float32).reshape((1, -1, 1)) * size
    )
    middle = Tensor.arange(most).cast(dt.float32).reshape((1, 1, -1)) + 0.5
    return bin_starts + middle * size / per_bin.maximum(1.0).unsqueeze(-1)


def _edge_taps(at: Tensor, size: int) -> AxisTaps:
    """Return two taps per coordinate; edges extend to -1 and `size`, weights beyond are 0."""
    inside = (at >= -1.0) & (at <= float(size))
    at = at.clip(0.0, float(size - 1))
    low = at.floor()
    part = at - low
    index = Tensor.stack([low, (low + 1.0).minimum(float(size - 1))], axis=-1)
    weight = Tensor.stack([1.0 - part, part], axis=-1)
    return AxisTaps(index.cast(dt.int32), inside.unsqueeze(-1).where(weight, 0.0))


def _crossed(taps: list[AxisTaps], spatial: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return flat positions and weights (R, bins_h, bins_w, samples_h, samples_w, 4) of taps."""
    high, wide = (t.index.shape for t in taps)
    count = high[0]
    shape = (count, high[1], wide[1], high[2], wide[2], 2)
    crossed = []
    for tap, own in zip(
        taps, ((count, high[1], 1, high[2], 1, 2), (count, 1, wide[1], 1, wide[2], 2)), strict=True
    ):
        crossed.append(
            AxisTaps(
                tap.index.reshape(own).broadcast_to(shape),
                tap.weight.reshape(own).broadcast_to(shape),
            )
        )
    return _joined_taps(crossed, spatial)


# --- NonMaxSuppression of constant boxes, computed with numpy ---------------------------------


def non_max_suppression(ctx: NodeContext) -> Value:
    """Compute NonMaxSuppression at import; the number of boxes depends on the values."""
    roles = ("boxes", "scores", "max_output_boxes_per_class", "iou_threshold", "score_threshold")
    for i, role in enumerate(roles):
        if ctx.has(i) and isinstance(ctx.value(i), Tensor):
            raise ModelError(
                f"its {role} depend on run-time data, so the number of selected boxes does too; "
                "expected a model that ends before it: cut it off and select afterwards"
            )
    boxes, scores = ctx.const(0, "boxes"), ctx.const(1, "scores")
    if boxes.ndim != 3 or boxes.shape[2] != 4 or scores.ndim != 3:
        raise ModelError(
            f"expected boxes (N, B, 4) and scores (N, C, B), found {list(boxes.shape)} and "
            f"{list(scores.shape)}"
        )
    if (scores.shape[0], scores.shape[2]) != boxes.shape[:2]:
        raise ModelError(f"scores {scores.shape} do not fit boxes {boxes.shape}")
    most = ctx.ints(2, "max_output_boxes_per_class")[0] if ctx.has(2) else 0
    limits = _Limits(
        max(0, most),
        float(ctx.const(3, "iou_threshold").item()) if ctx.has(3) else 0.0,
        float(ctx.const(4, "score_threshold").item()) if ctx.has(4) else -math.inf,
    )
    return _select(boxes, scores, limits, centred=bool(ctx.integer("center_point_box", 0)))


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits of a selection."""

    most: int  # number of boxes per class and image
    overlap: float  # intersection over union above which the box with the smaller score is dropped
    score: float  # boxes at or below this score are dropped


def _select(boxes: Array, scores: Array, limits: _Limits, *, centred: bool) -> Array:
    """Return the selected (image, class, box) as int64 (kept, 3).

    Boxes of a class are in order of falling score, and equal scores in order of index. `boxes` are
    float32 (N, B, 4): y1, x1, y2, x2 of opposite corners, or x and y of the center, width and
    height if `centred`. `scores` are float32 (N, C, B).
    """
    found = [np.zeros((0, 3), np.int64)]
    for image, corners in enumerate(_corners(boxes, centred=centred)):
        for kind, row in enumerate(scores[image]):
            kept = _kept(corners, row, limits)
            found += [np.array([[image, kind, box] for box in kept], np.int64).reshape((-1, 3))]
    return np.concatenate(found)


def _corners(boxes: Array, *, centred: bool) -> Array:
    """Return boxes (N, B, 4) as the lower ends of both axes, then the upper ends."""
    first, second = boxes[..., :2], boxes[..., 2:]
    if centred:
        half = second / np.float32(2)
        first, second = first - half, first + half
    return np.concatenate([np.minimum(first, second), np.maximum(first, second)], -1)


def _kept(corners: Array, scores: Array, limits: _Limits) -> list[int]:
    """Return the kept boxes of one class, best first; worse overlapping ones are dropped."""
    candidates = np.flatnonzero(scores > limits.score)
    candidates = candidates[np.argsort(-scores[candidates], kind="stable")]
    kept: list[int] = []
    while candidates.size and len(kept) < limits.most:
        best, candidates = int(candidates[0]), candidates[1:]
        kept.append(best)
        overlaps = _overlaps(corners[best], corners[candidates])
        candidates = candidates[~(overlaps > np.float32(limits.overlap))]
    return kept


def _overlaps(one: Array, others: Array) -> Array:
    """Return intersection over union of a box with each other box, 0 if either has no area."""
    low, high = np.maximum(one[:2], others[:, :2]), np.minimum(one[2:], others[:, 2:])
    common = np.maximum(high - low, 0).prod(-1)
    areas = (others[:, 2:] - others[:, :2]).prod(-1)
    own = (one[2:] - one[:2]).prod()
    valid = (common > 0) & (areas > 0) & (own > 0)
    return np.where(valid, common / np.where(valid, own + areas - common, 1), 0)
