"""Elementwise arithmetic, comparison, types; activations."""

from typing import Any

import numpy as np
from onnx import TensorProto

from tests.scheduler.onnx_import.onnx_cases.case import (
    Array,
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

NAN, INF = np.nan, np.inf
HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49], np.float32)
ODD = np.array([NAN, INF, -INF, 0.0, -1.5, 2.5, 1e-3, 40.0, -7.0], np.float32)
# Operands of every pairing: signs, zeros, infinities, NaN.
MOD_A = np.repeat(np.array([-5.5, 5.5, 0.0, INF, -INF, NAN, 1e-3, 1e6, 7.0], np.float32), 9)
MOD_B = np.tile(np.array([-2.0, 2.0, 0.0, INF, -INF, NAN, 0.3, 7.0, 1e-2], np.float32), 9)
# Bases and exponents of integers: every pairing.
POW_A = np.repeat(np.array([-3, -2, -1, 0, 1, 2, 3, 9], np.int32), 8)
POW_B = np.tile(np.array([0, 1, 2, 3, 7, 13, 19, 8], np.int32), 8)
INTS = (np.int8, np.uint8, np.int16, np.uint16, np.int32, np.uint32, np.int64, np.uint64)
CLIPPED = (np.int8, np.uint8, np.int16, np.uint32, np.int64, np.float16)
WIDE = np.array([-200.0, -20.0, -1.0, 0.0, 1.0, 20.0, 200.0], np.float32)
FAR = np.array([-INF, -1e4, -100.0, -30.0, -1.0, 0.0, 1.0, 100.0, 1e4, INF, NAN], np.float32)
ROWS = np.array([[1e4, -1e4, 0], [-INF, 0, 1], [3e38, 3e38, -3e38], [NAN, 0, 1]], np.float32)
ALL_OUT = np.array([[-INF, -INF], [0, -INF]], np.float32)
SIGNS = np.array([-7, 7, -7, 7], np.int32)


def _pair(dtype: Any) -> tuple[Array, Array]:
    """Return two operands; no divisor is 0, no quotient overflows."""
    low = 1 if np.dtype(dtype).kind == "u" else -20
    a, b = ints(low - 1, 100, 2, 40, dtype=dtype)
    return a, np.where(b == 0, np.array(7, dtype), b)


def _signs(by: int) -> tuple[Array, Array]:
    return SIGNS, np.array([by, by, -by, -by], np.int32)


def _half(*shape: int) -> Array:
    return f(*shape).astype(np.float16)


