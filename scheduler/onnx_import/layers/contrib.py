"""Translators of com.microsoft operators: activations, products, normalization and attention.

ONNX Runtime's optimizers and quantization tools write these contributed operators. Formulas: ONNX
Runtime's documentation of them. In shapes, N is the batch, S the number of queries, T the number of
keys and W a width.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import Array, NodeContext, Value
from scheduler.onnx_import.layers import attention, contrib_quantized, quantize
from scheduler.onnx_import.layers.attention import Mask, join_heads, scaled_dot, split_heads
from scheduler.onnx_import.layers.conv import conv
from scheduler.onnx_import.layers.normalize import layer_norm, rms_norm, wide
from scheduler.onnx_import.layers.quantize import dynamically_quantized, real_product, scheme_at
from scheduler.onnx_import.ops import activation
from scheduler.onnx_import.ops.matmul import gemm
from scheduler.tensor.tensor import Tensor

# Activation -> function of (x, activation_params).
_FUSED: dict[str, Callable[[Tensor, list[float]], Tensor]] = {
    "": lambda x, _: x,
    "Clip": lambda x, p: x.clip(*p),
    "HardSigmoid": lambda x, p: (x * p[0] + p[1]).clip(0.0, 1.0),
    "HardSwish": lambda x, _: x * (x * (1.0 / 6.0) + 0.5).clip(0.0, 1.0),
    "LeakyRelu": lambda x, p: (x < 0).where(x * (p[0] if p else 0.01), x),
    "Relu": lambda x, _: x.relu(),
    "Sigmoid": lambda x, _: x.sigmoid(),
    "Tanh": lambda x, _: x.tanh(),
}


def bias_gelu(ctx: NodeContext) -> Value:
    """Translate BiasGelu: exact GELU of x + bias."""
    return (ctx.tensor(0) + ctx.tensor(1)).gelu()


def fast_gelu(ctx: NodeContext) -> Value:
    """Translate FastGelu: the tanh formula of x, or of x + bias."""
    x = ctx.tensor(0)
    return (x + ctx.tensor(1) if ctx.has(1) else x).gelu("tanh")


def quick_gelu(ctx: NodeContext) -> Value:
    """Translate QuickGelu: x sigmoid(alpha x); alpha 1.702 approximates GELU (Hendrycks 2016)."""
    x = ctx.tensor(0)
    return x * (x * ctx.number("alpha", 1.702)).sigmoid()


def fused_conv(ctx: NodeContext) -> Value:
    """Translate FusedConv: activation(Conv(x, w, b) + z) with an optional z."""
    y = conv(ctx)
    return _activated(ctx, y + ctx.tensor(3) if ctx.has(3) else y)


def fused_gemm(ctx: NodeContext) -> Value:
    """Translate FusedGemm: activation(alpha A' B' + beta C), A' and B' transposed if requested."""
    return _activated(ctx, gemm(ctx))


def fused_matmul(ctx: NodeContext) -> Value:
    """Translate FusedMatMul: alpha A' B' of matrices or batches of matrices.

    transA and transB transpose matrices. transBatchA and transBatchB first move axis 0 to the
    second-to-last position.
    """
    operands = []
    for index, name in enumerate("AB"):
        x = ctx.tensor(index)
        if ctx.integer(f"transBatch{name}", 0):
            x = x.permute((*range(1, x.ndim - 1), 0, x.ndim - 1))
        if ctx.integer(f"trans{name}", 0):
            if x.ndim < 2:
                raise ModelError(f"trans{name}=1 needs a matrix, found shape {x.shape}")
            x = x.transpose()
        operands.append(x)
    alpha = ctx.number("alpha", 1.0)
    y = operands[0].matmul(operands[1])
    return y if alpha == 1.0 else y * alpha


def simplified_layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate SimplifiedLayerNormalization: x/rms(x)*scale, and 1/rms(x)."""
    x = ctx.tensor(0)
    first = ctx.integer("axis", -1) % x.ndim
    axes = tuple(range(first, x.ndim))
    results: list[Value] = [*rms_norm(x, axes, ctx.number("epsilon", 1e-5), ctx.tensor(1))]
    return results[: max(1, ctx.outputs)]


