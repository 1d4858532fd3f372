"""Translators of operators that move or copy elements: Reshape, Transpose, Pad, Concat, ..."""

from __future__ import annotations

import math

import numpy as np

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value, normal_axes, normal_axis
from scheduler.onnx_import.limits import MAX_KNOWN_BYTES, check_shape
from scheduler.onnx_import.ops.index import pick_rows
from scheduler.tensor.tensor import Tensor

# Edge padding wider than this broadcasts the edge instead of gathering copies.
WIDE_EDGE = 2**16


def reshape(ctx: NodeContext) -> Value:
    """Translate Reshape: 0 copies the input's size (unless allowzero), -1 is inferred."""
    x, shape = ctx.tensor(0), ctx.ints(1, "shape")
    if not ctx.integer("allowzero", 0):
        if any(s == 0 and i >= x.ndim for i, s in enumerate(shape)):
            raise ModelError(f"shape {shape} copies an axis that the input {x.shape} does not have")
        shape = [x.shape[i] if s == 0 else s for i, s in enumerate(shape)]
    return x.reshape(shape)


def flatten(ctx: NodeContext) -> Value:
    """Translate Flatten to a matrix: all axes before `axis`, and all from it on."""
    x, axis = ctx.tensor(0), ctx.integer("axis", 1)
    if not -x.ndim <= axis <= x.ndim:
        raise ModelError(f"axis {axis} is out of range for a tensor of {x.ndim} axes")
    axis += x.ndim if axis < 0 else 0
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def squeeze(ctx: NodeContext) -> Value:
    """Translate Squeeze: remove the given axes, or all axes of size 1."""
    x = ctx.tensor(0)
    axes = ctx.ints_either("axes", 1, since=13)
    return x.squeeze() if axes is None else x.squeeze(normal_axes(axes, x.ndim))


def unsqueeze(ctx: NodeContext) -> Value:
    """Translate Unsqueeze; `axes` are positions in the result."""
    x = ctx.tensor(0)
    given = ctx.ints_either("axes", 1, since=13) or []
    ndim = x.ndim + len(given)
    axes = normal_axes(given, ndim)
    sizes = iter(x.shape)
    return x.reshape(tuple(1 if i in axes else next(sizes) for i in range(ndim)))


def transpose(ctx: NodeContext) -> Value:
    """Translate Transpose; the default reverses the axes."""
    x = ctx.tensor(0)
    order = ctx.ints_attribute("perm") or list(reversed(range(x.ndim)))
    if sorted(order) != list(range(x.ndim)):
        raise ModelError(f"perm {order} is not a permutation of the axes of {x.shape}")
    return x.permute(order)


def expand(ctx: NodeContext) -> Value:
    """Translate Expand: broadcast the input with a shape."""
    x, shape = ctx.tensor(0), ctx.ints(1, "shape")
    try:
        target = np.broadcast_shapes(x.shape, tuple(shape))
    except ValueError as error:
        raise ModelError(f"{x.shape} does not broadcast with shape {shape}") from error
    return x.broadcast_to(target)


def concat(ctx: NodeContext) -> Value:
    """Translate Concat, leaving out empty parts."""
    parts = [ctx.tensor(i) for i in range(ctx.count)]
    axis = normal_axis(ctx.integer("axis", 1), parts[0].ndim)
    for part in parts[1:]:
        rest = [s for i, s in enumerate(part.shape) if i != axis]
        if rest != [s for i, s in enumerate(parts[0].shape) if i != axis]:
            raise ModelError(f"shapes {[p.shape for p in parts]} differ outside axis {axis}")
    full = [part for part in parts if part.shape[axis]]
    return Tensor.cat(full, axis) if len(full) > 1 else (full or parts)[0]


