"""Translators of operators whose result is known while importing: literals, shapes, ranges."""

from __future__ import annotations

import math

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array, NodeContext, Value
from scheduler.onnx_import.element_types import graph_array
from scheduler.onnx_import.files.initializers import dense_array, tensor_array


def constant(ctx: NodeContext) -> Value:
    """Translate Constant in every form but strings."""
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
    """Translate ConstantOfShape, float32 zeros by default; one element stands for all."""
    shape = ctx.ints(0, "shape")
    if any(s < 0 for s in shape):
        raise ModelError(f"shape {shape} has a negative size")
    given = ctx.array_attribute("value")
    fill: Array = np.zeros((), np.float32) if given is None else given
    return np.broadcast_to(fill.reshape(()), shape)


def shape_of(ctx: NodeContext) -> Value:
    """Translate Shape: all shapes are static; `start` and `end` since opset 15."""
    shape = ctx.value(0).shape
    return np.array(shape[ctx.integer("start", 0) : ctx.attribute("end")], np.int64)


def size_of(ctx: NodeContext) -> Value:
    """Translate Size: the number of elements."""
    return np.array(math.prod(ctx.value(0).shape), np.int64)


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
