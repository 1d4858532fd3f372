"""Translators of Resize and Upsample. Source: ONNX Resize-10 to -19.

Axes are resized one after the other. The source coordinate of each output position is computed at
import. Nearest mode reads one element per position; linear and cubic modes sum a few weighted
elements, the taps.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value, normal_axes
from scheduler.onnx_import.limits import check_shape
from scheduler.tensor.tensor import Tensor

# --- Weighted sums of taps along an axis, with positions and weights known at import ----------
#
# Each tap is one read and one product. Reads at even distances become slices, repeated reads become
# broadcasts, and other reads become gathers.

# With more taps than this, one gather reads all taps, and a reduction sums them.
FEW_TAPS = 8


@dataclass(frozen=True, slots=True)
class Filter:
    """An interpolation filter: the weight of an element by its distance from the coordinate."""

    cubic: bool  # cubic convolution (R. Keys, 1981, equation 4) instead of linear
    coefficient: float = -0.75  # the `a` of cubic convolution
    stretch: float = 1.0  # factor of the width, at least 1; above 1, weights are normalized
    inside: bool = False  # whether positions outside are ignored instead of repeating the edge

    @property
    def radius(self) -> float:
        """Distance at which the weight becomes 0."""
        return (2.0 if self.cubic else 1.0) * self.stretch

    def weights(self, distance: Array) -> Array:
        """Return the weights of elements at the given distances."""
        d = np.abs(distance) / self.stretch
        if not self.cubic:
            return np.maximum(0.0, 1.0 - d)
        a = self.coefficient
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))


@dataclass(frozen=True, slots=True)
class Taps:
    """The elements that are summed for each output position of an axis."""

    index: Array  # int32 (positions, taps), within the axis
    weight: Array  # float64 (positions, taps)


def taps_of(source: Array, size: int, kind: Filter) -> Taps:
    """Return the taps of each source coordinate (float64) on an axis of `size` elements."""
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
    """Return x (floats) with an axis replaced by weighted sums, one per output position."""
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
    if total is None:  # the region of interest is not finite
        raise ModelError("no element has a weight; expected finite scales and regions")
    return total


def read_along(x: Tensor, axis: int, index: Array) -> Tensor:
    """Return the elements of an axis at constant positions (1-D); regular ones need no gather."""
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


CROP = "tf_crop_and_resize"
_ROUNDINGS: dict[str, Callable[[Array], Array]] = {
    "floor": np.floor,
    "ceil": np.ceil,
    "round_prefer_floor": lambda x: np.ceil(x - 0.5),
    "round_prefer_ceil": lambda x: np.floor(x + 0.5),
}


@dataclass(frozen=True, slots=True)
class Side:
    """One resized axis."""

    axis: int  # index of the axis
    size: int  # size of the input
    target: int  # size of the output
    scale: float  # target / size before the target was rounded
    roi: tuple[float, float] = (0.0, 1.0)  # region as fractions of the axis; for CROP only


def upsample(ctx: NodeContext) -> Value:
    """Translate Upsample (opset 7 to 9): output position i reads input coordinate i / scale."""
    x = ctx.tensor(0)
    if ctx.opset < 9:
        scales = [float(s) for s in ctx.attribute("scales") or ()]
    else:
        scales = ctx.const(1, "scales").reshape(-1).tolist()
    if len(scales) != x.ndim:
        raise ModelError(f"expected one scale for each of {x.ndim} axes, found {scales}")
    sides = [
        Side(a, n, _scaled(n, s), s) for a, (n, s) in enumerate(zip(x.shape, scales, strict=True))
    ]
    return _resized(ctx, x, sides, "asymmetric", "floor")


def resize(ctx: NodeContext) -> Value:
    """Translate Resize (opset 10 on)."""
    x = ctx.tensor(0)
    if ctx.opset < 11:
        # Opset 10 does not define the rounding. ONNX's tests and runtimes use this rule.
        coordinates, rounding = "asymmetric", "by_scale"
    else:
        coordinates = ctx.text("coordinate_transformation_mode", "half_pixel")
        rounding = ctx.text("nearest_mode", "round_prefer_floor")
        if rounding not in _ROUNDINGS:
            expected = sorted(_ROUNDINGS)
            raise ModelError(f"nearest_mode must be one of {expected}, found {rounding!r}")
    given = ctx.ints_attribute("axes")
    axes = list(range(x.ndim)) if given is None else normal_axes(given, x.ndim)
    sides = _sides(ctx, x.shape, axes)
    if coordinates == CROP:
        sides = _cropped(ctx, sides)
    return _resized(ctx, x, sides, coordinates, rounding)


def _resized(
    ctx: NodeContext, x: Tensor, sides: list[Side], coordinates: str, rounding: str
) -> Tensor:
    mode = ctx.text("mode", "nearest")
    kinds = {"nearest": "nearest", "linear": "linear", "bilinear": "linear", "cubic": "cubic"}
    if mode not in kinds:
        raise ModelError(f"mode must be nearest, linear or cubic, found {mode!r}")
    changed = [s for s in sides if _changes(s, coordinates)]
    if any(s.size == 0 or s.target < 1 for s in changed):
        raise ModelError(
            f"sizes {[s.size for s in changed]} cannot become {[s.target for s in changed]}"
        )
    target = {s.axis: s.target for s in changed}
    shape = [target.get(axis, size) for axis, size in enumerate(x.shape)]
    check_shape(shape, x.dtype.itemsize, "its result")
    if kinds[mode] == "nearest":
        for side in changed:
            # Compute in float32 like the scales: in float64, scale 0.6 misses exact integers.
            rule = ("ceil" if side.scale < 1 else "floor") if rounding == "by_scale" else rounding
            at = _ROUNDINGS[rule](_source(coordinates, side, np.float32))
            x = read_along(x, side.axis, np.clip(at, 0, side.size - 1).astype(np.int32))
    else:
        x = _interpolated(ctx, x, changed, coordinates)
    return _extrapolated(ctx, x, changed) if coordinates == CROP else x


def _interpolated(ctx: NodeContext, x: Tensor, sides: list[Side], coordinates: str) -> Tensor:
    """Return x resized in linear or cubic mode, one axis after the other."""
    dtype = x.dtype
    wide = x if dtype in (dt.float32, dt.float64) else x.cast(dt.float32)
    antialias = bool(ctx.integer("antialias", 0))
    for i, side in enumerate(sorted(sides, key=_cheapest)):
        kind = Filter(
            cubic=ctx.text("mode", "nearest") == "cubic",
            coefficient=ctx.number("cubic_coeff_a", -0.75),
            stretch=max(1.0, 1.0 / side.scale) if antialias else 1.0,
            inside=bool(ctx.integer("exclude_outside", 0)),
        )
        taps = taps_of(_source(coordinates, side, np.float64), side.size, kind)
        # Store the sums, because the next axis reads each of them several times.
        wide = combine(wide.contiguous() if i else wide, side.axis, taps)
    return _as_integer(wide, dtype) if dtype.is_int else wide.as_type(dtype)


def _as_integer(x: Tensor, dtype: dt.DType) -> Tensor:
    """Return x rounded to an integer type, saturated because cubic weights overshoot."""
    return x.round().clip(dt.min_value(dtype), dt.max_value(dtype)).cast(dtype)


def _cheapest(side: Side) -> tuple[float, int]:
    """Return a sort key: axes that shrink most first, and inner axes while the data is small.

    Gathers along inner axes are slow, so they should read few elements.
    """
    ratio = side.target / side.size
    return ratio, side.axis if ratio < 1 else -side.axis


def _changes(side: Side, coordinates: str) -> bool:
    if coordinates == CROP and side.roi != (0.0, 1.0):
        return True
    return side.target != side.size or not math.isclose(side.scale, 1.0)


def _extrapolated(ctx: NodeContext, x: Tensor, sides: list[Side]) -> Tensor:
    """Return x with `extrapolation_value` at positions whose source is outside the input."""
    value = ctx.number("extrapolation_value", 0.0)
    for side in sides:
        at = _source(CROP, side, np.float32)
        outside = (at < 0) | (at > side.size - 1)
        if outside.any():
            shape = tuple(side.target if i == side.axis else 1 for i in range(x.ndim))
            x = Tensor.weight(outside.reshape(shape)).where(Tensor(value, x.dtype), x)
    return x


def _sides(ctx: NodeContext, shape: tuple[int, ...], axes: list[int]) -> list[Side]:
    """Return the axes with their sizes and scales, from input scales or sizes."""
    scales_at = 1 if ctx.opset < 11 else 2
    if ctx.opset >= 11 and ctx.has(3) and ctx.const(3, "sizes").size:
        return _from_sizes(ctx, shape, axes)
    if not ctx.has(scales_at) or ctx.const(scales_at, "scales").size != len(axes):
        raise ModelError(f"expected scales or sizes for {count_text(len(axes), 'axis', 'axes')}")
    scales = ctx.const(scales_at, "scales").reshape(-1)
    if not (scales > 0).all():
        raise ModelError(f"scales must be above 0, found {scales.tolist()}")
    return [
        Side(a, shape[a], _scaled(shape[a], s), s)
        for a, s in zip(axes, scales.tolist(), strict=True)
    ]


def _scaled(size: int, scale: float) -> int:
    """Return floor(size * scale) in float32 like ONNX; in float64, 23 * (40 / 23) misses 40."""
    return int(np.floor(np.float32(size) * np.float32(scale)))


def _from_sizes(ctx: NodeContext, shape: tuple[int, ...], axes: list[int]) -> list[Side]:
    sizes = ctx.ints(3, "sizes")
    if len(sizes) != len(axes) or any(s < 0 for s in sizes):
        raise ModelError(f"sizes {sizes} do not fit {count_text(len(axes), 'axis', 'axes')}")
    policy = ctx.text("keep_aspect_ratio_policy", "stretch")
    ratios = [size / max(1, shape[a]) for size, a in zip(sizes, axes, strict=True)]
    if policy == "stretch":
        return [Side(a, shape[a], n, r) for a, n, r in zip(axes, sizes, ratios, strict=True)]
    if policy not in ("not_larger", "not_smaller"):
        raise ModelError(
            f"keep_aspect_ratio_policy must be stretch, not_larger or not_smaller, found {policy!r}"
        )
    scale = min(ratios) if policy == "not_larger" else max(ratios)
    return [Side(a, shape[a], math.floor(shape[a] * scale + 0.5), scale) for a in axes]


def _cropped(ctx: NodeContext, sides: list[Side]) -> list[Side]:
    """Return the sides with the region of interest; the input has all starts, then all ends."""
    roi = [float(v) for v in ctx.const(1, "roi").reshape(-1)]
    if len(roi) != 2 * len(sides):
        raise ModelError(f"expected a roi of {2 * len(sides)} values, found {len(roi)}")
    parts = zip(roi[: len(sides)], roi[len(sides) :], strict=True)
    return [
        Side(s.axis, s.size, s.target, s.scale, part) for s, part in zip(sides, parts, strict=True)
    ]


def _source(coordinates: str, side: Side, kind: type[np.floating]) -> Array:
    """Return the input coordinate of each output position, computed in float type `kind`."""
    size, target, scale = side.size, side.target, kind(side.scale)
    out = np.arange(target, dtype=kind)
    x: Array
    if coordinates == "asymmetric":
        x = out / scale
    elif coordinates == "align_corners":
        # A single output reads the first element.
        x = out * (size - 1) / (target - 1) if target > 1 else out * 0.0
    elif coordinates == "half_pixel" or (coordinates == "pytorch_half_pixel" and target > 1):
        x = (out + 0.5) / scale - 0.5
    elif coordinates == "pytorch_half_pixel":  # a single output reads the first element
        x = out * 0.0
    elif coordinates == "tf_half_pixel_for_nn":
        x = (out + 0.5) / scale
    elif coordinates == "half_pixel_symmetric":
        # Keep the image centered although the output size was rounded.
        adjustment = target / (scale * size)
        x = size / 2 * (1 - adjustment) + (out + 0.5) / scale - 0.5
    elif coordinates == CROP:
        start, end = (kind(v) for v in side.roi)
        if target > 1:
            x = start * (size - 1) + out * (end - start) * (size - 1) / (target - 1)
        else:
            x = out + (start + end) * (size - 1) / 2
    else:
        raise ModelError(f"coordinate_transformation_mode={coordinates!r} is unknown")
    return x
