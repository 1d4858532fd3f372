"""What of ONNX's test suite is not meant to work, and why; what is meant to, by operator and type.

A test that an exclusion matches must be refused with a typed error that says what its `says` finds.
One that works after all fails as "stale": then the exclusion goes. docs/onnx-suite.md repeats the
reasons for users.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

import onnx
from onnx import TensorProto


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model consists of; tables match on it.

    Attributes:
        operators: of all nodes, also in nested graphs; with their domain where it is not the
            default one ("ai.onnx.ml:Binarizer").
        types: of inputs and outputs: ONNX's names of element types, "sequence", "optional".
    """

    operators: frozenset[str]
    types: frozenset[str]


def traits_of(model: onnx.ModelProto) -> Traits:
    operators = {_qualified(node) for node in _nodes(model.graph)}
    types = {_type_of(value.type) for value in (*model.graph.input, *model.graph.output)}
    return Traits(frozenset(operators), frozenset(types))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _qualified(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def _type_of(value: onnx.TypeProto) -> str:
    kind = value.WhichOneof("value")
    if kind == "tensor_type":
        return str(TensorProto.DataType.Name(value.tensor_type.elem_type)).lower()
    return str(kind).removesuffix("_type")


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Tests that must be refused: any field but the first two matches.

    Attributes:
        reason: for users; tests are counted by it.
        says: regular expression that the refusal's message must contain.
        operators, domains, types: as in `Traits`.
        tests: patterns of names.
    """

    reason: str
    says: str
    operators: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    tests: tuple[str, ...] = ()

    def matches(self, name: str, traits: Traits) -> bool:
        domains = {op.rpartition(":")[0] for op in traits.operators}
        return bool(
            self.operators & traits.operators
            or self.domains & domains
            or self.types & traits.types
            or any(fnmatchcase(name, pattern) for pattern in self.tests)
        )


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


UNSUPPORTED = r"not supported"

# The first that matches counts.
EXCLUSIONS: tuple[Exclusion, ...] = (
    Exclusion(
        "text: strings are prepared before a model runs",
        r"(?i)string|not supported",
        _names("RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"),
        types=_names("string"),
    ),
    Exclusion(
        "sequences and optionals as inputs or outputs: a program has a fixed list of tensors",
        r"expected a tensor, found: (sequence|optional)",
        types=_names("sequence optional"),
    ),
    Exclusion(
        "random numbers: a program gives the same outputs for the same inputs",
        r"(?i)random|not supported|training",
        _names("Bernoulli Multinomial")
        | _names("RandomNormal RandomNormalLike RandomUniform RandomUniformLike"),
        tests=tuple(f"test_training_dropout{end}" for end in ("", "_default*", "_mask")),
    ),
    Exclusion(
        "training: the compiler runs models, it does not train them",
        UNSUPPORTED,
        domains=_names("ai.onnx.preview.training"),
    ),
    Exclusion(
        "decoding of picture files: cameras give pixels",
        UNSUPPORTED,
        operators=_names("ImageDecoder"),
    ),
    Exclusion(
        "classical machine learning (ai.onnx.ml): trees, encoders of labels",
        UNSUPPORTED,
        domains=_names("ai.onnx.ml"),
    ),
    Exclusion(
        "outputs whose shape depends on data: everything is laid out while compiling",
        r"depend on run-time data",
        operators=_names("NonMaxSuppression"),
    ),
    Exclusion(
        "operators of the preview domain: their definition may still change",
        UNSUPPORTED,
        operators=_names("ai.onnx.preview:FlexAttention"),
    ),
    Exclusion(
        "Scan of opset 8: it had a batch axis that later versions do not have",
        r"opset 8 is not supported",
        tests=("test_scan_sum",),
    ),
)


# The operators and types that the share of passed tests is stated for.
IN_SCOPE = _names(
    """
    Conv ConvTranspose MatMul Gemm MaxPool AveragePool GlobalMaxPool GlobalAveragePool LpPool
    Resize Upsample BatchNormalization LayerNormalization GroupNormalization InstanceNormalization
    RMSNormalization LpNormalization Softmax LogSoftmax Hardmax

    Abs Acos Acosh Add And Asin Asinh Atan Atanh BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor
    Ceil Cos Cosh Div Erf Exp Floor IsInf IsNaN Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal
    Round Sign Sin Sinh Sqrt Sub Sum Tan Xor
    Equal Greater GreaterOrEqual Less LessOrEqual

    Celu Elu Gelu HardSigmoid HardSwish LeakyRelu Mish PRelu Relu Selu Shrink Sigmoid Softplus
    Softsign SwiGLU Swish Tanh ThresholdedRelu

    ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp ReduceMax ReduceMean ReduceMin ReduceProd
    ReduceSum ReduceSumSquare ArgMax ArgMin TopK CumSum
    Gather GatherElements GatherND ScatterElements ScatterND
    Slice Split Concat Pad Tile Expand Transpose Reshape Squeeze Unsqueeze Flatten DepthToSpace
    SpaceToDepth Where Clip Cast CastLike Constant Identity Range ConstantOfShape Shape Size OneHot
    Trilu Einsum GridSample
    GRU LSTM RNN Attention RotaryEmbedding
    QuantizeLinear DequantizeLinear DynamicQuantizeLinear
    If Loop
    """
)
TYPES_IN_SCOPE = _names(
    "float16 float double bfloat16 int8 int16 int32 int64 uint8 uint16 uint32 uint64 bool"
)


def exclusion_of(name: str, traits: Traits) -> Exclusion | None:
    """Return why a test is out of scope; None if it is not."""
    return next((e for e in EXCLUSIONS if e.matches(name, traits)), None)


def is_in_scope(traits: Traits) -> bool:
    """Return whether all operators and types of a model are listed ones, exclusions or not."""
    return traits.operators <= IN_SCOPE and traits.types <= TYPES_IN_SCOPE