CASES = [
    *(case(op, f(2, 3, 4), f(3, 1)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(case(op, f(5), opset=13) for op in ("Neg", "Abs", "Exp", "Erf", "Tanh", "Sigmoid", "Relu")),
    *(case(op, f(4, 5)) for op in ("Sign", "Sin", "Cos", "Floor", "Ceil", "Softplus", "Softsign")),
    *(case(op, pos(3, 4)) for op in ("Sqrt", "Log", "Reciprocal")),
    *(case(op, WIDE) for op in ("Sigmoid", "Softplus", "Tanh", "Elu", "Erf", "HardSwish")),
    case("Mish", WIDE, opset=18),
    case("Round", HALVES),
    case("Div", *_signs(2)),
    case("Mod", *_signs(3)),
    case("Mod", *_signs(3), fmod=1),
    case("Mod", f(6) * 5, pos(6), fmod=1),
    *(case("Pow", pos(3, 4), one(e, np.float32)) for e in (0.5, 2.0, 3.0, -1.0, 1.7)),
    case("Pow", pos(3), k(2.0, dtype=np.float32)),
    case("Pow", pos(3, 4), f(4)),
    case("Pow", f(4), np.array([2, 3, 1, 0], np.int64)),
    case("Pow", i32(5), one(2, np.int32)),
    *(own("Div", *_pair(t), opset=14) for t in (np.int8, np.uint16, np.int64)),
    *(case("Mod", *_pair(t), opset=13) for t in INTS),
    *(case("Mod", *_pair(t), fmod=1, opset=13) for t in (np.int8, np.uint32, np.int64)),
    *(own("Mod", MOD_A, MOD_B, opset=28, fmod=m) for m in (0, 1)),
    own("Mod", MOD_A.astype(np.float64), MOD_B.astype(np.float64), opset=28),
    own("Mod", _half(9), pos(9).astype(np.float16), opset=28),
    own("Pow", POW_A, POW_B),
    own("Pow", POW_A.astype(np.int64), POW_B.astype(np.uint8)),
    case("Pow", POW_A.astype(np.int64), (POW_B % 14).astype(np.float32)),
    own("Pow", i32(9), one(20)),
    case("Pow", np.arange(40, dtype=np.int32), one(1.5, np.float32)),
    case("Pow", np.arange(40, dtype=np.int64), np.array([0.5], np.float32)),
    case("Pow", np.array([1, -1, 2, -9], np.int32), k(-3, dtype=np.int32), opset=15),
    own("Pow", pos(7).astype(np.float16) * 9, f(7)),
    own("Pow", pos(7).astype(np.float16) * 9, one(1.7, np.float32)),
    own("Pow", f(7), i32(7).astype(np.int8)),
    own("Pow", pos(7), f(7).astype(np.float64)),
    *(case(op, f(3, 4), f(4), f(3, 1)) for op in ("Max", "Min", "Sum", "Mean")),
    *(own(op, *_pair(t)) for op in ("Max", "Min") for t in INTS),
    *(case(op, ODD, np.roll(ODD, 4), ODD[::-1].copy()) for op in ("Max", "Min")),
    *(
        case(op, f(9).astype(t), f(9).astype(t))
        for op in ("Max", "Min")
        for t in (np.float16, np.float64)
    ),
    own("Mean", _half(3, 4), _half(4)),
    *(case(op, ODD) for op in ("Sign", "Abs", "Neg", "Relu", "Floor", "IsNaN", "IsInf")),
    *(case("IsInf", ODD, detect_negative=n, detect_positive=1 - n) for n in (0, 1)),
    case("IsInf", ODD.astype(np.float64), detect_negative=0, detect_positive=0),
    case("IsNaN", ODD.astype(np.float16), opset=20),
    *(own(op, _pair(t)[0]) for op in ("Sign", "Abs") for t in (np.int8, np.uint16, np.int64)),
    *(own("Neg", _pair(t)[0]) for t in (np.int8, np.int16, np.int64)),
    *(case("Shrink", f(9) * 2, lambd=1.0, bias=b) for b in (0.0, 0.7)),
    *(own("Shrink", _pair(t)[0], lambd=1.5, bias=1.0) for t in (np.int32, np.uint8)),
    *(case("Round", HALVES.astype(t)) for t in (np.float16, np.float64)),
    case("Max", f(3)),
    case("Clip", f(9), opset=7, min=-0.5, max=0.5),
    case("Clip", f(9), one(-0.5, np.float32), one(0.5, np.float32)),
    case("Clip", f(9), None, one(0.2, np.float32)),
    case("Clip", i32(9), one(-3, np.int32), opset=12),
    own("Clip", ODD, one(2.0, np.float32), one(-1.0, np.float32)),
    case("Clip", ODD, np.array(-1, np.float32), np.array(2, np.float32)),
    *(own("Clip", _pair(t)[0], one(3, t), np.array(50, t), opset=13) for t in CLIPPED),
    case("Where", flags(3, 1), f(1, 4), f(3, 4)),
    *(case(op, i32(20), i32(20)) for op in ("Equal", "Less", "Greater", "LessOrEqual")),
    case("GreaterOrEqual", f(3, 4), f(4)),
    *(case(op, flags(9), flags(9)) for op in ("And", "Or", "Xor")),
    *(case(op, flags(2, 3, 1), flags(4)) for op in ("And", "Or", "Xor", "Equal")),
    *(case(op, ODD, np.roll(ODD, 4)) for op in ("Equal", "Less", "GreaterOrEqual")),
    case("Not", flags(9)),
    *(case("Cast", f(9) * 3, to=t) for t in (TensorProto.INT32, TensorProto.BOOL)),
    case("Cast", i32(9), to=TensorProto.FLOAT),
    case("Cast", u8(9), to=TensorProto.FLOAT),
    case("Cast", f(9), to=TensorProto.FLOAT16),
    case("CastLike", f(9) * 3, np.zeros(1, np.int64)),
    case("Identity", f(3)),
    case("Dropout", f(3, 4), outputs=2),
    case("Dropout", f(3, 4), opset=10, ratio=0.3),
    case("Dropout", f(3, 4), one(0.5, np.float32), one(False, np.bool_), outputs=2),
    case("Dropout", f(3, 4), one(0, np.float32), one(True, np.bool_), outputs=2),
    # activations
    *(case(op, f(3, 5)) for op in ("Elu", "Selu", "LeakyRelu", "HardSigmoid", "Celu")),
    *(case(op, f(9), alpha=0.3) for op in ("Elu", "LeakyRelu", "Celu", "ThresholdedRelu")),
    case("Selu", f(9), alpha=1.1, gamma=0.7),
    case("HardSigmoid", f(9), alpha=0.3, beta=0.4),
    case("PRelu", f(2, 3, 4), w(3, 1)),
    own("PRelu", i32(2, 5), i32(5), opset=16),
    *(own("Swish", f(9) * 4, opset=24, alpha=a) for a in (1.0, 0.3)),
    *(case(op, FAR, opset=18) for op in ("Softplus", "Mish", "Selu", "HardSigmoid", "Sigmoid")),
    own("Softplus", FAR.astype(np.float64)),
    own("Softplus", FAR.astype(np.float16), opset=22),
    *(case(op, ROWS, opset=13) for op in ("Softmax", "LogSoftmax")),
    own("Softmax", ALL_OUT, opset=13),
    case("HardSwish", f(9) * 4),
    case("Gelu", f(9), opset=20),
    case("Gelu", f(9), opset=20, approximate="tanh"),
    *(case(op, f(2, 3, 4), opset=o) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
    *(case(op, f(2, 3, 4), opset=o, axis=0) for op in ("Softmax", "LogSoftmax") for o in (11, 13)),
]
