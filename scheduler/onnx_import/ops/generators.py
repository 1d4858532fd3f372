"""Translators of EyeLike, Trilu, OneHot and Hardmax. Formulas: ONNX operator documentation."""

from __future__ import annotations

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value, normal_axis
from scheduler.onnx_import.element_types import graph_dtype
from scheduler.onnx_import.ops.activation import along_axis
from scheduler.onnx_import.ops.picks import ramp
from scheduler.tensor.tensor import Tensor


def eye_like(ctx: NodeContext) -> Value:
    """Translate EyeLike: ones on diagonal k, zeros elsewhere; only the input's shape matters."""
    x = ctx.value(0)
    if x.ndim != 2:
        raise ModelError(f"expected a matrix, found shape {tuple(x.shape)}")
    code = ctx.attribute("dtype")
    dtype = ctx.tensor(0).dtype if code is None else graph_dtype(code)
    k = _limited(ctx.integer("k", 0), x.shape[0], x.shape[1])
    return _distances(x.shape[0], x.shape[1]).eq(k).cast(dtype)


def trilu(ctx: NodeContext) -> Value:
    """Translate Trilu: what is on and above (or below) diagonal k of matrices, zeros elsewhere."""
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
    """Return a diagonal that exists, or one just outside."""
    return max(-rows, min(columns, k))


def _distances(rows: int, columns: int) -> Tensor:
    """Return column - row, (rows, columns)."""
    return Tensor.arange(columns).unsqueeze(0) - Tensor.arange(rows).unsqueeze(1)


def one_hot(ctx: NodeContext) -> Value:
    """Translate OneHot: `values` are (off, on); the new axis has `depth` elements.

    Negative indices count from the end. What is outside [-depth, depth) is off everywhere. Indices
    that are floats are rounded towards zero.
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
    if index.dtype.itemsize < 4:  # a depth may be more than it holds
        index = index.cast(dt.float32 if index.dtype.is_float else dt.int32)
    row = index if index.dtype.is_unsigned else (index < 0).where(index + depth, index)
    chosen = row.unsqueeze(axis).eq(ramp(depth, axis, index.ndim + 1).cast(index.dtype))
    off, on = _pair(ctx.value(2), values)
    return chosen.where(on, off)


def _pair(known: Value, values: Tensor) -> tuple[Tensor, Tensor]:
    """Return (off, on), as constants where they are known."""
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
