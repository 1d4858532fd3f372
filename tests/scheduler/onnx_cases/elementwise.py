"""Elementwise arithmetic, comparison, types."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.scheduler.onnx_cases.case import Const, case, f, flags, i32, k, pos, rng

HALVES = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 3.49], np.float32)
WIDE = np.array([-200.0, -20.0, -1.0, 0.0, 1.0, 20.0, 200.0], np.float32)
CASES = [
    *(case(op, f(2, 3, 4), f(3, 1)) for op in ("Add", "Sub", "Mul", "Div", "Max", "Min")),
    *(case(op, f(5), opset=13) for op in ("Neg", "Abs", "Exp", "Erf", "Tanh", "Sigmoid", "Relu")),
    *(case(op, f(4, 5)) for op in ("Sign", "Sin", "Cos", "Floor", "Ceil", "Softplus", "Softsign")),
    *(case(op, pos(3, 4)) for op in ("Sqrt", "Log", "Reciprocal")),
    *(case(op, WIDE) for op in ("Sigmoid", "Softplus", "Tanh", "Elu", "Erf", "HardSwish")),
    case("Mish", WIDE, opset=18),
    case("Round", HALVES),
    case("Div", np.array([-7, 7, -7, 7], np.int32), np.array([2, 2, -2, -2], np.int32)),
    case("Mod", np.array([-7, 7, -7, 7], np.int32), np.array([3, 3, -3, -3], np.int32)),
    case("Mod", np.array([-7, 7, -7, 7], np.int32), np.array([3, 3, -3, -3], np.int32), fmod=1),
    case("Mod", f(6) * 5, pos(6), fmod=1),
    *(case("Pow", pos(3, 4), Const(np.array(e, np.float32))) for e in (0.5, 2.0, 3.0, -1.0, 1.7)),
    case("Pow", pos(3), k(2.0, dtype=np.float32)),
    case("Pow", pos(3, 4), f(4)),
    case("Pow", f(4), np.array([2, 3, 1, 0], np.int64)),
    case("Pow", i32(5), Const(np.array(2, np.int32))),
    *(case(op, f(3, 4), f(4), f(3, 1)) for op in ("Max", "Min", "Sum", "Mean")),
    case("Max", f(3)),
    case("Clip", f(9), opset=7, min=-0.5, max=0.5),
    case("Clip", f(9), Const(np.float32(-0.5)), Const(np.float32(0.5))),
    case("Clip", f(9), None, Const(np.float32(0.2))),
    case("Clip", i32(9), Const(np.int32(-3)), opset=12),
    case("Where", flags(3, 1), f(1, 4), f(3, 4)),
    *(case(op, i32(20), i32(20)) for op in ("Equal", "Less", "Greater", "LessOrEqual")),
    case("GreaterOrEqual", f(3, 4), f(4)),
    *(case(op, flags(9), flags(9)) for op in ("And", "Or", "Xor")),
    case("Not", flags(9)),
    *(case("Cast", f(9) * 3, to=t) for t in (TensorProto.INT32, TensorProto.BOOL)),
    case("Cast", i32(9), to=TensorProto.FLOAT),
    case("Cast", rng.integers(0, 256, 9).astype(np.uint8), to=TensorProto.FLOAT),
    case("Cast", f(9), to=TensorProto.FLOAT16),
    case("CastLike", f(9) * 3, np.zeros(1, np.int64)),
    case("Identity", f(3)),
    case("Dropout", f(3, 4), outputs=2),
    case("Dropout", f(3, 4), opset=10, ratio=0.3),
]
