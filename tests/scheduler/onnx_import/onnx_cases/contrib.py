"""Operators of com.microsoft."""

from typing import Any

import numpy as np

from tests.scheduler.onnx_import.onnx_cases.case import (
    Array,
    Case,
    Const,
    case,
    draw,
    f,
    ints,
    k,
    one,
    u8,
    w,
)

# Ratios that make no halves: how those are rounded depends on the order of operations.
SCALE, OUT_SCALE, THIRD_SCALE, SMALL_SCALE, CONV_SCALE, GEMM_SCALE = (
    one(scale, np.float32) for scale in (0.07131, 0.05377, 0.10193, 0.0131, 0.9377, 0.4173)
)
ZERO, OUT_ZERO, NO_ZERO = (one(zero, np.uint8) for zero in (120, 131, 0))
IN, OUT = (SCALE, ZERO), (OUT_SCALE, OUT_ZERO)
SOFT = one(1 / 256, np.float32), NO_ZERO
POOL: dict[str, Any] = {"kernel_shape": [3, 2], "strides": [2, 1], "pads": [1, 0, 1, 1]}
GEMM: dict[str, Any] = {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0, "activation": "Relu"}
STEEP: dict[str, Any] = {"activation": "HardSigmoid", "activation_params": [0.3, 0.4]}
PADDING = np.array([[1, 1, 0, 1, 0], [1, 0, 1, 1, 1]], np.int32)
TWO: dict[str, Any] = {"num_heads": 2}
EMBED, ROTARY, HEADS = "EmbedLayerNormalization", "RotaryEmbedding", "MultiHeadAttention"
BY_FLOAT, DYNAMIC = "MatMulIntegerToFloat", "DynamicQuantizeMatMul"


def ms(op: str, *inputs: Any, **attributes: Any) -> Case:
    return case(op, *inputs, domain="com.microsoft", **attributes)


def quantized(op: str, *shape: int, **attributes: Any) -> Case:
    return ms(op, u8(*shape), *IN, *OUT, **attributes)


def packed(count: int, size: int) -> Const:
    return Const(u8(count, size))


def small(*shape: int) -> Const:
    """Return int8 weights: onnxruntime saturates sums of products on some processors."""
    return Const(ints(-60, 61, *shape, dtype=np.int8))


def steps(count: int) -> Const:
    return Const((draw().random(count) / 50 + 0.01).astype(np.float32))


