"""Matrix products, determinants; quantised numbers; reductions."""

import numpy as np
from onnx import TensorProto

from tests.scheduler.onnx_import.onnx_cases.case import (
    Array,
    Const,
    case,
    f,
    flags,
    i32,
    ints,
    k,
    one,
    own,
    pos,
    u8,
    w,
)

SINGULAR = np.array([[0, 2, 1], [0, 4, 2], [3, 1, 1]], np.float32)
# The first pivot is 0 in every batch.
PIVOTS = f(2, 5, 5) * (1 - np.eye(5, dtype=np.float32))
SCALE, WIDER, WIDEST = (one(scale, np.float32) for scale in (0.07, 0.37, 0.4))
SCALES = k(0.05, 0.1, 0.02, dtype=np.float32)
ZERO, MIDDLE, NEAR = (one(zero, np.uint8) for zero in (120, 128, 9))


def i8(*shape: int) -> Array:
    return ints(-128, 128, *shape, dtype=np.int8)


REDUCES = ["ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1"]
REDUCES += ["ReduceL2", "ReduceSumSquare", "ReduceLogSumExp"]
# Reductions of nothing have a value: the operation's neutral element, or what follows from it.
EMPTY = ["ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceLogSum", "ReduceLogSumExp"]
SPECIAL = np.zeros((6, 20), np.float32)
SPECIAL[range(5), [3, 19, 0, 7, 8]] = np.nan, np.inf, -np.inf, np.nan, 88.0
SPECIAL[3, 0], SPECIAL[5] = np.inf, -np.inf
SPREAD = ["ReduceMax", "ReduceMin", "ReduceSum"]
# onnx's evaluator gives another type, or fails.
UNTYPED = [("ReduceLogSumExp", np.int64), ("ReduceLogSumExp", np.uint32)]
UNTYPED += [("ReduceSumSquare", np.uint32)]

CASES = [
    case("MatMul", f(3, 4), w(4, 5)),
    case("MatMul", f(2, 3, 4), f(4)),
    case("MatMul", f(3, 0), f(0, 2)),
    case("Gemm", f(3, 4), w(4, 5), w(5)),
    case("Gemm", f(4, 3), w(5, 4), w(3, 1), transA=1, transB=1, alpha=0.5, beta=2.0),
    case("Gemm", f(3, 4), w(4, 5)),
    case("Gemm", f(3, 4), f(4, 5), np.float32(0.5)),
    case("Gemm", f(3, 4), f(4, 5), f(3, 5), beta=0.0),
    *(
        case("Einsum", *operands, equation=equation)
        for equation, *operands in (
            ("bhqd,bhkd->bhqk", f(2, 3, 4, 5), f(2, 3, 6, 5)),
            ("bqhd, bkhd -> bhqk", f(2, 4, 3, 5), f(2, 6, 3, 5)),
            ("...ij,...jk", f(2, 3, 4), f(3, 4, 5)[:1]),
            ("ii->i", f(4, 4)),
            ("aii->a", f(2, 3, 3)),
            ("iji,j->i", f(3, 4, 3), f(4)),
            ("i,i", f(4), f(4)),
            ("aB,Bc,cd->", f(2, 3), f(3, 4), f(4, 2)),
            ("...a->a...", f(2, 3, 4)),
            ("ij,ij->ij", i32(2, 3), i32(2, 3)),
        )
    ),
    *(own("Det", f(*shape), opset=22) for shape in ((2, 1, 1), (3, 2, 2))),
    *(own("Det", x, opset=22) for x in (SINGULAR, PIVOTS, f(2, 6, 6))),
    # quantised
    case("QuantizeLinear", f(2, 3, 4) * 5, SCALE, MIDDLE, opset=13),
    case("QuantizeLinear", f(2, 3, 4) * 5, SCALE, one(-3, np.int8), opset=13),
    case("QuantizeLinear", f(2, 3, 4) * 5, SCALE, opset=13),
    case("QuantizeLinear", f(9) * 900, SCALE, one(7, np.int16), opset=21),
    case("DequantizeLinear", u8(2, 3, 4), SCALE, MIDDLE, opset=13),
    # A channel that is 0, one that is turned around, one of denormals.
    case("DequantizeLinear", u8(2, 3, 4), k(0, -0.1, 1e-40, dtype=np.float32), axis=-2),
    case("QuantizeLinear", f(2, 3, 4) * 5, k(-0.1, 0.02, 9.0, dtype=np.float32), axis=-2),
    case("DequantizeLinear", ints(-9999, 9999, 9, dtype=np.int32), SCALE, opset=13),
    *(
        case("DynamicQuantizeLinear", x, opset=13, outputs=3)
        for x in (f(3, 4), pos(3, 4), np.zeros(4, np.float32))
    ),
    # onnxruntime saturates sums of such products at 16 bits on some processors.
    own("MatMulInteger", u8(2, 3, 4), Const(i8(4, 5)), opset=13),
    case("MatMulInteger", u8(3, 4), Const(u8(4, 5)), NEAR, Const(u8(5)), opset=13),
    case("ConvInteger", u8(1, 2, 6, 7), Const(u8(3, 2, 3, 3)), NEAR, opset=13),
    own(
        *("QLinearMatMul", u8(3, 4), SCALE, ZERO),
        *(Const(i8(4, 5)), SCALE, one(0, np.int8), WIDER, MIDDLE),
        opset=13,
    ),
    case(
        *("QLinearConv", u8(1, 2, 6, 7), SCALE, ZERO),
        *(Const(i8(3, 2, 3, 3) // 2), SCALES, k(0, 0, 0, dtype=np.int8)),  # see MatMulInteger
        *(WIDEST, MIDDLE, Const(ints(-99, 99, 3, dtype=np.int32))),
        opset=13,
        pads=[1, 1, 1, 1],
    ),
    own("BitCast", f(3, 4), opset=26, to=TensorProto.INT32),
    own("BitCast", ints(0, 9, 5), opset=26, to=TensorProto.UINT64),
    # reductions
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
]
