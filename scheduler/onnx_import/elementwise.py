"""Elementwise arithmetic, comparison and logic. Formulas: ONNX operator documentation."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import onnx

from scheduler import dtype as dt
from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor import Tensor

Translator = Callable[[NodeContext], Value]


def unary(function: Callable[[Tensor], Tensor]) -> Translator:
    """Return the translator of an op that is one Tensor method."""
    return lambda ctx: function(ctx.tensor(0))


def binary(function: Callable[[Any, Any], Any]) -> Translator:
    """Return the translator of an op that is one broadcasting Tensor operator."""

    def translate(ctx: NodeContext) -> Value:
        result: Tensor = function(ctx.tensor(0), ctx.tensor(1))
        return result

    return translate


def variadic(function: Callable[[Any, Any], Any]) -> Translator:
    """Return the translator of an op that combines one or more inputs from left to right."""

    def translate(ctx: NodeContext) -> Value:
        result: Tensor = reduce(function, (ctx.tensor(i) for i in range(ctx.count)))
        return result

    return translate


def maximum(a: Tensor, b: Tensor) -> Tensor:
    """Return the larger elements."""
    return a.maximum(b)


def minimum(a: Tensor, b: Tensor) -> Tensor:
    """Return the smaller elements."""
    return a.minimum(b)


def equal(a: Tensor, b: Tensor) -> Tensor:
    """Return where elements are equal."""
    return a.eq(b)


def logical_not(x: Tensor) -> Tensor:
    """Return the negation of a bool tensor."""
    return x.logical_not()


def mean(ctx: NodeContext) -> Value:
    """Translate Mean: the average of all inputs."""
    total: Tensor = reduce(operator.add, (ctx.tensor(i) for i in range(ctx.count)))
    return total * (1.0 / ctx.count)


def divide(ctx: NodeContext) -> Value:
    """Translate Div: integers are divided towards zero, as in C."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    return a / b if a.dtype.is_float else a.trunc_div(b)


def modulo(ctx: NodeContext) -> Value:
    """Translate Mod: sign of the divisor, or of the dividend with fmod=1."""
    a, b = ctx.tensor(0), ctx.tensor(1)
    if not ctx.integer("fmod", 0):
        if a.dtype.is_float:
            raise ModelError("fmod=0 needs integers; export fmod=1 for floating-point operands")
        return a % b
    return a - (a / b).trunc() * b if a.dtype.is_float else a.trunc_mod(b)


def power(ctx: NodeContext) -> Value:
    """Translate Pow; the result has the type of the base, whatever the exponent's is (opset 12)."""
    base = ctx.tensor(0)
    exponent = ctx.value(1)
    if not isinstance(exponent, Tensor) and exponent.size == 1 and base.dtype.is_float:
        # A scalar exponent lets squares and roots be what they are; its shape may still broadcast.
        result = base ** float(exponent.reshape(()))
        return result.broadcast_to(np.broadcast_shapes(base.shape, exponent.shape))
    if not base.dtype.is_float:
        return _integer_power(base, exponent)
    return base ** ctx.tensor(1).cast(base.dtype)


def _integer_power(base: Tensor, exponent: Value) -> Tensor:
    if isinstance(exponent, Tensor) or exponent.size != 1 or int(exponent.reshape(())) < 0:
        raise ModelError("an integer base needs a constant exponent of 0 or more")
    result = base ** int(exponent.reshape(()))
    return result.broadcast_to(np.broadcast_shapes(base.shape, exponent.shape))


def where(ctx: NodeContext) -> Value:
    """Translate Where."""
    return ctx.tensor(0).where(ctx.tensor(1), ctx.tensor(2))


def clip(ctx: NodeContext) -> Value:
    """Translate Clip: bounds are attributes before opset 11, optional inputs from it on."""
    x = ctx.tensor(0)
    if ctx.opset < 11:
        bounds = (ctx.attribute("min"), ctx.attribute("max"))
        return x.clip(*bounds)
    # A bound is a scalar, but some exporters write it as one element of shape (1,).
    low, high = (ctx.tensor(i).cast(x.dtype).reshape(()) if ctx.has(i) else None for i in (1, 2))
    return x.clip(low, high)


def cast(ctx: NodeContext) -> Value:
    """Translate Cast and CastLike; floats to integers truncate, to bool is "not 0"."""
    x = ctx.tensor(0)
    if ctx.node.op_type == "CastLike":
        return _cast(x, ctx.tensor(1).dtype)
    code = ctx.attribute("to")
    try:
        target = onnx.helper.tensor_dtype_to_np_dtype(code)
    except (KeyError, ValueError) as error:
        raise ModelError(f"cannot cast to element type {code}") from error
    return _cast(x, dt.from_numpy(target))


def _cast(x: Tensor, target: dt.DType) -> Tensor:
    return x.bool() if target is dt.bool_ else x.cast(target)


def identity(ctx: NodeContext) -> Value:
    """Translate Identity: a constant stays one."""
    return ctx.value(0)


def dropout(ctx: NodeContext) -> Value | list[Value]:
    """Translate Dropout at inference: the input, and a mask of all true.

    Raises:
        ModelError: the node asks for training mode.
    """
    if ctx.has(2) and bool(ctx.const(2, "training_mode")):
        raise ModelError("training_mode=true is not supported; export for inference")
    x = ctx.value(0)
    if ctx.outputs < 2:
        return x
    # Before opset 10 the mask had the type of the data.
    mask = np.ones(x.shape, bool if ctx.opset >= 10 else ctx.tensor(0).dtype.np)
    return [x, mask]
