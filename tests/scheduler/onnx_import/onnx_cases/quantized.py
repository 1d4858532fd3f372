"""Quantised numbers, and casts."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto

from tests.scheduler.onnx_import.onnx_cases.case import Const, case, draw, f, k, pos

SCALE = Const(np.float32(0.07))
SCALES = Const(np.array([0.05, 0.1, 0.02], np.float32))


def u8(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return draw().integers(0, 256, shape).astype(np.uint8)


def i8(*shape: int) -> np.ndarray[tuple[int, ...], np.dtype[np.int8]]:
    return draw().integers(-128, 128, shape).astype(np.int8)


CASES = [
    case("QuantizeLinear", f(2, 3, 4) * 5, SCALE, Const(np.uint8(128)), opset=13),
    case("QuantizeLinear", f(2, 3, 4) * 5, SCALE, Const(np.int8(-3)), opset=13),
    case("QuantizeLinear", f(2, 3, 4) * 5, SCALE, opset=13),
    case("QuantizeLinear", f(2, 3, 4), SCALES, k(1, 0, 9, dtype=np.uint8), opset=13, axis=1),
    case("QuantizeLinear", f(9) * 900, SCALE, Const(np.int16(7)), opset=21),
    case("QuantizeLinear", f(6, 4), Const(pos(3, 4)), opset=21, axis=0, block_size=2),
    case("DequantizeLinear", u8(2, 3, 4), SCALE, Const(np.uint8(128)), opset=13),
    case("DequantizeLinear", i8(2, 3, 4), SCALES, k(1, 0, 9, dtype=np.int8), opset=13, axis=-2),
    case("DequantizeLinear", draw().integers(-9999, 9999, 9).astype(np.int32), SCALE, opset=13),
    case("DequantizeLinear", i8(6, 4), Const(pos(3, 4)), opset=21, axis=0, block_size=2),
    case("DynamicQuantizeLinear", f(3, 4), opset=13, outputs=3),
    case("DynamicQuantizeLinear", pos(3, 4), opset=13, outputs=3),
    case("DynamicQuantizeLinear", np.zeros(4, np.float32), opset=13, outputs=3),
    # onnxruntime saturates sums of such products at 16 bits on some processors.
    case("MatMulInteger", u8(2, 3, 4), Const(i8(4, 5)), opset=13, reference="onnx"),
    case("MatMulInteger", u8(3, 4), Const(u8(4, 5)), Const(np.uint8(9)), Const(u8(5)), opset=13),
    case("ConvInteger", u8(1, 2, 6, 7), Const(u8(3, 2, 3, 3)), Const(np.uint8(9)), opset=13),
    case(
        "QLinearMatMul",
        u8(3, 4),
        SCALE,
        Const(np.uint8(120)),
        Const(i8(4, 5)),
        SCALE,
        Const(np.int8(0)),
        Const(np.float32(0.37)),
        Const(np.uint8(128)),
        opset=13,
        reference="onnx",
    ),
    case(
        "QLinearConv",
        u8(1, 2, 6, 7),
        SCALE,
        Const(np.uint8(120)),
        Const(i8(3, 2, 3, 3) // 2),  # see MatMulInteger
        SCALES,
        Const(np.zeros(3, np.int8)),
        Const(np.float32(0.4)),
        Const(np.uint8(128)),
        Const(draw().integers(-99, 99, 3).astype(np.int32)),
        opset=13,
        pads=[1, 1, 1, 1],
    ),
    case("BitCast", f(3, 4), opset=26, to=TensorProto.INT32, reference="onnx"),
    case("BitCast", draw().integers(0, 9, 5), opset=26, to=TensorProto.UINT64, reference="onnx"),
]
