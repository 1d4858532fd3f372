"""Translators of elementwise arithmetic, comparison and logic. Formulas: ONNX documentation."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np

from scheduler.errors import ModelError
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.tensor.tensor import Tensor

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


def is_inf(ctx: NodeContext) -> Value:
    """Translate IsInf: either infinity, or one of them."""
    x = ctx.tensor(0)
    negative, positive = ctx.integer("detect_negative", 1), ctx.integer("detect_positive", 1)
    if negative and positive:
        return x.abs().eq(math.inf)
    if negative or positive:
        return x.eq(math.inf if positive else -math.inf)
    return Tensor(False).broadcast_to(x.shape)


def mean(ctx: NodeContext) -> Value:
    """Translate Mean: the average of all inputs."""
    total: Tensor = reduce(operator.add, (ctx.tensor(i) for i in range(ctx.count)))
    return total / ctx.count


def shrink(ctx: NodeContext) -> Value:
    """Translate Shrink: x - bias above lambd, x + bias below -lambd, 0 between.

    Integers are moved by a whole bias; another bias is added as float32 and rounded towards zero.
    """
    x = ctx.tensor(0)
    bias, limit = ctx.number("bias", 0.0), ctx.number("lambd", 0.5)
    whole = not x.dtype.is_float and bias == int(bias)
    moved: Any = int(bias) if whole else bias
    above = (x > limit).where((x - moved).cast(x.dtype), 0)
    return (x < -limit).where((x + moved).cast(x.dtype), above)


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


def identity(ctx: NodeContext) -> Value:
    """Translate Identity: a constant stays one."""
    return ctx.value(0)


def dropout(ctx: NodeContext) -> Value | list[Value]:
    """Translate Dropout where it drops nothing: the input, and a mask of all true.

    Raises:
        ModelError: the node asks for training mode with a ratio other than 0.
    """
    if ctx.has(2) and bool(ctx.const(2, "training_mode")):
        ratio = float(ctx.const(1, "ratio")) if ctx.has(1) else 0.5
        if ratio:
            raise ModelError(
                f"training_mode=true with ratio {ratio:g} drops at random, which is not supported; "
                "export for inference"
            )
    x = ctx.value(0)
    if ctx.outputs < 2:
        return x
    # Before opset 10 the mask had the type of the data; it is one number, repeated.
    mask = np.ones((), bool if ctx.opset >= 10 else ctx.tensor(0).dtype.np)
    return [x, np.broadcast_to(mask, x.shape)]
