"""Operators whose result is known while importing: literals, shapes, ranges."""

from __future__ import annotations

import math

import numpy as np
import onnx
from onnx import numpy_helper

from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array, NodeContext, Value


def constant(ctx: NodeContext) -> Value:
    """Translate Constant in every form but strings.

    Raises:
        ModelError: it holds strings, or a sparse tensor that is wrong or too large.
    """
    attribute = ctx.node.attribute[0].name if ctx.node.attribute else "nothing"
    value = ctx.attribute(attribute)
    if attribute == "value":
        return numpy_helper.to_array(value)
    if attribute in ("value_float", "value_floats"):
        return np.array(value, np.float32)
    if attribute in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    if attribute == "sparse_value":
        return _densified(value)
    strings = attribute in ("value_string", "value_strings")
    more = "; strings are not supported" if strings else ""
    raise ModelError(f"expected a tensor, floats or ints, found {attribute}{more}")


def _densified(sparse: onnx.SparseTensorProto) -> Array:
    """Return a sparse tensor as an array: indices are (count,), row-major, or (count, axes)."""
    shape, values = tuple(sparse.dims), numpy_helper.to_array(sparse.values)
    indices = numpy_helper.to_array(sparse.indices)
    size = math.prod(shape)
    if any(s < 0 for s in shape) or size > MAX_DENSE:
        raise ModelError(f"a sparse tensor {list(shape)}; expected at most {MAX_DENSE} elements")
    flat = indices
    if indices.ndim == 2:
        flat = np.ravel_multi_index(tuple(indices.T), shape)
    if flat.shape != values.shape or (flat.size and not 0 <= flat.min() <= flat.max() < size):
        raise ModelError(f"indices {list(indices.shape)} do not fit a sparse tensor {list(shape)}")
    dense = np.zeros(size, values.dtype)
    dense[flat] = values
    return dense.reshape(shape)


def constant_of_shape(ctx: NodeContext) -> Value:
    """Translate ConstantOfShape, float32 zeros by default; one element stands for all."""
    shape = ctx.ints(0, "shape")
    if any(s < 0 for s in shape):
        raise ModelError(f"shape {shape} has a negative size")
    tensor = ctx.attribute("value")
    fill = np.zeros((), np.float32) if tensor is None else numpy_helper.to_array(tensor)
    return np.broadcast_to(fill.reshape(()), shape)


def shape_of(ctx: NodeContext) -> Value:
    """Translate Shape: all shapes are static; `start` and `end` since opset 15."""
    shape = ctx.value(0).shape
    return np.array(shape[ctx.integer("start", 0) : ctx.attribute("end")], np.int64)


def size_of(ctx: NodeContext) -> Value:
    """Translate Size: the number of elements."""
    return np.array(math.prod(ctx.value(0).shape), np.int64)


# A sparse tensor is written out on the host; no model has a constant of so many elements.
MAX_DENSE = 1 << 26
# A range is written out on the host; no model counts this far.
MAX_RANGE = 1 << 24


def arange(ctx: NodeContext) -> Value:
    """Translate Range: its length decides a shape, so all three inputs must be known.

    Halves are computed as float32 (opset 27), so that a step is not lost in a large value.
    """
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
