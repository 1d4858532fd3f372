"""Operators on bits."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Array, case, draw


def _ints(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return draw().integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _shifts(dtype: Any, count: int) -> Array:
    """Distances inside and outside of the width, negative ones too."""
    width = np.iinfo(dtype).bits
    low = 0 if np.dtype(dtype).kind == "u" else -3
    return np.resize(np.arange(low, width + 3), count).astype(dtype)


def _shift(dtype: Any, direction: str) -> object:
    values = _ints(dtype, 70)
    values[:3] = np.iinfo(dtype).min, np.iinfo(dtype).max, 1
    return case(
        "BitShift",
        values,
        _shifts(dtype, 70),
        opset=28,
        reference="onnx",
        direction=direction,
    )


CASES = [
    *(_shift(t, d) for t in (np.int8, np.int32, np.uint16, np.int64) for d in ("LEFT", "RIGHT")),
    case(
        "BitShift",
        _ints(np.uint8, 3, 1),
        np.array([0, 1, 7, 3], np.uint8),
        opset=11,
        direction="LEFT",
    ),
    case("BitShift", _ints(np.uint64, 4), np.full(4, 9, np.uint64), opset=11, direction="RIGHT"),
    *(
        case(op, _ints(t, 2, 3, 4), _ints(t, 3, 1), opset=18)
        for op, t in (
            ("BitwiseAnd", np.int8),
            ("BitwiseOr", np.uint16),
            ("BitwiseXor", np.int64),
        )
    ),
    *(case("BitwiseNot", _ints(t, 40), opset=18) for t in (np.uint8, np.int32, np.uint64)),
]
