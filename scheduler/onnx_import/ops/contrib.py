"""Translators of operators of com.microsoft that optimizers write: activations, products, norms.

Formulas: ONNX Runtime's documentation of its contributed operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops.conv import conv
from scheduler.onnx_import.ops.matmul import gemm
from scheduler.onnx_import.ops.normalize import layer_norm, rms_norm, wide
from scheduler.tensor.tensor import Tensor

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
    """Translate FastGelu: the tanh formula, of x + bias where one is given."""
    x = ctx.tensor(0)
    return (x + ctx.tensor(1) if ctx.has(1) else x).gelu("tanh")


def quick_gelu(ctx: NodeContext) -> Value:
    """Translate QuickGelu: x sigmoid(alpha x), for alpha 1.702 near to GELU (Hendrycks 2016)."""
    x = ctx.tensor(0)
    return x * (x * ctx.number("alpha", 1.702)).sigmoid()


def fused_conv(ctx: NodeContext) -> Value:
    """Translate FusedConv: activation(Conv(x, w, b) + z), z optional."""
    y = conv(ctx)
    return _activated(ctx, y + ctx.tensor(3) if ctx.has(3) else y)


def fused_gemm(ctx: NodeContext) -> Value:
    """Translate FusedGemm: activation(alpha A' B' + beta C)."""
    return _activated(ctx, gemm(ctx))


def fused_matmul(ctx: NodeContext) -> Value:
    """Translate FusedMatMul: alpha A' B', of matrices or batches of them.

    transBatchA and transBatchB move the first axis behind the others before the product.

    Raises:
        ModelError: a vector is to be transposed.
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
    """Translate SimplifiedLayerNormalization: no mean is taken; x/rms(x)*scale, and 1/rms(x)."""
    x = ctx.tensor(0)
    first = ctx.integer("axis", -1) % x.ndim
    axes = tuple(range(first, x.ndim))
    results: list[Value] = [*rms_norm(x, axes, ctx.number("epsilon", 1e-5), ctx.tensor(1))]
    return results[: max(1, ctx.outputs)]


def embed_layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate EmbedLayerNormalization: of word + position + segment embedding, (N, S, W).

    Inputs: ids (N, S), segment ids (optional), word, position and segment embedding (optional),
    gamma, beta, mask (N, S) and position ids (optional). Outputs: the result, the number of ones in
    each row of the mask (zeros without one), the sum of the embeddings.
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
    """Translate SkipLayerNormalization: of x + skip + bias; outputs mean, 1/std and the sum, too.

    Inputs: x, skip, gamma, beta (optional), bias (optional).
    """
    total = _skip_sum(ctx, 4)
    beta = ctx.tensor(3) if ctx.has(3) else None
    axis = (total.ndim - 1,)
    parts = layer_norm(total, axis, ctx.number("epsilon", 1e-12), ctx.tensor(2), beta)
    return [*parts, total][: max(1, ctx.outputs)]


def skip_simplified_layer_normalization(ctx: NodeContext) -> Sequence[Value]:
    """Translate SkipSimplifiedLayerNormalization: the same without mean and beta.

    Inputs: x, skip, gamma, bias (optional). The second output, the mean, is never computed by
    anyone; zeros stand for it.
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
