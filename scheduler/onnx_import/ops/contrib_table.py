"""The table of supported operators of com.microsoft, which ONNX Runtime leaves in files."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence

from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.ops import (
    activation,
    contrib,
    contrib_attention,
    contrib_products,
    contrib_quantized,
    quantize,
    quantized_lstm,
    rotary,
)
from scheduler.tensor.tensor import Tensor

_OPERATORS: Mapping[str, Callable[[NodeContext], Value | Sequence[Value]]] = {
    "Attention": contrib_attention.packed_attention,
    "BiasGelu": contrib.bias_gelu,
    "DequantizeLinear": quantize.dequantize_linear,
    "DynamicQuantizeLSTM": quantized_lstm.dynamic_quantize_lstm,
    "DynamicQuantizeMatMul": contrib_products.dynamic_quantize_matmul,
    "EmbedLayerNormalization": contrib.embed_layer_normalization,
    "FastGelu": contrib.fast_gelu,
    "FusedConv": contrib.fused_conv,
    "FusedGemm": contrib.fused_gemm,
    "FusedMatMul": contrib.fused_matmul,
    "Gelu": activation.gelu,
    "MatMulIntegerToFloat": contrib_products.matmul_integer_to_float,
    "MatMulNBits": contrib_products.matmul_nbits,
    "MultiHeadAttention": contrib_attention.multi_head_attention,
    "NhwcMaxPool": contrib_quantized.nhwc_max_pool,
    "QAttention": contrib_attention.quantized_attention,
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
    "QuickGelu": contrib.quick_gelu,
    "RotaryEmbedding": rotary.contrib_rotary_embedding,
    "SkipLayerNormalization": contrib.skip_layer_normalization,
    "SkipSimplifiedLayerNormalization": contrib.skip_simplified_layer_normalization,
    "TransposeMatMul": contrib.fused_matmul,
}
# By qualified name, as the table of operators lists them.
CONTRIB = {f"com.microsoft:{name}": translator for name, translator in _OPERATORS.items()}
