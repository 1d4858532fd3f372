"""Operators of com.microsoft, which ONNX Runtime's exporters and optimizers leave in files."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops import (
    activation,
    contrib,
    contrib_attention,
    contrib_quantized,
    rotary,
)
from scheduler.tensor import Tensor

_OPERATORS: Mapping[str, Callable[[NodeContext], Value | Sequence[Value]]] = {
    "Attention": contrib_attention.packed_attention,
    "BiasGelu": contrib.bias_gelu,
    "FastGelu": contrib.fast_gelu,
    "FusedConv": contrib.fused_conv,
    "FusedGemm": contrib.fused_gemm,
    "FusedMatMul": contrib.fused_matmul,
    "Gelu": activation.gelu,
    "MultiHeadAttention": contrib_attention.multi_head_attention,
    "QGemm": contrib_quantized.qgemm,
    "QLinearAdd": contrib_quantized.qlinear_binary(operator.add),
    "QLinearAveragePool": contrib_quantized.qlinear_average_pool,
    "QLinearConcat": contrib_quantized.qlinear_concat,
    "QLinearGlobalAveragePool": contrib_quantized.qlinear_global_average_pool,
    "QLinearLeakyRelu": contrib_quantized.qlinear_leaky_relu,
    "QLinearMul": contrib_quantized.qlinear_binary(operator.mul),
    "QLinearSigmoid": contrib_quantized.qlinear_unary(Tensor.sigmoid),
    "QLinearSoftmax": contrib_quantized.qlinear_softmax,
    "QuickGelu": contrib.quick_gelu,
    "RotaryEmbedding": rotary.contrib_rotary_embedding,
    "SkipLayerNormalization": contrib.skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": contrib.skip_simplified_layer_normalization,
}
# By qualified name, as the table of operators lists them.
CONTRIB = {f"com.microsoft:{name}": translator for name, translator in _OPERATORS.items()}
