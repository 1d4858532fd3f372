"""What of ONNX's test suite is not meant to work, and why; what is meant to, by operator and type.

A test that an exclusion matches must be refused with a typed error that says what its `says` finds.
One that works after all fails as "stale": then the exclusion goes. docs/onnx-suite.md repeats the
reasons for users.
"""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase

from tests.onnx_suite.traits import Traits


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Tests that must be refused; it matches a test if any of its fields does.

    Attributes:
        reason: for users; tests are counted by it.
        says: regular expression that the refusal's message must contain.
        operators: op types, as in `Traits`.
        domains: domains of operators.
        types: element types and kinds of inputs and outputs, as in `Traits`.
        tests: patterns of test names.
    """

    reason: str
    says: str
    operators: frozenset[str] = frozenset()
    domains: frozenset[str] = frozenset()
    types: frozenset[str] = frozenset()
    tests: tuple[str, ...] = ()

    def matches(self, name: str, traits: Traits) -> bool:
        """Return whether a test is out of scope for this reason."""
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
        operators=_names(
            "RegexFullMatch StringConcat StringNormalizer StringSplit TfIdfVectorizer"
        ),
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
        operators=_names(
            "Bernoulli Multinomial RandomNormal RandomNormalLike RandomUniform RandomUniformLike"
        ),
        tests=(
            "test_training_dropout",
            "test_training_dropout_default*",
            "test_training_dropout_mask",
        ),
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
