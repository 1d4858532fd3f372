"""The table of supported operators: ONNX op type -> translator, grouped by theme.

A translator is a function that turns one ONNX node (`NodeContext`) into Tensors. Operators outside
the default domain are listed as "DOMAIN:OP_TYPE".
"""

from __future__ import annotations

import operator
from collections.abc import Mapping

from scheduler.onnx_import.context import Translator, rounds_once
from scheduler.onnx_import.layers import (
    attention,
    contrib,
    conv,
    fourier,
    normalize,
    pool,
    quantize,
    recurrent,
    resize,
    sampling,
)
from scheduler.onnx_import.layers.contrib import CONTRIB
from scheduler.onnx_import.ops import (
    activation,
    constant,
    control,
    elementwise,
    index,
    matmul,
    movement,
    reduce,
    scatter,
    topk,
)
from scheduler.onnx_import.ops.elementwise import binary, unary, variadic
from scheduler.onnx_import.ops.reduce import reduction
from scheduler.tensor.tensor import Tensor

_BY_NAME: Mapping[str, Translator] = {
    # arithmetic
    "Abs": unary(Tensor.abs),
    "Acos": unary(activation.acos),
    "Acosh": unary(activation.acosh),
    "Add": binary(operator.add),
    "Asin": unary(activation.asin),
    "Asinh": unary(activation.asinh),
    "Atan": unary(activation.atan),
    "Atanh": unary(activation.atanh),
    "Ceil": unary(Tensor.ceil),
    "Clip": elementwise.clip,
    "Cos": unary(Tensor.cos),
    "Cosh": unary(activation.cosh),
    "Div": elementwise.divide,
    "Exp": unary(Tensor.exp),
    "Floor": unary(Tensor.floor),
    "Log": unary(Tensor.log),
    "Max": variadic(Tensor.maximum),
    "Mean": elementwise.mean,
    "Min": variadic(Tensor.minimum),
    "Mod": elementwise.modulo,
    "Mul": binary(operator.mul),
    "Neg": unary(operator.neg),
    "Pow": elementwise.power,
    "Reciprocal": unary(Tensor.reciprocal),
    "Round": unary(Tensor.round),
    "Shrink": elementwise.shrink,
    "Sign": unary(Tensor.sign),
    "Sin": unary(Tensor.sin),
    "Sinh": unary(activation.sinh),
    "Sqrt": unary(Tensor.sqrt),
    "Sub": binary(operator.sub),
    "Sum": variadic(operator.add),
    "Tan": unary(activation.tan),
    # comparison, logic, types
    "And": binary(operator.and_),
    "BitCast": elementwise.bit_cast,
    "BitShift": elementwise.bit_shift,
    "BitwiseAnd": binary(operator.and_),
    "BitwiseNot": unary(elementwise.invert),
    "BitwiseOr": binary(operator.or_),
    "BitwiseXor": binary(operator.xor),
    "Cast": elementwise.cast,
    "CastLike": elementwise.cast,
    "Dropout": elementwise.dropout,
    "Equal": binary(Tensor.eq),
    "Greater": binary(operator.gt),
    "Identity": elementwise.identity,
    "IsInf": elementwise.is_inf,
    "IsNaN": unary(lambda x: x.ne(x)),
    "Less": binary(operator.lt),
    "Not": unary(Tensor.logical_not),
    "Or": binary(operator.or_),
    "Where": elementwise.where,
    "Xor": binary(operator.xor),
    # activations
    "Celu": activation.celu,
    "Elu": activation.elu,
    "Erf": unary(Tensor.erf),
    "Gelu": activation.gelu,
    "Hardmax": constant.hardmax,
    "HardSigmoid": activation.hard_sigmoid,
    "HardSwish": unary(activation.hard_swish),
    "LeakyRelu": activation.leaky_relu,
    "LogSoftmax": activation.softmax,
    "Mish": unary(activation.mish),
    "PRelu": activation.prelu,
    "Relu": unary(Tensor.relu),
    "Selu": activation.selu,
    "Sigmoid": unary(Tensor.sigmoid),
    "Softmax": activation.softmax,
    "Softplus": unary(activation.softplus),
    "Softsign": unary(activation.softsign),
    "Tanh": unary(Tensor.tanh),
    # convolution, pooling, products
    "AveragePool": pool.average_pool,
    "CausalConvWithState": conv.causal_conv,
    "Col2Im": pool.col2im,
    "Conv": conv.conv,
    "ConvTranspose": conv.conv_transpose,
    "DeformConv": conv.deform_conv,
    "Det": matmul.determinant,
    "Einsum": matmul.einsum,
    "Gemm": matmul.gemm,
    "GlobalAveragePool": pool.global_average_pool,
    "GlobalLpPool": pool.global_lp_pool,
    "GlobalMaxPool": pool.global_max_pool,
    "LpPool": pool.lp_pool,
    "MatMul": matmul.matmul,
    "MaxPool": pool.max_pool,
    "MaxUnpool": pool.max_unpool,
    # normalization
    "BatchNormalization": normalize.batch_normalization,
    "GroupNormalization": normalize.group_normalization,
    "InstanceNormalization": normalize.instance_normalization,
    "LayerNormalization": normalize.layer_normalization,
    "LRN": pool.lrn,
    "LpNormalization": normalize.lp_normalization,
    "MeanVarianceNormalization": normalize.mean_variance_normalization,
    "RMSNormalization": normalize.rms_normalization,
    # A contributed operator, but ONNX Runtime's optimizers write it in the default domain.
    "SimplifiedLayerNormalization": contrib.simplified_layer_normalization,
    # attention
    "Attention": attention.attention,
    "LinearAttention": attention.linear_attention,
    "RotaryEmbedding": attention.rotary_embedding,
    # recurrent layers
    "GRU": recurrent.gru,
    "LSTM": recurrent.lstm,
    "RNN": recurrent.rnn,
    # reductions
    "ArgMax": index.argmax,
    "ArgMin": index.argmax,
    "ReduceL1": reduction(reduce.l1),
    "ReduceL2": reduction(reduce.l2),
    "ReduceLogSum": reduction(reduce.log_sum),
    "ReduceLogSumExp": reduction(reduce.log_sum_exp),
    "ReduceMax": reduction(Tensor.max),
    "ReduceMean": reduction(reduce.mean),
    "ReduceMin": reduction(Tensor.min),
    "ReduceProd": reduction(reduce.product),
    "ReduceSum": reduction(reduce.total, axes_input_since=13),
    "ReduceSumSquare": reduction(reduce.sum_square),
    # losses
    "NegativeLogLikelihoodLoss": normalize.negative_log_likelihood,
    "SoftmaxCrossEntropyLoss": normalize.softmax_cross_entropy,
    # positional patterns, cumulative sums and products
    "CumProd": reduce.cumulative,
    "CumSum": reduce.cumulative,
    "EyeLike": constant.eye_like,
    "OneHot": constant.one_hot,
    "Trilu": constant.trilu,
    # movement, indexing
    "Compress": index.compress,
    "Concat": movement.concat,
    "DepthToSpace": movement.depth_to_space,
    "Expand": movement.expand,
    "Flatten": movement.flatten,
    "Gather": index.gather,
    "GatherElements": index.gather_elements,
    "GatherND": index.gather_nd,
    "NonZero": index.nonzero,
    "Pad": movement.pad,
    "Reshape": movement.reshape,
    "Resize": resize.resize,
    "ReverseSequence": index.reverse_sequence,
    "Scatter": scatter.scatter_elements,
    "ScatterElements": scatter.scatter_elements,
    "ScatterND": scatter.scatter_nd,
    "Slice": index.slice_,
    "SpaceToDepth": movement.space_to_depth,
    "Split": movement.split,
    "Squeeze": movement.squeeze,
    "TensorScatter": scatter.tensor_scatter,
    "Tile": movement.tile,
    "TopK": topk.topk,
    "Transpose": movement.transpose,
    "Unique": index.unique,
    "Unsqueeze": movement.unsqueeze,
    "Upsample": resize.upsample,
    # sampling at run-time positions, regions, Fourier transforms
    "AffineGrid": sampling.affine_grid,
    "BlackmanWindow": fourier.blackman_window,
    "DFT": fourier.dft,
    "GridSample": sampling.grid_sample,
    "HammingWindow": fourier.hamming_window,
    "HannWindow": fourier.hann_window,
    "MelWeightMatrix": fourier.mel_weight_matrix,
    "NonMaxSuppression": sampling.non_max_suppression,
    "RoiAlign": sampling.roi_align,
    "STFT": fourier.stft,
    # control flow, sequences
    "ConcatFromSequence": control.concat_from_sequence,
    "If": control.if_,
    "Loop": control.loop,
    "Optional": control.optional,
    "OptionalGetElement": control.optional_get,
    "OptionalHasElement": control.optional_has,
    "Scan": control.scan,
    "SequenceAt": control.at,
    "SequenceConstruct": control.construct,
    "SequenceEmpty": control.empty,
    "SequenceErase": control.erase,
    "SequenceInsert": control.insert,
    "SequenceLength": control.length,
    "SplitToSequence": control.split_to_sequence,
    # quantization
    "ConvInteger": quantize.conv_integer,
    "DequantizeLinear": quantize.dequantize_linear,
    "DynamicQuantizeLinear": quantize.dynamic_quantize_linear,
    "MatMulInteger": quantize.matmul_integer,
    "QLinearConv": quantize.qlinear_conv,
    "QLinearMatMul": quantize.qlinear_matmul,
    "QuantizeLinear": quantize.quantize_linear,
    # constants known at import
    "Constant": constant.constant,
    "ConstantOfShape": constant.constant_of_shape,
    "Range": constant.arange,
    "Shape": constant.shape_of,
    "Size": constant.size_of,
    # other domains
    **CONTRIB,
}

