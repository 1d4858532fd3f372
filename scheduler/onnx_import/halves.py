"""Operators on halves: computed as float32, and rounded once, at their end."""

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

    Args:
        translator: of an operator whose floating-point results have the type of its first input.
    """

    def translate(ctx: NodeContext) -> AnyValue | Sequence[AnyValue]:
        first = ctx.any_value(0)
        if not isinstance(first, Tensor | np.ndarray) or first.dtype not in (
            dt.float16,
            np.float16,
        ):
            return translator(ctx)
        results = translator(replace(ctx, wide=True))
        if isinstance(results, Sequence):
            return [_narrow(value) for value in results]
        return _narrow(results)

    return translate


def _narrow(value: AnyValue) -> AnyValue:
    if isinstance(value, Tensor):
        return value.half() if value.dtype is dt.float32 else value
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value.astype(np.float16)
    return value