def embed_layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate EmbedLayerNormalization: LayerNormalization of a sum of embeddings (N, S, W).

    Inputs: ids (N, S), segment ids, word, position and segment embeddings, gamma, beta, mask (N, S)
    and position ids. Segments, mask and position ids are optional. Outputs: the result, the number
    of ones in each row of the mask (0 without a mask), and the sum of the embeddings.
    """
    ids = ctx.tensor(0)
    batch, steps = ids.shape
    total = wide(ctx.tensor(2)).gather(ids, 0)
    positions = wide(ctx.tensor(3))
    total = total + (positions.gather(ctx.tensor(8), 0) if ctx.has(8) else positions[:steps])
    if ctx.has(1):
        total = total + wide(ctx.tensor(4)).gather(ctx.tensor(1), 0)
    y = layer_norm(total, (2,), ctx.number("epsilon", 1e-12), ctx.tensor(5), ctx.tensor(6))[0]
    dtype = ctx.tensor(2).dtype
    kept: Tensor = Tensor.zeros(batch, dtype=dt.int32)
    if ctx.has(7):
        kept = ctx.tensor(7).eq(1).cast(dt.int32).sum(1)
    return [y.as_type(dtype), kept, total.as_type(dtype)][: max(1, ctx.outputs)]


def skip_layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate SkipLayerNormalization of x + skip + bias: the result, mean, 1/std and the sum."""
    total = _skip_sum(ctx, 4)
    beta = ctx.tensor(3) if ctx.has(3) else None
    axis = (total.ndim - 1,)
    parts = layer_norm(total, axis, ctx.number("epsilon", 1e-12), ctx.tensor(2), beta)
    return [*parts, total][: max(1, ctx.outputs)]


