"""Operators whose result is known while importing: literals, shapes, ranges."""

from __future__ import annotations

import math

import numpy as np
from onnx import numpy_helper

from scheduler.errors import ModelError
from scheduler.onnx_import.context import Array, NodeContext, Value


def constant(ctx: NodeContext) -> Value:
    """Translate Constant in every form but strings and sparse tensors."""
    attribute = ctx.node.attribute[0].name if ctx.node.attribute else "nothing"
    value = ctx.attribute(attribute)
    if attribute == "value":
        return numpy_helper.to_array(value)
    if attribute in ("value_float", "value_floats"):
        return np.array(value, np.float32)
    if attribute in ("value_int", "value_ints"):
        return np.array(value, np.int64)
    raise ModelError(f"expected a tensor, floats or ints, found {attribute}")


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


# A range is written out on the host; no model counts this far.
MAX_RANGE = 1 << 24


def arange(ctx: NodeContext) -> Value:
    """Translate Range: its length decides a shape, so all three inputs must be known."""
    start, limit, step = (
        ctx.const(i, what).reshape(()) for i, what in enumerate(("start", "limit", "delta"))
    )
    if not step:
        raise ModelError("delta must not be 0")
    count = max(0, math.ceil((limit.item() - start.item()) / step.item()))
    if count > MAX_RANGE:
        raise ModelError(f"{count} elements; expected at most {MAX_RANGE} in a constant range")
    ramp: Array = start + np.arange(count).astype(start.dtype) * step
    return ramp.astype(start.dtype)
