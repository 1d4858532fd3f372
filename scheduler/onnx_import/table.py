"""The table of supported operators: ONNX op type -> translator, sorted by theme.

A translator gets a NodeContext and returns the node's outputs (one value, or a list of them). It
reads the opset from the context where the operator's definition changed.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping

from scheduler.onnx_import import (
    activation,
    constant,
    conv,
    elementwise,
    index,
    matmul,
    movement,
    normalize,
    pool,
    reduce,
    resize,
)
from scheduler.onnx_import.context import NodeContext, Value
from scheduler.onnx_import.elementwise import binary, unary, variadic
from scheduler.onnx_import.reduce import reduction
from scheduler.tensor import Tensor

Translator = Callable[[NodeContext], Value | list[Value]]

TRANSLATORS: Mapping[str, Translator] = {
    # arithmetic
    "Abs": unary(Tensor.abs),
    "Add": binary(operator.add),
    "Ceil": unary(Tensor.ceil),
    "Clip": elementwise.clip,
    "Cos": unary(Tensor.cos),
    "Div": elementwise.divide,
    "Exp": unary(Tensor.exp),
    "Floor": unary(Tensor.floor),
    "Log": unary(Tensor.log),
    "Max": variadic(elementwise.maximum),
    "Mean": elementwise.mean,
    "Min": variadic(elementwise.minimum),
    "Mod": elementwise.modulo,
    "Mul": binary(operator.mul),
    "Neg": unary(operator.neg),
    "Pow": elementwise.power,
    "Reciprocal": unary(Tensor.reciprocal),
    "Round": unary(Tensor.round),
    "Sign": unary(Tensor.sign),
    "Sin": unary(Tensor.sin),
    "Sqrt": unary(Tensor.sqrt),
    "Sub": binary(operator.sub),
    "Sum": variadic(operator.add),
    # comparison, logic, types
    "And": binary(operator.and_),
    "Cast": elementwise.cast,
    "CastLike": elementwise.cast,
    "Dropout": elementwise.dropout,
    "Equal": binary(elementwise.equal),
    "Greater": binary(operator.gt),
    "GreaterOrEqual": binary(operator.ge),
    "Identity": elementwise.identity,
    "Less": binary(operator.lt),
    "LessOrEqual": binary(operator.le),
    "Not": unary(elementwise.logical_not),
    "Or": binary(operator.or_),
    "Where": elementwise.where,
    "Xor": binary(operator.xor),
    # activations
    "Celu": activation.celu,
    "Elu": activation.elu,
    "Erf": unary(Tensor.erf),
    "Gelu": activation.gelu,
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
    "ThresholdedRelu": activation.thresholded_relu,
    # convolution, pooling, products
    "AveragePool": pool.average_pool,
    "Conv": conv.conv,
    "ConvTranspose": conv.conv_transpose,
    "Gemm": matmul.gemm,
    "GlobalAveragePool": pool.global_average_pool,
    "GlobalMaxPool": pool.global_max_pool,
    "MatMul": matmul.matmul,
    "MaxPool": pool.max_pool,
    # normalisation
    "BatchNormalization": normalize.batch_normalization,
    "InstanceNormalization": normalize.instance_normalization,
    "LayerNormalization": normalize.layer_normalization,
    # reductions
    "ArgMax": index.argmax,
    "ArgMin": index.argmax,
    "ReduceL1": reduction(reduce.l1),
    "ReduceL2": reduction(reduce.l2),
    "ReduceLogSum": reduction(reduce.log_sum),
    "ReduceLogSumExp": reduction(reduce.log_sum_exp),
    "ReduceMax": reduction(reduce.maximum),
    "ReduceMean": reduction(reduce.mean),
    "ReduceMin": reduction(reduce.minimum),
    "ReduceProd": reduction(reduce.product),
    "ReduceSum": reduction(reduce.total, axes_input_since=13),
    "ReduceSumSquare": reduction(reduce.sum_square),
    # movement, indexing
    "Concat": movement.concat,
    "DepthToSpace": movement.depth_to_space,
    "Expand": movement.expand,
    "Flatten": movement.flatten,
    "Gather": index.gather,
    "Pad": movement.pad,
    "Reshape": movement.reshape,
    "Resize": resize.resize,
    "Slice": index.slice_,
    "SpaceToDepth": movement.space_to_depth,
    "Split": movement.split,
    "Squeeze": movement.squeeze,
    "Tile": movement.tile,
    "Transpose": movement.transpose,
    "Unsqueeze": movement.unsqueeze,
    "Upsample": resize.upsample,
    # known while importing
    "Constant": constant.constant,
    "ConstantOfShape": constant.constant_of_shape,
    "Range": constant.arange,
    "Shape": constant.shape_of,
    "Size": constant.size_of,
}
