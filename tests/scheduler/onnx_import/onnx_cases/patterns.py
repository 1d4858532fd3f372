"""Bits, patterns of positions, running sums, losses, trigonometric functions and their inverses."""

from typing import Any

import numpy as np
from onnx import TensorProto

from tests.scheduler.onnx_import.onnx_cases.case import (
    Array,
    Case,
    case,
    draw,
    f,
    flags,
    i32,
    ints,
    k,
    one,
    own,
    pos,
)

TIES = np.array([[[1, 3], [3, 3], [0, 3]], [[-1, 0], [-2, 0], [-1, 1]]], np.float32)
INDICES = np.array([[0, 2, -1], [-5, -6, 5]], np.int64)
TARGETS = np.random.default_rng(3).integers(0, 5, (3, 2)).astype(np.int64)
WITH_HOLES = np.array([[0, -1, 4, 2], [-1, 3, 1, 0]], np.int32)
NLL, CROSS_ENTROPY = "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"

# Values near 0, far out and at the ends are in test_particular_ops.py.
TRIGONOMETRIC = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan")


def _bits(dtype: Any, *shape: int) -> Array:
    limits = np.iinfo(dtype)
    return draw().integers(limits.min, limits.max, shape, dtype, endpoint=True)


def _shift(dtype: Any, direction: str) -> Case:
    """Return a case of distances inside and outside of the width, negative ones too."""
    values, width = _bits(dtype, 70), np.iinfo(dtype).bits
    values[:3] = np.iinfo(dtype).min, np.iinfo(dtype).max, 1
    low = 0 if np.dtype(dtype).kind == "u" else -3
    distances = np.resize(np.arange(low, width + 3), 70).astype(dtype)
    return own("BitShift", values, distances, opset=28, direction=direction)


def _holes(op: str, outputs: int, reduction: str, *weights: Array) -> Case:
    how: dict[str, Any] = {"reduction": reduction, "ignore_index": -1}
    return case(op, -pos(2, 5, 4), WITH_HOLES, *weights, opset=13, outputs=outputs, **how)


CASES = [
    *(_shift(t, d) for t in (np.int8, np.int32, np.uint16, np.int64) for d in ("LEFT", "RIGHT")),
    case(
        *("BitShift", _bits(np.uint8, 3, 1), np.array([0, 1, 7, 3], np.uint8)),
        opset=11,
        direction="LEFT",
    ),
    case("BitShift", _bits(np.uint64, 4), np.full(4, 9, np.uint64), opset=11, direction="RIGHT"),
    *(
        case(f"Bitwise{op}", _bits(t, 2, 3, 4), _bits(t, 3, 1), opset=18)
        for op, t in (("And", np.int8), ("Or", np.uint16), ("Xor", np.int64))
    ),
    *(case("BitwiseNot", _bits(t, 40), opset=18) for t in (np.uint8, np.int32, np.uint64)),
    # positions
    *(case("EyeLike", f(3, 5), k=n) for n in (-1, 0, 7)),
    case("EyeLike", i32(4, 2), dtype=TensorProto.DOUBLE, opset=9),
    own("EyeLike", f(2, 3), dtype=TensorProto.BOOL, opset=22),
    *(case("Trilu", f(2, 4, 5), k(n, dtype=np.int64), upper=u) for n in (-2, 1) for u in (0, 1)),
    own("Trilu", flags(3, 4)),
    own("Trilu", np.zeros((2, 0, 3), np.float32)),
    own("Trilu", f(3, 4), np.array(1, np.int64)),  # k given at run time
    *(case("OneHot", INDICES, one(5), f(2), axis=a) for a in (-1, 0, 1)),
    case(
        *("OneHot", INDICES.astype(np.float32), one(5, np.float32), k(0, 1, dtype=np.float32)),
        opset=11,
    ),
    own("OneHot", np.array([3, 255], np.uint8), one(300), k(2, 7, dtype=np.int32)),
    *(case("Hardmax", TIES, opset=o, axis=a) for o, a in ((13, -1), (13, 1), (11, 1), (7, 2))),
    case("Hardmax", TIES, opset=11),
    # running sums and products
    *(case("CumSum", f(3, 4, 5), one(n), exclusive=n) for n in (0, 1)),
    case("CumSum", f(2, 300), one(1), opset=11, exclusive=1, reverse=1),
    case("CumSum", i32(2500), k(0)),
    case("CumSum", np.array([1, np.inf, 2, -1], np.float32), one(0)),
    own("CumSum", (f(2, 70) * 0.1).astype(np.float16), one(-1)),
    own("CumSum", ints(0, 9, 4, 3, dtype=np.uint64), one(0)),
    *(
        own("CumProd", pos(3, 6) + 0.5, one(n), opset=26, exclusive=e, reverse=r)
        for n, e, r in ((0, 0, 1), (1, 1, 0), (-1, 1, 1))
    ),
    own("CumProd", i32(100), one(0), opset=26),
    # losses
    *(case(NLL, -pos(3, 5, 2), TARGETS, opset=13, reduction=r) for r in ("none", "sum", "mean")),
    case(NLL, -pos(6, 5), TARGETS.reshape(6), pos(5), opset=12),
    *(
        _holes(op, outputs, reduction, *weights)
        for op, outputs in ((NLL, 1), (CROSS_ENTROPY, 2))
        for weights, reduction in (((), "mean"), ((pos(5),), "mean"), ((pos(5),), "none"))
    ),
    case(CROSS_ENTROPY, f(3, 5, 2) * 50, TARGETS, opset=13, reduction="none"),
    case(CROSS_ENTROPY, f(6, 5), TARGETS.reshape(6), pos(5), opset=12, reduction="sum"),
    # trigonometry
    *(case(op, f(9)) for op in TRIGONOMETRIC),
]
