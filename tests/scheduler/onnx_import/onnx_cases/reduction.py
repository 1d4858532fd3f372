"""Reductions."""

from __future__ import annotations

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import case, f, flags, i32, ints, k, own, pos, u8

REDUCES = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"]
REDUCES += ["ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
# Reductions of nothing have a value: the operation's neutral element, or what follows from it.
EMPTY = ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceLogSum", "ReduceLogSumExp"]
SPECIAL = np.zeros((6, 20), np.float32)
SPECIAL[range(5), [3, 19, 0, 7, 8]] = np.nan, np.inf, -np.inf, np.nan, 88.0
SPECIAL[3, 0], SPECIAL[5] = np.inf, -np.inf
TIES = np.array([[3.0, 1, 3, 1], [0, 0, 0, 0]], np.float32)
SPREAD = ["ReduceMax", "ReduceMin", "ReduceSum"]
# onnx's evaluator gives another type, or fails.
UNTYPED = [("ReduceLogSumExp", np.int64), ("ReduceLogSumExp", np.uint32)]
UNTYPED += [("ReduceSumSquare", np.uint32)]
CASES = [
    *(case(op, f(2, 3, 4), opset=11, axes=[0, -1]) for op in REDUCES),
    *(case(op, f(2, 3, 4), k(1), opset=18, keepdims=0) for op in REDUCES),
    *(case(op, f(2, 3, 4), opset=18) for op in REDUCES),
    case("ReduceLogSum", pos(2, 3, 4), k(-2), opset=18),
    case("ReduceSum", f(2, 3), k(), noop_with_empty_axes=1),
    case("ReduceSum", i32(4, 5), k(1), opset=13),
    case("ReduceMean", i32(4, 5), opset=13, axes=[1]),
    case("ReduceMax", u8(4, 5), opset=13, axes=[1]),
    *(case("ReduceSumSquare", f(2, 3), k(), opset=18, noop_with_empty_axes=n) for n in (0, 1)),
    own("ReduceLogSumExp", f(2, 3), opset=18, noop_with_empty_axes=1),
    own("ReduceL1", f(2, 3), None, opset=18, noop_with_empty_axes=1),
    *(own(op, f(2, 0, 4), k(1), opset=18) for op in EMPTY),
    own("ReduceMean", f(2, 0, 4), opset=13, axes=[1]),
    *(own(op, np.zeros((0, 3), np.int32), k(0), opset=20) for op in EMPTY[:4]),
    *(own(op, flags(3, 9), k(1), opset=20) for op in ("ReduceMax", "ReduceMin")),
    *(
        own(op, ints(1, 9, 3, 9, dtype=t), k(1), opset=20)
        for op in ("ReduceMax", "ReduceMin")
        for t in (np.int8, np.uint8, np.uint32, np.int64, np.uint64, np.float16, np.float64)
    ),
    *(
        own(op, ints(1, 5, 3, 9, dtype=t), k(1), opset=18)
        for op in REDUCES
        for t in (np.int64, np.uint32, np.float64)
        if op not in ("ReduceMax", "ReduceMin") and (op, t) not in UNTYPED
    ),
    *(
        case(op, (pos(3, 90) * 30).astype(np.float16), k(1), opset=18)
        for op in ("ReduceSum", "ReduceMean", "ReduceL2", "ReduceLogSumExp", "ReduceLogSum")
    ),
    case("ReduceLogSumExp", SPECIAL, k(1), opset=18),
    *(own(op, SPECIAL, k(a), opset=18) for op in SPREAD for a in (0, 1)),
    *(
        case(op, TIES, axis=1, keepdims=d, select_last_index=last)
        for op in ("ArgMax", "ArgMin")
        for d in (0, 1)
        for last in (0, 1)
    ),
]
