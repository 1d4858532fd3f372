"""Translators of constants, shapes and ranges, and of EyeLike, Trilu, OneHot and Hardmax.

Constants, shapes and ranges are computed at import.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value, normal_axis
from scheduler.onnx_import.element_types import graph_array, graph_dtype
from scheduler.onnx_import.files.tensor_data import dense_array, tensor_array
from scheduler.onnx_import.ops.activation import along_axis
from scheduler.onnx_import.ops.index import ramp
from scheduler.tensor.tensor import Tensor


def constant(ctx: NodeContext) -> Value:
    """Translate Constant in every form except strings."""
    attribute = ctx.node.attribute[0].name if ctx.node.attribute else "nothing"
    value = ctx.attribute(attribute)
    if attribute == "value":
        return graph_array(tensor_array(value, "its value"))
    if attribute in ("value_float", "value_floats"):
        return np.array(value, np.float32)
    if attribute in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    if attribute == "sparse_value":
        return graph_array(dense_array(value, "its value"))
    strings = attribute in ("value_string", "value_strings")
    more = "; strings are not supported" if strings else ""
    raise ModelError(f"expected a tensor, floats or ints, found {attribute}{more}")


def constant_of_shape(ctx: NodeContext) -> Value:
    """Translate ConstantOfShape, float32 zeros by default; only one element is stored."""
    shape = ctx.ints(0, "shape")
    if any(s < 0 for s in shape):
        raise ModelError(f"shape {shape} has a negative size")
    given = ctx.array_attribute("value")
    fill: Array = np.zeros((), np.float32) if given is None else given
    return np.broadcast_to(fill.reshape(()), shape)


def shape_of(ctx: NodeContext) -> Value:
    """Translate Shape, a constant; `start` and `end` select axes since opset 15."""
    shape = ctx.value(0).shape
    return np.array(shape[ctx.integer("start", 0) : ctx.attribute("end")], np.int64)


def size_of(ctx: NodeContext) -> Value:
    """Translate Size, the number of elements as a constant."""
    return np.array(math.prod(ctx.value(0).shape), np.int64)


# The maximum number of elements of a constant range; more means a damaged model.
MAX_RANGE = 1 << 24


def arange(ctx: NodeContext) -> Value:
    """Translate Range of constant inputs, which determine its shape; fp16 computes in float32."""
    start, limit, step = (
        ctx.const(i, what).reshape(()) for i, what in enumerate(("start", "limit", "delta"))
    )
    if not step:
        raise ModelError("delta must not be 0")
    first, last, by = start.item(), limit.item(), step.item()
    whole = start.dtype.kind in "iu"
    count = max(0, -((first - last) // by) if whole else math.ceil((last - first) / by))
    if count > MAX_RANGE:
        raise ModelError(f"{count} elements; expected at most {MAX_RANGE} in a constant range")
    wide = np.float32 if start.dtype == np.float16 else start.dtype
    ramp: Array = start.astype(wide) + np.arange(count).astype(wide) * step.astype(wide)
    return ramp.astype(start.dtype)


# --- EyeLike, Trilu, OneHot and Hardmax -------------------------------------------------------


def eye_like(ctx: NodeContext) -> Value:
    """Translate EyeLike: ones on diagonal k, zeros elsewhere, in the shape of the input."""
    x = ctx.value(0)
    if x.ndim != 2:
        raise ModelError(f"expected a matrix, found shape {tuple(x.shape)}")
    code = ctx.attribute("dtype")
    dtype = ctx.tensor(0).dtype if code is None else graph_dtype(code)
    k = _limited(ctx.integer("k", 0), x.shape[0], x.shape[1])
    return _distances(x.shape[0], x.shape[1]).eq(k).cast(dtype)


def trilu(ctx: NodeContext) -> Value:
    """Translate Trilu: matrices with zeros below (upper=1) or above diagonal k."""
    x = ctx.tensor(0)
    if x.ndim < 2:
        raise ModelError(f"expected matrices, found shape {x.shape}")
    rows, columns = x.shape[-2:]
    k = ctx.value(1) if ctx.has(1) else 0
    if isinstance(k, Tensor):
        diagonal = k.clip(-rows, columns).cast(dt.int32).reshape((1, 1))
    else:
        diagonal = Tensor(_limited(int(k if isinstance(k, int) else k.item()), rows, columns))
    distances = _distances(rows, columns)
    kept = distances >= diagonal if ctx.integer("upper", 1) else distances <= diagonal
    return kept.where(x, x.operand(x.dtype.np.type(0).item()))


def _limited(k: int, rows: int, columns: int) -> int:
    """Return diagonal k, limited to one step outside the matrix."""
    return max(-rows, min(columns, k))


def _distances(rows: int, columns: int) -> Tensor:
    """Return the matrix (rows, columns) of column - row."""
    return Tensor.arange(columns).unsqueeze(0) - Tensor.arange(rows).unsqueeze(1)


def one_hot(ctx: NodeContext) -> Value:
    """Translate OneHot; float indices are truncated.

    An index outside [-depth, depth) gives the off value only.
    """
    index, values = ctx.tensor(0), ctx.tensor(2)
    found = ctx.const(1, "depth")
    depth = int(found.item())
    if depth < 0:
        raise ModelError(f"depth must not be negative, found {depth}")
    if values.shape != (2,):
        raise ModelError(f"expected two values (off, on), found shape {values.shape}")
    axis = normal_axis(ctx.integer("axis", -1), index.ndim + 1)
    index = index.trunc() if index.dtype.is_float else index
    if index.dtype.itemsize < 4:  # the depth can be beyond the range of a narrow type
        index = index.cast(dt.float32 if index.dtype.is_float else dt.int32)
    row = index if index.dtype.is_unsigned else (index < 0).where(index + depth, index)
    chosen = row.unsqueeze(axis).eq(ramp(depth, axis, index.ndim + 1).cast(index.dtype))
    off, on = _pair(ctx.value(2), values)
    return chosen.where(on, off)


def _pair(known: Value, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return (off, on), as constants if they are known at import."""
    if isinstance(known, Tensor):
        return values[0], values[1]
    pair: Array = known
    return Tensor(pair[0].item(), values.dtype), Tensor(pair[1].item(), values.dtype)


def hardmax(ctx: NodeContext) -> Value:
    """Translate Hardmax: 1 at the first maximum, 0 elsewhere."""
    return along_axis(ctx, _first_maximum)


def _first_maximum(x: Tensor, axis: int) -> Tensor:
    if not x.size:
        return x
    best = x.argmax(axis, keepdim=True)
    return ramp(x.shape[axis], axis, x.ndim).eq(best).cast(x.dtype)
