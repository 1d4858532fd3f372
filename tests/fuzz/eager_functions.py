"""What random eager programs compute: each function for tensors and for arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler import Tensor
from scheduler.ir import dtype as dt

Array = NDArray[Any]


def _windows(x: Any) -> Any:
    return np.lib.stride_tricks.sliding_window_view(x, 2, 0).sum(-1).astype(x.dtype)


UNARY: list[tuple[str, Callable[[Tensor], Tensor], Callable[[Array], Array]]] = [
    ("x + 1", lambda x: x + 1, lambda x: x + 1),
    ("x * 2", lambda x: x * 2, lambda x: x * 2),
    ("x * 1", lambda x: x * 1, lambda x: x * 1),
    ("-x", lambda x: -x, lambda x: -x),
    ("x.abs()", lambda x: x.abs(), np.abs),
    ("x.sum(0)", lambda x: x.sum(0, keepdim=True), lambda x: x.sum(0, keepdims=True)),
    ("x.max(0)", lambda x: x.max(0, keepdim=True), lambda x: x.max(0, keepdims=True)),
    ("x.sum(1) + x", lambda x: x.sum(1, keepdim=True) + x, lambda x: x.sum(1, keepdims=True) + x),
    ("x.maximum(0)", lambda x: x.maximum(0), lambda x: np.maximum(x, 0)),
    ("pad x", lambda x: x.pad([(1, 0)] * x.ndim), lambda x: np.pad(x, [(1, 0)] * x.ndim)),
    (
        "x.cast(int16)",
        lambda x: x.cast(dt.int32).cast(dt.int16).cast(x.dtype),
        lambda x: x.astype(np.int32).astype(np.int16).astype(x.dtype),
    ),
    (
        "sums of 2 rows of x",
        lambda x: x[1:] + x[:-1] if x.shape[0] > 1 else x + 0,
        lambda x: _windows(x) if x.shape[0] > 1 else x + 0,
    ),
]
BINARY: list[tuple[str, Callable[[Any, Any, Any], Any]]] = [
    ("a + b", lambda a, b, _: a + b),
    ("a - b", lambda a, b, _: a - b),
    ("a * b", lambda a, b, _: a * b),
    ("a where a > b, else b", lambda a, b, m: m.where(a > b, a, b)),
    ("(a > b) + a", lambda a, b, _: a + (a > b)),
    ("a + b[::-1]", lambda a, b, _: a + b[::-1]),
    ("a.T.reshape + b", lambda a, b, _: a.T.reshape(b.shape) + b),
    ("a.sum(0) + b", lambda a, b, _: a.sum(0).reshape((1, *b.shape[1:])) + b),
    ("cat", lambda a, b, m: (m.cat if m is Tensor else m.concatenate)([a, b], axis=0)),
]