def split(ctx: NodeContext) -> list[Value]:
    """Translate Split into given sizes or equal parts; since opset 18 the last can be smaller."""
    x = ctx.tensor(0)
    axis = normal_axis(ctx.integer("axis", 0), x.ndim)
    sizes = ctx.ints_either("split", 1, since=13)
    if sizes is None:
        whole = x.shape[axis]
        count = ctx.integer("num_outputs", len(ctx.node.output))
        if count != len(ctx.node.output):
            raise ModelError(
                f"num_outputs is {count}, but it has {count_text(len(ctx.node.output), 'output')}"
            )
        size = -(-whole // count)
        if ctx.opset < 18 and whole % count:
            raise ModelError(f"axis {axis} of {x.shape} does not split into {count} equal parts")
        sizes = [max(0, min(size, whole - i * size)) for i in range(count)]
    if any(n < 0 for n in sizes):
        raise ModelError(f"sizes {sizes} must not be negative")
    return list(x.split(sizes, axis))


def tile(ctx: NodeContext) -> Value:
    """Translate Tile."""
    x, repeats = ctx.tensor(0), ctx.ints(1, "repeats")
    if len(repeats) != x.ndim or any(r < 0 for r in repeats):
        raise ModelError(f"repeats {repeats} does not fit shape {x.shape}")
    return x.repeat(repeats)


def pad(ctx: NodeContext) -> Value:
    """Translate Pad in modes constant, edge, reflect and wrap; negative widths remove elements."""
    x, mode = ctx.tensor(0), ctx.text("mode", "constant")
    widths = ctx.ints_attribute("pads") if ctx.opset < 11 else ctx.ints(1, "pads")
    axes = normal_axes(ctx.ints(3, "axes"), x.ndim) if ctx.has(3) else list(range(x.ndim))
    if widths is None or len(widths) != 2 * len(axes):
        raise ModelError(f"pads {widths} does not fit {count_text(len(axes), 'axis', 'axes')}")
    pairs = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        pairs[axis] = (widths[i], widths[len(axes) + i])
    padded = [max(0, size + sum(pair)) for size, pair in zip(x.shape, pairs, strict=True)]
    check_shape(padded, x.dtype.itemsize, "its result")
    if mode == "constant":
        return _pad_constant(ctx, x, pairs)
    if mode not in ("edge", "reflect", "wrap"):
        raise ModelError(f"mode must be constant, edge, reflect or wrap, found {mode!r}")
    for axis, (before, after) in enumerate(pairs):
        if (before, after) != (0, 0):
            x = _pad_copied(x, axis, (before, after), mode)
    return x


def _pad_constant(ctx: NodeContext, x: Tensor, pairs: list[tuple[int, int]]) -> Tensor:
    if ctx.opset < 11:
        return x.pad(pairs, ctx.number("value", 0.0))
    if not ctx.has(2):
        return x.pad(pairs)
    fill = ctx.value(2)
    if not isinstance(fill, Tensor):
        return x.pad(pairs, fill.reshape(()).item())
    if all(n <= 0 for pair in pairs for n in pair):
        return x.pad(pairs)
    inside = Tensor.full(x.shape, True).pad(pairs)
    return inside.where(x.pad(pairs), fill.reshape((1,) * x.ndim).cast(x.dtype))


def _pad_copied(x: Tensor, axis: int, widths: tuple[int, int], mode: str) -> Tensor:
    """Return x with one axis padded by copies: a gather, or a broadcast for wide edges."""
    index = np.arange(x.shape[axis])
    if not len(index):
        raise ModelError(f"axis {axis} of {x.shape} is empty: there is nothing to copy")
    cut = index[max(0, -widths[0]) : len(index) - max(0, -widths[1])]
    grow = (max(0, widths[0]), max(0, widths[1]))
    if mode == "edge" and len(cut) and max(grow) > WIDE_EDGE:
        inner = x[(*(slice(None),) * axis, slice(int(cut[0]), int(cut[-1]) + 1))]
        return _with_wide_edges(inner, axis, grow)
    check_shape((len(cut) + sum(grow),), 8, "the positions it copies", MAX_KNOWN_BYTES)
    padded = np.pad(cut, grow, mode=mode)  # type: ignore[call-overload] # one of three literals
    return pick_rows(x, padded, axis)


def _with_wide_edges(x: Tensor, axis: int, widths: tuple[int, int]) -> Tensor:
    edges = []
    for at, count in zip((0, x.shape[axis] - 1), widths, strict=True):
        end = x[(*(slice(None),) * axis, slice(at, at + 1))]
        edges.append(end.expand(tuple(count if i == axis else n for i, n in enumerate(x.shape))))
    return Tensor.cat([part for part in (edges[0], x, edges[1]) if part.size], axis)


def depth_to_space(ctx: NodeContext) -> Value:
    """Translate DepthToSpace: channels become blocks of b x b pixels, in DCR or CRD order."""
    x, b = ctx.tensor(0), int(ctx.attribute("blocksize"))
    n, c, h, w = x.shape
    if c % (b * b):
        raise ModelError(f"blocksize {b} squared must divide the {c} channels")
    if ctx.text("mode", "DCR") == "DCR":
        blocks = x.reshape((n, b, b, c // (b * b), h, w)).permute(0, 3, 4, 1, 5, 2)
    else:
        blocks = x.reshape((n, c // (b * b), b, b, h, w)).permute(0, 1, 4, 2, 5, 3)
    return blocks.reshape((n, c // (b * b), h * b, w * b))


def space_to_depth(ctx: NodeContext) -> Value:
    """Translate SpaceToDepth: blocks of b x b pixels become channels, in DCR or CRD order."""
    x, b = ctx.tensor(0), int(ctx.attribute("blocksize"))
    n, c, h, w = x.shape
    if h % b or w % b:
        raise ModelError(f"blocksize {b} must divide the image {h}x{w}")
    blocks = x.reshape((n, c, h // b, b, w // b, b))
    order = (0, 3, 5, 1, 2, 4) if ctx.text("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    blocks = blocks.permute(order)
    return blocks.reshape((n, c * b * b, h // b, w // b))
