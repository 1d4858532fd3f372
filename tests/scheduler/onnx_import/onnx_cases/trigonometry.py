"""Trigonometric and hyperbolic functions and their inverses, near 0, far out and outside."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import case

_ENDS = [0.0, 1.0, np.inf, np.nan]
_UNIT = np.array([1e-30, 1e-4, 0.01, 0.2, 0.4, 0.5, 0.7, 0.9, 0.999, 1 - 2**-24, 1.5, *_ENDS])
_WIDE = np.array([1e-30, 1e-4, 0.01, 0.3, 0.4, 0.6, 2.4, 3.0, 50.0, 1e6, 3e38, *_ENDS])
_EXPONENTS = np.array([1e-30, 1e-4, 0.01, 0.3, 3.0, 20.0, 88.9, 89.3, 90.0, *_ENDS])
_FROM_1 = np.array([1 + 2**-22, 1.001, 1.5, 10.0, 1e6, 1e20, 3e38, 0.5, -3.0, *_ENDS])


def _both(values: np.ndarray[tuple[int], np.dtype[np.float64]], dtype: type) -> object:
    with np.errstate(over="ignore"):
        return np.concatenate([values, -values]).astype(dtype)


_INPUTS = {
    "Acos": _UNIT,
    "Acosh": _FROM_1,
    "Asin": _UNIT,
    "Asinh": _WIDE,
    "Atan": _WIDE,
    "Atanh": _UNIT,
    "Cosh": _EXPONENTS,
    "Sinh": _EXPONENTS,
    "Tan": _WIDE[:-4],
}
CASES = [
    *(case(op, _both(x, np.float32), reference="onnx") for op, x in _INPUTS.items()),
    *(
        case(op, _both(_INPUTS[op], np.float16), opset=22, reference="onnx")
        for op in ("Asin", "Sinh")
    ),
    *(
        case(op, _both(_INPUTS[op], np.float64), reference="onnx")
        for op in ("Acos", "Asinh", "Atan", "Atanh", "Tan")
    ),
]
