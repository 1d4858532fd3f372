"""Operators on halves compute in float32 and are rounded once, at their end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import AnyValue, NodeContext
from scheduler.tensor.tensor import Tensor

Translator = Callable[[NodeContext], AnyValue | Sequence[AnyValue]]


def rounds_once(translator: Translator) -> Translator:
    """Return the translator of an operator made of several operations, which rounds halves once.

    Its floating-point results have the type of the first input.
    """

    def translate(ctx: NodeContext) -> AnyValue | Sequence[AnyValue]:
        if not is_half(ctx.any_value(0)):
            return translator(ctx)
        results = translator(replace(ctx, wide=True))
        if isinstance(results, Sequence):
            return [narrow(value) for value in results]
        return narrow(results)

    return translate


def is_half(value: AnyValue | None) -> bool:
    """Whether a value is a tensor of halves."""
    return isinstance(value, Tensor | np.ndarray) and value.dtype in (dt.float16, np.float16)


def wide(value: AnyValue | None) -> AnyValue | None:
    """Return halves as float32, other values as they are."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype is dt.float16 else value
    if isinstance(value, np.ndarray) and value.dtype == np.float16:
        return value.astype(np.float32)
    return value


def narrow(value: AnyValue) -> AnyValue:
    """Return float32 values as halves, other values as they are."""
    if isinstance(value, Tensor):
        return value.as_half() if value.dtype is dt.float32 else value
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value.astype(np.float16)
    return value