def skip_simplified_layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate SkipSimplifiedLayerNormalization: the same without mean and beta.

    Inputs: x, skip, gamma and bias (optional). The second output, the mean, is unused by
    definition; it is zeros here.
    """
    total = _skip_sum(ctx, 3)
    axis = (total.ndim - 1,)
    y, inverse = rms_norm(total, axis, ctx.number("epsilon", 1e-12), ctx.tensor(2))
    return [y, inverse * 0.0, inverse, total][: max(1, ctx.outputs)]


def _skip_sum(ctx: NodeContext, bias: int) -> Tensor:
    x = ctx.tensor(0)
    total = wide(x) + wide(ctx.tensor(1))
    return (total + wide(ctx.tensor(bias)) if ctx.has(bias) else total).as_type(x.dtype)


def _activated(ctx: NodeContext, y: Tensor) -> Tensor:
    name = ctx.text("activation", "")
    if name not in _FUSED:
        raise ModelError(f"activation {name!r} is not supported; expected one of {sorted(_FUSED)}")
    parameters = [float(v) for v in ctx.attribute("activation_params") or ()]
    if name == "LeakyRelu" and not parameters and ctx.attribute("activation_alpha") is not None:
        parameters = [ctx.number("activation_alpha", 0.01)]
    return _FUSED[name](y, parameters)


# --- Products with quantized weights of com.microsoft -----------------------------------------


def dynamic_quantize_matmul(ctx: NodeContext) -> Value:
    """Translate DynamicQuantizeMatMul: A B + bias, with A (float32) quantized by its own range.

    Inputs: A, B, scale and zero point of B (one, or one per column), and bias. A becomes uint8.
    """
    left, quantized = dynamically_quantized(ctx.tensor(0))
    product = real_product(left, quantized, scheme_at(ctx, 2, 3), ctx.tensor(1))
    return _with_bias(ctx, product, 4)


def matmul_integer_to_float(ctx: NodeContext) -> Value:
    """Translate MatMulIntegerToFloat; inputs: A, B, both scales, both zero points, bias."""
    left, right = scheme_at(ctx, 2, 4), scheme_at(ctx, 3, 5)
    return _with_bias(ctx, real_product(left, ctx.tensor(0), right, ctx.tensor(1)), 6)


def matmul_nbits(ctx: NodeContext) -> Value:
    """Translate MatMulNBits: A (..., K) times B' + bias, with B (N, K) packed in 2, 4 or 8 bits.

    Each block of B along K has a scale and a zero point, which is packed like B or a float. B and
    its zero points must be constants. Reordered columns (g_idx) are not supported. The product is
    computed in float32; `accuracy_level` is ignored.
    """
    if ctx.has(4):
        raise ModelError("g_idx is not supported; export without reordered columns")
    bits, block = ctx.integer("bits", 4), ctx.integer("block_size", 0)
    size, count = ctx.integer("K", 0), ctx.integer("N", 0)
    if bits not in (2, 4, 8) or block < 16 or size < 1 or count < 1:
        raise ModelError(f"expected bits of 2, 4 or 8, found bits={bits}, block_size={block}")
    blocks = -(-size // block)
    values = _unpacked(ctx.const(1, "B").reshape(count, -1), bits)
    a, scales = ctx.tensor(0), ctx.tensor(2)
    if values.shape != (count, blocks * block) or scales.size != count * blocks:
        raise ModelError(f"B and its scales do not hold {count} x {blocks} blocks of {block}")
    zero: Tensor | float = float(1 << (bits - 1))
    if ctx.has(3):
        zero = _zero_points(ctx.const(3, "zero points"), count, blocks, bits)
    parts = Tensor.weight(values.reshape(count, blocks, block)).cast(dt.float32) - zero
    weight = (parts * scales.cast(dt.float32).reshape((count, blocks, 1))).reshape((count, -1))
    product = a.cast(dt.float32).matmul(weight[:, :size].transpose())
    return _with_bias(ctx, product, 5).as_type(a.dtype)


def _with_bias(ctx: NodeContext, product: Tensor, index: int) -> Tensor:
    return product + ctx.tensor(index).cast(product.dtype) if ctx.has(index) else product


def _unpacked(packed: Array, bits: int) -> Array:
    """Return the unsigned numbers (rows, n) packed in bytes, lowest bits first."""
    shifts = np.arange(0, 8, bits, dtype=np.uint8)
    numbers = (packed.astype(np.uint8)[..., None] >> shifts) & np.uint8((1 << bits) - 1)
    return np.asarray(numbers.reshape(packed.shape[0], -1), order="C")


def _zero_points(given: Array, count: int, blocks: int, bits: int) -> Tensor:
    """Return zero points (N, blocks, 1) in float32."""
    found = given.reshape(count, -1)
    found = _unpacked(found, bits)[:, :blocks] if found.dtype == np.uint8 else found
    if found.shape != (count, blocks):
        raise ModelError(f"expected zero points of {count} x {blocks} blocks, found {given.shape}")
    return Tensor.weight(np.asarray(found[..., None], np.float32, order="C"))


# --- Attention, QAttention and MultiHeadAttention of com.microsoft, without caches ------------

# Default of mask_filter_value, which is added to the scores of masked keys.
_MASKED = -10000.0


def packed_attention(ctx: NodeContext) -> Value:
    """Translate Attention of x (N, S, W), with the weights of Q, K and V concatenated.

    Inputs: x, weights, bias, mask, past, and an addend to the scores. All after the weights are
    optional. The mask is (N, T), (N, S, T), or (N,) with the numbers of keys.
    """
    _check_extras(ctx, past=4)
    x, weight = ctx.tensor(0), ctx.tensor(1)
    joined = x.matmul(weight)
    if ctx.has(2):
        joined = joined + ctx.tensor(2)
    sizes = ctx.ints_attribute("qkv_hidden_sizes") or [joined.shape[2] // 3] * 3
    return _attend(ctx, *_heads(ctx, joined, sizes), mask=3, addend=5)


def _check_extras(ctx: NodeContext, past: int) -> None:
    """Raise ModelError for features of Attention and QAttention that are not supported."""
    if ctx.has(past) or ctx.outputs > 1:
        raise ModelError("a cache (past, present) is not supported")
    if ctx.integer("do_rotary", 0):
        raise ModelError("do_rotary=1 is not supported")


def quantized_attention(ctx: NodeContext) -> Value:
    """Translate QAttention; inputs: x, weights, bias, both scales, mask, both zero points."""
    _check_extras(ctx, past=8)
    left, right = scheme_at(ctx, 3, 6), scheme_at(ctx, 4, 7)
    joined = real_product(left, ctx.tensor(0), right, ctx.tensor(1)) + ctx.tensor(2)
    heads = _heads(ctx, joined, [joined.shape[2] // 3] * 3)
    # No input has the number `ctx.count`, so there is no addend.
    return _attend(ctx, *heads, mask=5, addend=ctx.count)


def _heads(ctx: NodeContext, joined: Tensor, sizes: list[int]) -> tuple[Tensor, Tensor, Tensor]:
    heads = ctx.integer("num_heads", 0)
    q, k, v = (split_heads(part, heads) for part in joined.split(sizes, axis=2))
    return q, k, v


def multi_head_attention(ctx: NodeContext) -> Value:
    """Translate MultiHeadAttention: Q (N, S, W), K and V (N, T, W) or (N, heads, T, E)."""
    if any(ctx.has(i) for i in (6, 7, 8, 9)) or ctx.outputs > 1:
        raise ModelError("a cache (past_key, past_value) is not supported")
    if not (ctx.has(1) and ctx.has(2)) or ctx.tensor(0).ndim != 3:
        raise ModelError("packed queries, keys and values are not supported; expected three inputs")
    heads = ctx.integer("num_heads", 0)
    parts = [ctx.tensor(i) for i in range(3)]
    if ctx.has(3):
        widths = [p.shape[2] if p.ndim == 3 else p.shape[1] * p.shape[3] for p in parts]
        biases = ctx.tensor(3).split(widths, axis=0)
        parts = [p + b if p.ndim == 3 else p for p, b in zip(parts, biases, strict=True)]
    q, k, v = (split_heads(p, heads) if p.ndim == 3 else p for p in parts)
    return _attend(ctx, q, k, v, mask=4, addend=5)


def _attend(ctx: NodeContext, q: Tensor, k: Tensor, v: Tensor, *, mask: int, addend: int) -> Tensor:
    """Return attention (N, S, W) of heads; `mask` and `addend` are numbers of optional inputs."""
    keys, rows = k.shape[2], q.shape[2]
    added = ctx.tensor(addend) if ctx.has(addend) else None
    if ctx.has(mask):
        kept = _kept(ctx.tensor(mask), k.shape[0], keys)
        filter_value = ctx.number("mask_filter_value", _MASKED)
        more = kept.where(0.0, Tensor(filter_value, dt.float32))
        added = more if added is None else added + more
    whole = Mask(added=added)
    if ctx.integer("unidirectional", 0):
        ahead = Tensor.arange(keys) - Tensor.arange(rows).unsqueeze(1)
        whole = whole.restricted(ahead <= keys - rows, may_be_empty=rows > keys)
    scale = ctx.number("scale", 0.0) or 1.0 / math.sqrt(q.shape[3])
    return join_heads(scaled_dot(q, k, v, whole, scale)[0])


def _kept(mask: Tensor, batch: int, keys: int) -> Tensor:
    """Return the mask of valid keys, bool (N, 1, 1 or S, T), from a node's mask input."""
    if mask.shape == (batch,):
        return Tensor.arange(keys) < mask.reshape((batch, 1, 1, 1))
    if mask.shape == (batch, keys):
        return mask.reshape((batch, 1, 1, keys)).bool()
    if mask.ndim == 3 and mask.shape[::2] == (batch, keys):
        return mask.unsqueeze(1).bool()
    raise ModelError(
        f"a mask of shape {mask.shape} is not supported; expected lengths ({batch},), "
        f"({batch}, {keys}) or ({batch}, queries, {keys})"
    )


