"""Resize and Upsample, nearest neighbour. Coordinates: ONNX Resize-19 documentation."""

from __future__ import annotations

import math

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array, NodeContext, Value, as_tensor, normal_axes
from scheduler.tensor import Tensor


def upsample(ctx: NodeContext) -> Value:
    """Translate Upsample (opset 7 to 9): out index i reads floor(i / scale)."""
    x = ctx.tensor(0)
    scales = (
        ctx.attribute("scales") if ctx.opset < 9 else ctx.const(1, "scales").reshape(-1).tolist()
    )
    _only_nearest(ctx)
    sizes = [math.floor(n * s) for n, s in zip(x.shape, scales, strict=True)]
    for axis, (size, scale) in enumerate(zip(sizes, scales, strict=True)):
        index = np.floor(np.arange(size) / np.float32(scale))
        x = _pick(x, axis, index)
    return x


def resize(ctx: NodeContext) -> Value:
    """Translate Resize (opset 10 on), mode nearest, every coordinate transformation but crop.

    Raises:
        ModelError: the mode is linear or cubic, or scales and sizes depend on data.
    """
    x = ctx.tensor(0)
    _only_nearest(ctx)
    if ctx.integer("antialias", 0):
        raise ModelError("antialias=1 is not supported; export with antialias=0")
    axes = normal_axes(ctx.ints_attribute("axes") or list(range(x.ndim)), x.ndim)
    for axis, size, scale in _targets(ctx, x.shape, axes):
        if size != x.shape[axis]:
            x = _pick(x, axis, _nearest(ctx, x.shape[axis], size, scale))
    return x


def _only_nearest(ctx: NodeContext) -> None:
    mode = ctx.text("mode", "nearest")
    if mode != "nearest":
        raise ModelError(f"mode={mode} is not supported; nearest supported: mode=nearest")


def _targets(
    ctx: NodeContext, shape: tuple[int, ...], axes: list[int]
) -> list[tuple[int, int, float]]:
    """Return (axis, output size, scale) of every resized axis."""
    scales_at = 1 if ctx.opset < 11 else 2
    if ctx.opset >= 11 and ctx.has(3) and ctx.const(3, "sizes").size:
        return _from_sizes(ctx, shape, axes)
    if not ctx.has(scales_at) or ctx.const(scales_at, "scales").size != len(axes):
        raise ModelError(f"expected scales or sizes for {len(axes)} axes")
    scales = ctx.const(scales_at, "scales").reshape(-1).tolist()
    return [(a, math.floor(shape[a] * s), s) for a, s in zip(axes, scales, strict=True)]


def _from_sizes(
    ctx: NodeContext, shape: tuple[int, ...], axes: list[int]
) -> list[tuple[int, int, float]]:
    sizes = ctx.ints(3, "sizes")
    if len(sizes) != len(axes):
        raise ModelError(f"sizes {sizes} does not fit {len(axes)} axes")
    policy = ctx.text("keep_aspect_ratio_policy", "stretch")
    ratios = [size / shape[a] for size, a in zip(sizes, axes, strict=True)]
    if policy == "stretch":
        return [(a, n, r) for a, n, r in zip(axes, sizes, ratios, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(f"unknown keep_aspect_ratio_policy {policy!r}")
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [(a, math.floor(shape[a] * scale + 0.5), scale) for a in axes]


def _nearest(ctx: NodeContext, size: int, target: int, scale: float) -> Array:
    """Return, for each output position, the input position that nearest_mode picks (float)."""
    mode = (
        "asymmetric" if ctx.opset < 11 else ctx.text("coordinate_transformation_mode", "half_pixel")
    )
    rounding = "floor" if ctx.opset < 11 else ctx.text("nearest_mode", "round_prefer_floor")
    # float32 as the scales are: in float64 a scale of 0.6 misses the integers that it means to hit.
    x = _source(mode, np.arange(target, dtype=np.float32), (size, target), np.float32(scale))
    if rounding == "floor":
        return np.floor(x)
    if rounding == "ceil":
        return np.ceil(x)
    if rounding == "round_prefer_floor":
        return np.ceil(x - 0.5)
    if rounding == "round_prefer_ceil":
        return np.floor(x + 0.5)
    raise ModelError(f"unknown nearest_mode {rounding!r}")


def _source(mode: str, out: Array, sizes: tuple[int, int], scale: np.float32) -> Array:
    """Return the real-valued input coordinate of each output coordinate."""
    size, target = sizes
    x: Array
    if mode == "asymmetric":
        x = out / scale
    elif mode == "align_corners":
        x = out * (size - 1) / (target - 1) if target > 1 else out * 0.0
    elif mode == "half_pixel" or (mode == "pytorch_half_pixel" and target > 1):
        x = (out + 0.5) / scale - 0.5
    elif mode == "pytorch_half_pixel":
        x = out * 0.0
    elif mode == "half_pixel_symmetric":
        # The output size was rounded; this keeps the image centred all the same.
        adjustment = target / (scale * size)
        x = size / 2 * (1 - adjustment) + (out + 0.5) / scale - 0.5
    else:
        raise ModelError(f"coordinate_transformation_mode={mode} is not supported")
    return x


def _pick(x: Tensor, axis: int, source: Array) -> Tensor:
    """Read along one axis at known positions; whole multiples repeat instead of gathering."""
    size = x.shape[axis]
    index = np.clip(source, 0, size - 1).astype(np.int32)
    if len(index) == size and (index == np.arange(size)).all():
        return x
    repeat = len(index) // size
    if len(index) == size * repeat and (index == np.arange(size).repeat(repeat)).all():
        wide = (*x.shape[: axis + 1], repeat, *x.shape[axis + 1 :])
        return (
            x.unsqueeze(axis + 1)
            .expand(wide)
            .reshape((*x.shape[:axis], size * repeat, *x.shape[axis + 1 :]))
        )
    return x.gather(as_tensor(index), axis)