# Operators whose fp16 form computes in float32 and rounds once, at the end. All others round only
# once anyway, or convert to float32 themselves. Some of these have no translator because ONNX
# defines them by a function.
ROUND_ONCE = frozenset(
    {"Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cosh", "Sinh", "Tan"}
    | {"Mean", "Mod", "Shrink", "Sum"}
    | {"Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LogSoftmax", "Mish", "Selu", "Sigmoid"}
    | {"Softmax", "Softplus", "Softsign", "SwiGLU", "Swish"}
    | {"CausalConvWithState", "Col2Im", "Conv", "ConvTranspose", "DeformConv", "Det", "Einsum"}
    | {"Gemm", "MatMul", "NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"}
    | {"AffineGrid", "DFT", "STFT", "CumProd", "CumSum"}
    | {"ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMean", "ReduceProd"}
    | {"ReduceSum", "ReduceSumSquare"}
    | {f"com.microsoft:{name}" for name in ("BiasGelu", "FastGelu", "Gelu", "QuickGelu")}
    | {f"com.microsoft:Fused{name}" for name in ("Conv", "Gemm", "MatMul")}
    | {"com.microsoft:TransposeMatMul"}
)
TRANSLATORS: Mapping[str, Translator] = {
    name: rounds_once(translator) if name in ROUND_ONCE else translator
    for name, translator in _BY_NAME.items()
}
