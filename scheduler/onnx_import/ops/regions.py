"""Translators of RoiAlign and NonMaxSuppression. Source: ONNX operator documentation."""

from __future__ import annotations

import math

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.sample import AxisTaps, joined_taps
from scheduler.onnx_import.ops.suppression import Limits, select
from scheduler.tensor.tensor import Tensor


def non_max_suppression(ctx: NodeContext) -> Value:
    """Fold NonMaxSuppression; how many boxes remain depends on the values."""
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
    limits = Limits(
        max(0, most),
        float(ctx.const(3, "iou_threshold").item()) if ctx.has(3) else 0.0,
        float(ctx.const(4, "score_threshold").item()) if ctx.has(4) else -math.inf,
    )
    return select(boxes, scores, limits, centred=bool(ctx.integer("center_point_box", 0)))


def roi_align(ctx: NodeContext) -> Value:
    """Translate RoiAlign: x (N, C, H, W), rois (R, 4) as x1, y1, x2, y2, batch indices (R,).

    Returns (R, C, output_height, output_width).
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
    # Before opset 16 there was no choice.
    default = "output_half_pixel" if ctx.opset < 16 else "half_pixel"
    coordinates = ctx.text("coordinate_transformation_mode", default)
    if coordinates not in ("half_pixel", "output_half_pixel"):
        raise ModelError(f"coordinate_transformation_mode={coordinates!r} is unknown")
    shifted = coordinates == "half_pixel"
    scale = ctx.number("spatial_scale", 1.0)
    first, last = 1 - axis, 3 - axis
    start, end = (rois[:, i : i + 1] * scale - (0.5 if shifted else 0.0) for i in (first, last))
    length = end - start
    # An empty region is one element there.
    return start, length if shifted else length.maximum(1.0)


def _samples(ctx: NodeContext, length: Tensor, bins: int) -> tuple[int, Tensor]:
    """Return the most samples in a bin of any region, and those of each region (R, 1)."""
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
    """Return two taps each; from -1 to size the outermost elements go on, beyond it is empty."""
    inside = (at >= -1.0) & (at <= float(size))
    at = at.clip(0.0, float(size - 1))
    low = at.floor()
    part = at - low
    index = Tensor.stack([low, (low + 1.0).minimum(float(size - 1))], axis=-1)
    weight = Tensor.stack([1.0 - part, part], axis=-1)
    return AxisTaps(index.cast(dt.int32), inside.unsqueeze(-1).where(weight, 0.0))


def _crossed(taps: list[AxisTaps], spatial: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Return positions and weights (R, bins_h, bins_w, samples_h, samples_w, 4)."""
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
    return joined_taps(crossed, spatial)
