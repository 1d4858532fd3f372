"""Counts the arithmetic operations of an ONNX node from the shapes of its inputs and outputs.

A multiply-add counts as two operations, an elementwise function as one per element of the result
(layers of several steps: `PER_ELEMENT`), a reduction as one per input element, and data movement as
none. The counts describe the model, regardless of fusion, constant folding and fast algorithms.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import onnx
from onnx import helper

Shape = tuple[int, ...]
Shapes = Sequence[Shape | None]

_MOVES = """
Cast CastLike Identity Constant ConstantOfShape EyeLike Range Shape Size BitCast
Concat Split Slice Pad Reshape Flatten Squeeze Unsqueeze Transpose Expand Tile Dropout
DepthToSpace SpaceToDepth Gather GatherElements GatherND Scatter ScatterElements ScatterND
TensorScatter OneHot NonZero Compress Unique Trilu ReverseSequence
Optional OptionalGetElement OptionalHasElement ConcatFromSequence SplitToSequence
SequenceAt SequenceConstruct SequenceEmpty SequenceErase SequenceInsert SequenceLength
"""
MOVES = frozenset(_MOVES.split())  # operators without arithmetic
# Unknown work: shapes do not determine the number of iterations, or the branch.
BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})
# Operators with one operation per input element.
_REDUCTIONS = """
ArgMax ArgMin CumSum CumProd Hardmax TopK GlobalAveragePool GlobalLpPool GlobalMaxPool
ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum
ReduceSumSquare
"""
REDUCTIONS = frozenset(_REDUCTIONS.split())
# Operator -> operations per element of the result, such as mean, variance, scale and shift.
PER_ELEMENT: Mapping[str, int] = {
    "BatchNormalization": 2,
    "GroupNormalization": 7,
    "InstanceNormalization": 7,
    "LayerNormalization": 7,
    "LogSoftmax": 4,
    "LpNormalization": 3,
    "MeanVarianceNormalization": 5,
    "RMSNormalization": 4,
    "Softmax": 4,
}


def flops(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int | None:
    """Return the number of operations of a node, or None if the shapes do not determine it.

    A shape is None if it is unknown. Operators of other domains count like the operator of the same
    name in the default domain.
    """
    if node.op_type in MOVES:
        return 0
    if node.op_type in BODIES:
        return None
    try:
        return _count(node, inputs, outputs)
    except (LookupError, TypeError, ValueError, ArithmeticError):
        return None  # the shapes do not fit the operator; the importer reports that


def _count(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    op = node.op_type
    if op in _PRODUCTS:
        return 2 * _PRODUCTS[op](node, inputs, outputs)
    if op in ("AveragePool", "LpPool", "MaxPool"):
        kernel: Sequence[int] = _attribute(node, "kernel_shape", ())
        return prod(_known(outputs, 0)) * prod(kernel)
    if op in REDUCTIONS:
        return prod(_known(inputs, 0))
    if op == "Resize":
        return prod(_known(outputs, 0)) * _taps(node, inputs, outputs)
    return PER_ELEMENT.get(op, 1) * prod(_known(outputs, 0))


def _known(shapes: Shapes, index: int) -> Shape:
    found = shapes[index]
    if found is None:
        raise ValueError
    return found


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    for attribute in node.attribute:
        if attribute.name == name:
            return helper.get_attribute_value(attribute)
    return default


Count = Callable[[onnx.NodeProto, Shapes, Shapes], int]


def _convolution(weight: int) -> Count:
    """Return the count of a convolution whose weight is input `weight`."""
    return lambda _, i, o: prod(_known(o, 0)) * prod(_known(i, weight)[1:])


def _product(left: int) -> Count:
    """Return the count of a matrix product whose first factor is input `left`."""

    def count(_: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
        return prod(_known(outputs, 0)) * _known(inputs, left)[-1]

    return count


def _gemm(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    first = 0 if _attribute(node, "transA", 0) else -1
    return prod(_known(outputs, 0)) * _known(inputs, 0)[first]


def _einsum(node: onnx.NodeProto, inputs: Shapes, _: Shapes) -> int:
    equation = _attribute(node, "equation", b"").decode().replace(" ", "")
    terms = equation.partition("->")[0].split(",")
    sizes: dict[str, int] = {}
    batch = 1
    for term, shape in zip(terms, inputs, strict=True):
        if shape is None:
            raise ValueError
        letters = term.replace("...", "")
        before = term.index("...") if "..." in term else len(letters)
        inner = len(shape) - len(letters)
        batch = max(batch, prod(shape[before : before + inner]))
        sizes |= zip(letters, shape[:before] + shape[before + inner :], strict=True)
    return batch * prod(sizes.values()) * max(1, len(terms) - 1)


def _recurrent(_: onnx.NodeProto, inputs: Shapes, __: Shapes) -> int:
    # Each step multiplies the input and the previous hidden state by the weights of all gates.
    steps, batch, _features = _known(inputs, 0)
    return steps * batch * (prod(_known(inputs, 1)) + prod(_known(inputs, 2)))


def _attention(_: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    # The scores of every query and key, and their product with the values.
    keys = _known(inputs, 1)[-2]
    return keys * (prod(_known(inputs, 0)) + prod(_known(outputs, 0)))


def _taps(node: onnx.NodeProto, inputs: Shapes, outputs: Shapes) -> int:
    """Return the operations per result of a Resize: two for each element that it reads."""
    mode = _attribute(node, "mode", b"nearest").decode()
    axes = sum(a != b for a, b in zip(_known(inputs, 0), _known(outputs, 0), strict=True))
    taps = {"linear": 2, "cubic": 4}.get(mode, 0)
    return 2 * int(taps**axes) if taps and axes else 0


# Operator -> function of (node, input shapes, output shapes) that returns its multiply-adds.
_PRODUCTS: Mapping[str, Count] = {
    "Attention": _attention,
    "Conv": _convolution(1),
    "ConvInteger": _convolution(1),
    "ConvTranspose": lambda _, i, __: prod(_known(i, 0)) * prod(_known(i, 1)[1:]),
    "DeformConv": _convolution(1),
    "Einsum": _einsum,
    "GRU": _recurrent,
    "Gemm": _gemm,
    "LSTM": _recurrent,
    "MatMul": _product(0),
    "MatMulInteger": _product(0),
    "QLinearConv": _convolution(3),
    "QLinearMatMul": _product(0),
    "RNN": _recurrent,
}
