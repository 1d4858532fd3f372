"""Patterns of positions, and sums and products along an axis."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.scheduler.onnx_import.onnx_cases.case import Const, case, draw, f, flags, i32, k, pos

TIES = np.array([[[1, 3], [3, 3], [0, 3]], [[-1, 0], [-2, 0], [-1, 1]]], np.float32)
INDICES = np.array([[0, 2, -1], [-5, -6, 5]], np.int64)


def _axis(n: int) -> Const:
    return Const(np.array(n, np.int64))


CASES = [
    *(case("EyeLike", f(3, 5), k=n) for n in (-1, 0, 7)),
    case("EyeLike", i32(4, 2), dtype=TensorProto.DOUBLE, opset=9),
    case("EyeLike", f(2, 3), dtype=TensorProto.BOOL, opset=22, reference="onnx"),
    *(case("Trilu", f(2, 4, 5), k(n, dtype=np.int64), upper=u) for n in (-2, 1) for u in (0, 1)),
    case("Trilu", i32(3, 3)),
    case("Trilu", f(4, 3), _axis(-9), upper=0),
    case("Trilu", flags(3, 4), reference="onnx"),
    case("Trilu", np.zeros((2, 0, 3), np.float32), reference="onnx"),
    case("Trilu", f(3, 4), np.array(1, np.int64), reference="onnx"),  # k given at run time
    *(case("OneHot", INDICES, _axis(5), f(2), axis=a) for a in (-1, 0, 1)),
    case(
        "OneHot",
        INDICES.astype(np.float32),
        Const(np.float32(5)),
        k(0, 1, dtype=np.float32),
        opset=11,
    ),
    case(
        "OneHot",
        np.array([3, 255], np.uint8),
        _axis(300),
        k(2, 7, dtype=np.int32),
        reference="onnx",
    ),
    *(case("Hardmax", TIES, opset=o, axis=a) for o, a in ((13, -1), (13, 1), (11, 1), (7, 2))),
    case("Hardmax", TIES, opset=11),
    *(
        case("CumSum", f(3, 4, 5), _axis(n), exclusive=e, reverse=r)
        for n, e, r in ((0, 0, 0), (1, 1, 0), (-1, 0, 1), (2, 1, 1))
    ),
    case("CumSum", f(2, 300), _axis(1), opset=11, exclusive=1, reverse=1),
    case("CumSum", i32(2500), k(0)),
    case("CumSum", np.array([1, np.inf, 2, -1], np.float32), _axis(0)),
    case("CumSum", (f(2, 70) * 0.1).astype(np.float16), _axis(-1), reference="onnx"),
    case("CumSum", draw().integers(0, 9, (4, 3)).astype(np.uint64), _axis(0), reference="onnx"),
    *(
        case(
            "CumProd", pos(3, 6) + 0.5, _axis(n), opset=26, reference="onnx", exclusive=e, reverse=r
        )
        for n, e, r in ((0, 0, 1), (1, 1, 0), (-1, 1, 1))
    ),
    case("CumProd", i32(100), _axis(0), opset=26, reference="onnx"),
]
