"""A decorator computes functions of several operations on halves in float32, rounded once."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

from scheduler.ir import dtype as dt
from scheduler.tensor.core import TensorCore

F = TypeVar("F", bound=Callable[..., Any])


def rounds_once(method: F) -> F:
    """Return a method of tensors that widens halves before it and rounds its result after it.

    Sums of halves overflow from 65504 on. With a wider operand the result is wider and not rounded.
    """

    @wraps(method)
    def wide(*given: Any, **named: Any) -> Any:
        tensors = [v for v in (*given, *named.values()) if isinstance(v, TensorCore)]
        floats = {t.dtype for t in tensors if t.dtype.is_float}
        if dt.float16 not in floats:
            return method(*given, **named)
        result = method(*map(_widened, given), **{k: _widened(v) for k, v in named.items()})
        return result.as_half() if floats == {dt.float16} else result

    return wide  # type: ignore[return-value]  # it takes and returns what the method does


def _widened(value: Any) -> Any:
    is_half = isinstance(value, TensorCore) and value.dtype is dt.float16
    return value.cast(dt.float32) if is_half else value