# --- The table of supported com.microsoft operators -------------------------------------------

_OPERATORS: Mapping[str, Callable[[NodeContext], Value | Sequence[Value]]] = {
    "Attention": packed_attention,
    "BiasGelu": bias_gelu,
    "DequantizeLinear": quantize.dequantize_linear,
    "DynamicQuantizeLSTM": contrib_quantized.dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": dynamic_quantize_matmul,
    "EmbedLayerNormalization": embed_layer_normalization,
    "FastGelu": fast_gelu,
    "FusedConv": fused_conv,
    "FusedGemm": fused_gemm,
    "FusedMatMul": fused_matmul,
    "Gelu": activation.gelu,
    "MatMulIntegerToFloat": matmul_integer_to_float,
    "MatMulNBits": matmul_nbits,
    "MultiHeadAttention": multi_head_attention,
    "NhwcMaxPool": contrib_quantized.nhwc_max_pool,
    "QAttention": quantized_attention,
    "QGemm": contrib_quantized.qgemm,
    "QLinearAdd": contrib_quantized.qlinear_binary(operator.add),
    "QLinearAveragePool": contrib_quantized.qlinear_average_pool,
    "QLinearConcat": contrib_quantized.qlinear_concat,
    "QLinearConv": contrib_quantized.qlinear_conv_any_layout,
    "QLinearGlobalAveragePool": contrib_quantized.qlinear_global_average_pool,
    "QLinearLeakyRelu": contrib_quantized.qlinear_leaky_relu,
    "QLinearMul": contrib_quantized.qlinear_binary(operator.mul),
    "QLinearSigmoid": contrib_quantized.qlinear_unary(Tensor.sigmoid),
    "QLinearSoftmax": contrib_quantized.qlinear_softmax,
    "QLinearWhere": contrib_quantized.qlinear_where,
    "QuantizeLinear": quantize.quantize_linear,
    "QuickGelu": quick_gelu,
    "RotaryEmbedding": attention.contrib_rotary_embedding,
    "SkipLayerNormalization": skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": skip_simplified_layer_normalization,
    "TransposeMatMul": fused_matmul,
}
# "com.microsoft:OP_TYPE" -> translator.
CONTRIB = {f"com.microsoft:{name}": translator for name, translator in _OPERATORS.items()}
