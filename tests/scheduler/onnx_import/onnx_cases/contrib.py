"""Operators of com.microsoft."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import Case, Const, case, draw, f, w

# Ratios that make no halves: how those are rounded depends on the order of operations.
SCALE, ZERO = Const(np.float32(0.07131)), Const(np.uint8(120))
OUT_SCALE, OUT_ZERO = Const(np.float32(0.05377)), Const(np.uint8(131))
SOFT = Const(np.float32(1 / 256)), Const(np.uint8(0))
POOL: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
PADDING = np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], np.int32)


def ms(op: str, *inputs: Any, **attributes: Any) -> Case:
    return case(op, *inputs, domain="com.microsoft", **attributes)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return draw().integers(0, 256, shape).astype(np.uint8)


def quantized(op: str, *shape: int, **attributes: Any) -> Case:
    return ms(op, u8(*shape), SCALE, ZERO, OUT_SCALE, OUT_ZERO, **attributes)


def packed(count: int, size: int) -> Const:
    return Const(u8(count, size))


def small(*shape: int) -> Const:
    """Return int8 weights: onnxruntime saturates sums of products on some processors."""
    return Const(draw().integers(-60, 61, shape).astype(np.int8))


def nbits(bits: int, size: int, zero: Const | None, *inputs: Any, **attributes: Any) -> Case:
    """Return a case of MatMulNBits: 5 rows of B in blocks of 16."""
    blocks = -(-size // 16)
    weight = Const(u8(5, blocks, 16 * bits // 8))
    scales = Const((draw().random(5 * blocks) / 50 + 0.01).astype(np.float32))
    attributes |= {"N": 5, "K": size, "bits": bits, "block_size": 16}
    return ms("MatMulNBits", f(2, 3, size), weight, scales, zero, *inputs, **attributes)


def i16(*shape: int) -> np.ndarray[Any, Any]:
    return draw().integers(-30000, 30000, shape).astype(np.int16)


IDS = np.random.default_rng(2).integers(0, 9, (2, 5)).astype(np.int32)
EMBEDDINGS = (w(9, 8), w(6, 8), w(3, 8), w(8), w(8))

CASES = [
    ms("EmbedLayerNormalization", IDS, IDS % 3, *EMBEDDINGS, PADDING, outputs=2),
    ms("EmbedLayerNormalization", IDS, IDS % 3, *EMBEDDINGS, None, IDS % 6, outputs=3),
    ms("EmbedLayerNormalization", IDS, None, w(9, 8), w(6, 8), None, w(8), w(8), outputs=2),
    ms("TransposeMatMul", f(2, 5, 3), f(2, 4, 5), transA=1, transB=1, alpha=0.3),
    ms("QuantizeLinear", f(3, 4) * 900, SCALE, Const(np.int16(7))),
    ms("DequantizeLinear", i16(3, 4), Const(f(4)), Const(i16(4)), axis=1),
    ms("DynamicQuantizeMatMul", f(2, 3, 7), small(7, 4), Const(f(4)), Const(np.zeros(4, np.int8))),
    ms("DynamicQuantizeMatMul", f(3, 7), Const(u8(7, 4)), OUT_SCALE, OUT_ZERO, w(4)),
    ms("MatMulIntegerToFloat", u8(2, 3, 7), small(7, 4), SCALE, Const(f(4)), ZERO),
    ms("MatMulIntegerToFloat", u8(3, 7), Const(u8(7, 4)), SCALE, OUT_SCALE, None, OUT_ZERO, w(4)),
    nbits(4, 32, None),
    nbits(4, 40, packed(5, 2), None, w(5)),
    nbits(8, 32, packed(5, 2)),
    nbits(4, 32, Const(f(10))),
    *(
        ms(
            "QAttention",
            u8(2, 5, 12),
            small(12, 24),
            w(24),
            SCALE,
            Const(np.float32(0.0131)),
            *(PADDING, ZERO, Const(np.int8(0))),
            num_heads=2,
            unidirectional=u,
        )
        for u in (0, 1)
    ),
    ms(
        "QLinearWhere",
        draw().random((3, 7)) < 0.5,
        *(u8(3, 7), SCALE, ZERO),
        *(u8(7), OUT_SCALE, OUT_ZERO),
        *(Const(np.float32(0.10193)), ZERO),
    ),
    ms("NhwcMaxPool", u8(1, 6, 5, 3), **POOL),
    *(
        ms(
            "QLinearConv",
            u8(*((1, 6, 5, 4) if last else (1, 4, 6, 5))),
            SCALE,
            ZERO,
            small(6, 2, 3, 3),
            Const((draw().random(6) / 50 + 0.01).astype(np.float32)),
            Const(np.zeros(6, np.int8)),
            *(Const(np.float32(0.9377)), OUT_ZERO),
            Const(draw().integers(-999, 999, 6).astype(np.int32)),
            group=2,
            pads=[1, 1, 1, 1],
            channels_last=last,
        )
        for last in (0, 1)
    ),
    case("SimplifiedLayerNormalization", f(2, 3, 8), w(8), epsilon=1e-3),
    ms("Gelu", f(3, 7)),
    ms("BiasGelu", f(3, 7), w(7)),
    ms("FastGelu", f(3, 7), w(7)),
    ms("FastGelu", f(3, 7)),
    ms("QuickGelu", f(3, 7), alpha=1.3),
    ms("FusedConv", f(1, 3, 6, 5), w(4, 3, 3, 3), w(4), activation="Relu", pads=[1, 1, 1, 1]),
    ms("FusedConv", f(1, 3, 6, 5), w(4, 3, 1, 1), w(4), f(1, 4, 6, 5), activation="Relu"),
    ms(
        "FusedConv",
        f(1, 3, 6, 5),
        w(4, 3, 1, 1),
        activation="HardSigmoid",
        activation_params=[0.3, 0.4],
    ),
    ms("FusedMatMul", f(2, 5, 3), f(2, 4, 5), transA=1, transB=1, alpha=0.3),
    ms("FusedMatMul", f(3, 2, 5), f(2, 5, 4), transBatchA=1),
    ms(
        "FusedGemm",
        f(5, 3),
        w(4, 5),
        w(4),
        transA=1,
        transB=1,
        alpha=0.5,
        beta=2.0,
        activation="Relu",
    ),
    ms("SkipLayerNormalization", f(2, 3, 8), f(2, 3, 8), w(8), w(8), w(8), outputs=1, epsilon=1e-5),
    ms("SkipLayerNormalization", f(2, 3, 8), f(2, 3, 8), w(8)),
    ms("SkipSimplifiedLayerNormalization", f(2, 3, 8), f(2, 3, 8), w(8), w(8), epsilon=1e-5),
    ms("Attention", f(2, 5, 12), w(12, 24), w(24), num_heads=2),
    ms("Attention", f(2, 5, 12), w(12, 24), w(24), PADDING, num_heads=2),
    ms("Attention", f(2, 5, 12), w(12, 24), w(24), np.array([3, 5], np.int32), num_heads=2),
    ms("Attention", f(2, 5, 12), w(12, 24), w(24), num_heads=2, unidirectional=1),
    ms("Attention", f(2, 5, 12), w(12, 20), w(20), num_heads=2, qkv_hidden_sizes=[8, 8, 4]),
    ms("Attention", f(2, 5, 12), w(12, 24), w(24), None, None, f(2, 2, 5, 5), num_heads=2),
    ms("MultiHeadAttention", f(2, 3, 8), f(2, 5, 8), f(2, 5, 6), num_heads=2),
    ms("MultiHeadAttention", f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), w(24), PADDING, num_heads=2),
    ms(
        "MultiHeadAttention",
        f(2, 3, 8),
        f(2, 5, 8),
        f(2, 5, 8),
        None,
        None,
        f(1, 2, 3, 5),
        num_heads=2,
        scale=0.2,
    ),
    *(
        ms("RotaryEmbedding", f(2, 3, 16), p, w(9, 4), w(9, 4), interleaved=i)
        for p, i in ((np.array([2]), 0), (draw().integers(0, 9, (2, 3)), 1))
    ),
    ms("RotaryEmbedding", f(2, 5, 3, 8), draw().integers(0, 9, (2, 3)), w(9, 4), w(9, 4)),
    *(
        ms(op, u8(3, 7), SCALE, ZERO, u8(7), OUT_SCALE, OUT_ZERO, Const(np.float32(0.10193)), ZERO)
        for op in ("QLinearAdd", "QLinearMul")
    ),
    quantized("QLinearSigmoid", 3, 7),
    *(
        Case("QLinearSoftmax", (u8(2, 3, 7), SCALE, ZERO, *SOFT), a, domain="com.microsoft")
        for a in ({"axis": 1, "opset": 11}, {"axis": 1, "opset": 13})
    ),
    ms("QGemm", u8(5, 3), SCALE, ZERO, u8(4, 5), OUT_SCALE, OUT_ZERO, transA=1, transB=1),
    ms(
        "QGemm",
        u8(3, 5),
        SCALE,
        ZERO,
        Const(u8(5, 4)),
        Const(np.array([0.011, 0.023, 0.017, 0.031], np.float32)),
        Const(u8(4)),
        Const(np.array([100, -2000, 30, 4], np.int32)),
        Const(np.float32(0.4173)),
        OUT_ZERO,
    ),
    quantized("QLinearLeakyRelu", 3, 7, alpha=0.2),
    *(quantized("QLinearGlobalAveragePool", 1, 4, 3, 5, channels_last=c) for c in (0, 1)),
    quantized("QLinearAveragePool", 1, 2, 6, 5, **POOL),
    quantized("QLinearAveragePool", 1, 2, 6, 5, **POOL, count_include_pad=1),
    ms(
        "QLinearConcat",
        OUT_SCALE,
        OUT_ZERO,
        u8(2, 3),
        SCALE,
        ZERO,
        u8(2, 4),
        OUT_SCALE,
        OUT_ZERO,
        axis=1,
    ),
]
