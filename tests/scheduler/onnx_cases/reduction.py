"""Reductions."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_cases.case import Const, case, f, i32, k, pos, rng

REDUCES = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"]
REDUCES += ["ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
CASES = [
    *(case(op, f(2, 3, 4), opset=11, axes=[0, -1]) for op in REDUCES),
    *(case(op, f(2, 3, 4), k(1), opset=18, keepdims=0) for op in REDUCES),
    *(case(op, f(2, 3, 4), opset=18) for op in REDUCES),
    case("ReduceLogSum", pos(2, 3, 4), k(-2), opset=18),
    case("ReduceSum", f(2, 3), Const(np.zeros(0, np.int64)), noop_with_empty_axes=1),
    case("ReduceSum", i32(4, 5), k(1), opset=13),
    case("ReduceMean", i32(4, 5), opset=13, axes=[1]),
    case("ReduceMax", rng.integers(0, 256, (4, 5)).astype(np.uint8), opset=13, axes=[1]),
    *(
        case(
            op,
            np.array([[3.0, 1, 3, 1], [0, 0, 0, 0]], np.float32),
            axis=1,
            keepdims=d,
            select_last_index=last,
        )
        for op in ("ArgMax", "ArgMin")
        for d in (0, 1)
        for last in (0, 1)
    ),
]