def nbits(bits: int, size: int, zero: Const | None, *inputs: Any) -> Case:
    """Return a case of MatMulNBits: 5 rows of B in blocks of 16."""
    blocks = -(-size // 16)
    weights = Const(u8(5, blocks, 16 * bits // 8)), steps(5 * blocks)
    how = {"N": 5, "K": size, "bits": bits, "block_size": 16}
    return ms("MatMulNBits", f(2, 3, size), *weights, zero, *inputs, **how)


def i16(*shape: int) -> Array:
    return ints(-30000, 30000, *shape, dtype=np.int16)


def conv(last: int) -> Case:
    x = u8(*((1, 6, 5, 4) if last else (1, 4, 6, 5)))
    weights = small(6, 2, 3, 3), steps(6), k(*[0] * 6, dtype=np.int8), CONV_SCALE, OUT_ZERO
    bias = Const(ints(-999, 999, 6, dtype=np.int32))
    how: dict[str, Any] = {"group": 2, "pads": [1, 1, 1, 1], "channels_last": last}
    return ms("QLinearConv", x, *IN, *weights, bias, **how)


def attention(size: int, *inputs: Any, **attributes: Any) -> Case:
    return ms("Attention", f(2, 5, 12), w(12, size), w(size), *inputs, **TWO, **attributes)


IDS = np.random.default_rng(2).integers(0, 9, (2, 5)).astype(np.int32)
EMBEDDINGS = (w(9, 8), w(6, 8), w(3, 8), w(8), w(8))

CASES = [
    ms(EMBED, IDS, IDS % 3, *EMBEDDINGS, PADDING, outputs=2),
    ms(EMBED, IDS, IDS % 3, *EMBEDDINGS, None, IDS % 6, outputs=3),
    ms(EMBED, IDS, None, w(9, 8), w(6, 8), None, w(8), w(8), outputs=2),
    ms("TransposeMatMul", f(2, 5, 3), f(2, 4, 5), transA=1, transB=1, alpha=0.3),
    ms("QuantizeLinear", f(3, 4) * 900, SCALE, one(7, np.int16)),
    ms("DequantizeLinear", i16(3, 4), Const(f(4)), Const(i16(4)), axis=1),
    ms(DYNAMIC, f(2, 3, 7), small(7, 4), Const(f(4)), k(0, 0, 0, 0, dtype=np.int8)),
    ms(DYNAMIC, f(3, 7), Const(u8(7, 4)), *OUT, w(4)),
    ms(BY_FLOAT, u8(2, 3, 7), small(7, 4), SCALE, Const(f(4)), ZERO),
    ms(BY_FLOAT, u8(3, 7), Const(u8(7, 4)), SCALE, OUT_SCALE, None, OUT_ZERO, w(4)),
    nbits(4, 32, None),
    nbits(4, 40, packed(5, 2), None, w(5)),
    nbits(8, 32, packed(5, 2)),
    nbits(4, 32, Const(f(10))),
    *(
        ms(
            *("QAttention", u8(2, 5, 12), small(12, 24), w(24), SCALE, SMALL_SCALE),
            *(PADDING, ZERO, one(0, np.int8)),
            **TWO,
            unidirectional=u,
        )
        for u in (0, 1)
    ),
    ms("QLinearWhere", draw().random((3, 7)) < 0.5, u8(3, 7), *IN, u8(7), *OUT, THIRD_SCALE, ZERO),
    ms("NhwcMaxPool", u8(1, 6, 5, 3), **POOL),
    *(conv(last) for last in (0, 1)),
    case("SimplifiedLayerNormalization", f(2, 3, 8), w(8), epsilon=1e-3),
    ms("Gelu", f(3, 7)),
    ms("BiasGelu", f(3, 7), w(7)),
    ms("FastGelu", f(3, 7), w(7)),
    ms("FastGelu", f(3, 7)),
    ms("QuickGelu", f(3, 7), alpha=1.3),
    ms("FusedConv", f(1, 3, 6, 5), w(4, 3, 3, 3), w(4), activation="Relu", pads=[1, 1, 1, 1]),
    ms("FusedConv", f(1, 3, 6, 5), w(4, 3, 1, 1), w(4), f(1, 4, 6, 5), activation="Relu"),
    ms("FusedConv", f(1, 3, 6, 5), w(4, 3, 1, 1), **STEEP),
    ms("FusedMatMul", f(2, 5, 3), f(2, 4, 5), transA=1, transB=1, alpha=0.3),
    ms("FusedMatMul", f(3, 2, 5), f(2, 5, 4), transBatchA=1),
    ms("FusedGemm", f(5, 3), w(4, 5), w(4), **GEMM),
    ms("SkipLayerNormalization", f(2, 3, 8), f(2, 3, 8), w(8), w(8), w(8), epsilon=1e-5),
    ms("SkipLayerNormalization", f(2, 3, 8), f(2, 3, 8), w(8)),
    ms("SkipSimplifiedLayerNormalization", f(2, 3, 8), f(2, 3, 8), w(8), w(8), epsilon=1e-5),
    attention(24),
    attention(24, PADDING),
    attention(24, np.array([3, 5], np.int32)),
    attention(24, unidirectional=1),
    attention(20, qkv_hidden_sizes=[8, 8, 4]),
    attention(24, None, None, f(2, 2, 5, 5)),
    ms(HEADS, f(2, 3, 8), f(2, 5, 8), f(2, 5, 6), **TWO),
    ms(HEADS, f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), w(24), PADDING, **TWO),
    ms(HEADS, f(2, 3, 8), f(2, 5, 8), f(2, 5, 8), None, None, f(1, 2, 3, 5), **TWO, scale=0.2),
    *(
        ms(ROTARY, f(2, 3, 16), p, w(9, 4), w(9, 4), interleaved=i)
        for p, i in ((np.array([2]), 0), (ints(0, 9, 2, 3), 1))
    ),
    ms(ROTARY, f(2, 5, 3, 8), ints(0, 9, 2, 3), w(9, 4), w(9, 4)),
    *(ms(op, u8(3, 7), *IN, u8(7), *OUT, THIRD_SCALE, ZERO) for op in ("QLinearAdd", "QLinearMul")),
    quantized("QLinearSigmoid", 3, 7),
    *(
        Case("QLinearSoftmax", (u8(2, 3, 7), *IN, *SOFT), a, domain="com.microsoft")
        for a in ({"axis": 1, "opset": 11}, {"axis": 1, "opset": 13})
    ),
    ms("QGemm", u8(5, 3), *IN, u8(4, 5), *OUT, transA=1, transB=1),
    ms(
        *("QGemm", u8(3, 5), *IN, Const(u8(5, 4)), k(0.011, 0.023, 0.017, 0.031, dtype=np.float32)),
        *(Const(u8(4)), k(100, -2000, 30, 4, dtype=np.int32), GEMM_SCALE, OUT_ZERO),
    ),
    quantized("QLinearLeakyRelu", 3, 7, alpha=0.2),
    *(quantized("QLinearGlobalAveragePool", 1, 4, 3, 5, channels_last=c) for c in (0, 1)),
    quantized("QLinearAveragePool", 1, 2, 6, 5, **POOL),
    quantized("QLinearAveragePool", 1, 2, 6, 5, **POOL, count_include_pad=1),
    ms("QLinearConcat", *OUT, u8(2, 3), *IN, u8(2, 4), *OUT, axis=1),
]
