"""Reference implementations that compiled models are compared with.

`Reference` uses onnxruntime if it is installed, and otherwise onnx's evaluator. `DoubleEvaluator`
decides disputes: it converts all float32, float16 and bfloat16 values of a model to float64 and
runs the model in onnx's evaluator. It uses neither our importer nor our interpreter, so an error in
them cannot confirm itself. It raises an error for operators that onnx evaluates in lower precision.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference.op_run import OpRun

from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel, load_model
from scheduler.onnx_import.files.graph_checks import subgraphs
from scheduler.onnx_import.limits import MAX_FILE_BYTES, one_line

Array = NDArray[Any]
# The maximum number of threads of onnxruntime; chosen by hand.
MAX_THREADS = 2


class _Session(Protocol):
    name: str

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]: ...


class Reference:
    """Runs a model with another implementation.

    onnx's evaluator is used if onnxruntime lacks an operator or a type of the model.
    """

    def __init__(self, source: str | Path | OnnxModel, threads: int = MAX_THREADS) -> None:
        """Open a model with `threads` onnxruntime threads; raise ModelError if none can run it."""
        self._source = source
        self.why_not = ""  # the reason why onnxruntime is not used, or ""
        self._session: _Session
        try:
            self._session = _OnnxRuntime(_data(source), threads)
        except ModuleNotFoundError:
            self._fall_back("onnxruntime is not installed")
        except Exception as error:  # noqa: BLE001 - its errors have no common base
            self._fall_back(one_line(error))

    @property
    def name(self) -> str:
        """The implementation in use."""
        return self._session.name

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return outputs by name for inputs in the model's types, or raise ModelError."""
        if not self.why_not:
            try:
                return self._session.run(feeds)
            except Exception as error:  # noqa: BLE001 - same
                self._fall_back(one_line(error))
        try:
            return self._session.run(feeds)
        except Exception as error:
            raise ModelError(
                f"the reference {self.name} cannot run the model: {one_line(error)}; compile it "
                "without --verify"
            ) from error

    def _fall_back(self, why: str) -> None:
        """Use onnx's evaluator, or raise ModelError; `why` is the reason not to use onnxruntime."""
        self.why_not = why
        model = self._source if isinstance(self._source, OnnxModel) else load_model(self._source)
        try:
            self._session = _Evaluator(whole_model(model))
        except Exception as error:
            raise ModelError(
                f"{model.name}: no reference can run the model: {one_line(error)}; compile it "
                "without --verify"
            ) from error


class _OnnxRuntime:
    """onnxruntime on the CPU."""

    def __init__(self, model: str | bytes, threads: int) -> None:
        import onnxruntime

        self.name = f"onnxruntime {onnxruntime.__version__}"
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = max(1, min(threads, MAX_THREADS))
        options.inter_op_num_threads = 1
        options.log_severity_level = 4  # fatal only, because there is a fallback for errors
        # Basic optimizations keep every rounding, so the reference stays simple.
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        providers = ["CPUExecutionProvider"]
        self._session = onnxruntime.InferenceSession(model, options, providers=providers)
        self._names = [output.name for output in self._session.get_outputs()]

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        found = self._session.run(None, dict(feeds))
        return dict(zip(self._names, map(np.asarray, found), strict=True))


class _Evaluator:
    """onnx's reference evaluator."""

    def __init__(self, model: onnx.ModelProto) -> None:
        # This import is slow and rarely needed.
        from onnx.reference import ReferenceEvaluator

        self.name = f"onnx {onnx.__version__} reference evaluator"
        self._evaluator = ReferenceEvaluator(model)
        self._names = list(self._evaluator.output_names)

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = self._evaluator.run(None, dict(feeds))
        return dict(zip(self._names, map(np.asarray, found), strict=True))


def _data(source: str | Path | OnnxModel) -> str | bytes:
    if not isinstance(source, OnnxModel):
        return str(source)
    model = whole_model(source)
    if model.ByteSize() > MAX_FILE_BYTES:
        raise ModelError(f"{source.name}: larger than 2 GiB; pass the file instead of the model")
    return bytes(model.SerializeToString())


def whole_model(model: OnnxModel) -> onnx.ModelProto:
    """Return a model with the data of all its initializers, including external ones."""
    missing = {
        tensor.name
        for tensor in model.proto.graph.initializer
        if tensor.HasField("data_location") and not tensor.raw_data
    }
    if not missing:
        return model.proto
    whole = onnx.ModelProto()
    whole.CopyFrom(model.proto)
    for tensor in whole.graph.initializer:
        if tensor.name in missing:
            tensor.CopyFrom(numpy_helper.from_array(model.constants[tensor.name], tensor.name))
    return whole


# --- Replacements for operators of onnx's evaluator that lose precision or are incorrect ------
#
# Each implements the operator's specification with numpy alone (onnx 1.23). A test compares every
# operator case in float64.
#
#     Erf, Gelu                     onnx rounds to float32
#     Softmax, LogSoftmax           onnx ignores that they work on two dimensions before version 13;
#                                   its logarithm of a softmax that underflowed to 0 is infinite
#     Pow                           onnx takes a square root for exponent 0.5, which is NaN for -inf
#     BatchNormalization            onnx uses the data's statistics in versions 9 to 13

# From this version on, Softmax and LogSoftmax work on one axis, by default the last.
ONE_AXIS = 13
_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    """The error function."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x) if x.size else x,)


class Gelu(OpRun):
    """x times the normal distribution function of x, or its tanh approximation."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1 + np.tanh(inner)),)
        return (0.5 * x * (1 + _erf(x / math.sqrt(2))) if x.size else x,)


def _exponents(op: OpRun, x: Array, axis: int | None) -> tuple[Array, Array]:
    """Return x minus its maximum, and sums of exponentials, over the axes of the op's version."""
    given = any(attribute.name == "axis" for attribute in op.onnx_node.attribute)
    if op.run_params["opsets"][""] >= ONE_AXIS:
        axes: tuple[int, ...] = (axis if given and axis is not None else -1,)
    else:
        first = (axis if given and axis is not None else 1) % max(x.ndim, 1)
        axes = tuple(range(first, x.ndim))
    below = x - x.max(axes, keepdims=True, initial=-np.inf)
    return below, np.exp(below).sum(axes, keepdims=True)


class Softmax(OpRun):
    """The softmax function."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        below, sums = _exponents(self, x, axis)
        return (np.exp(below) / sums,)


class LogSoftmax(OpRun):
    """The logarithm of softmax, computed without an intermediate that can underflow to 0."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        below, sums = _exponents(self, x, axis)
        return (below - np.log(sums),)


class BatchNormalization(OpRun):
    """Normalization with the given statistics; training mode is rejected."""

    op_domain = ""

    def _run(self, *inputs: Array, **attributes: Any) -> tuple[Array]:
        if attributes.get("training_mode") or attributes.get("spatial") == 0:
            raise NotImplementedError("BatchNormalization that trains, or is not by channel")
        x, scale, bias, mean, variance = inputs
        scale, bias, mean, variance = (
            part.reshape(-1, *(1,) * (x.ndim - 2)) for part in (scale, bias, mean, variance)
        )
        deviation = np.sqrt(variance + attributes["epsilon"])
        return (scale * (x - mean) / deviation + bias,)


class Pow(OpRun):
    """Elementwise powers. For a scalar exponent of 0.5, numpy would take roots, even of -inf."""

    op_domain = ""

    def _run(self, x: Array, exponents: Array) -> tuple[Array]:
        shape = np.broadcast_shapes(x.shape, exponents.shape)
        each = np.array(np.broadcast_to(exponents, shape))
        return (np.power(x, each).astype(x.dtype),)


OPERATORS: list[type[OpRun]] = [BatchNormalization, Erf, Gelu, LogSoftmax, Pow, Softmax]

# --- The evaluation in double precision -------------------------------------------------------

_WIDENED = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
# Attributes that hold the element type of a result or of an intermediate.
_TYPE_ATTRIBUTES = frozenset(
    {"dtype", "output_datatype", "output_dtype", "softmax_precision", "stash_type", "to"}
)
# onnx's evaluator computes these in float32 or not as specified (onnx 1.23).
_NOT_TRUSTED = frozenset(
    {"AffineGrid", "CausalConvWithState", "DeformConv", "DynamicQuantizeLinear", "GridSample"}
    | {"Hardmax", "LRN", "LinearAttention", "LpNormalization", "LpPool"}
    | {"NegativeLogLikelihoodLoss", "RoiAlign", "SoftmaxCrossEntropyLoss"}
)
# onnx's evaluator supports only the basic form of these; it ignores other attributes and inputs.
_PLAIN_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_MAX_RECURRENT_INPUTS = 4  # X, W, R, B, but no lengths, initial states or peepholes
_RESIZE_COORDINATES = frozenset({"asymmetric", "half_pixel", "pytorch_half_pixel"})
# Operators whose results are random or are bits of a float32.
_NO_VALUE_IN_DOUBLE = frozenset(
    {"Bernoulli", "BitCast", "Multinomial", "RandomNormal", "RandomNormalLike"}
    | {"RandomUniform", "RandomUniformLike"}
)


class DoubleEvaluator:
    """Evaluates a model in float64, independently of the compiler."""

    def __init__(self, source: str | Path | OnnxModel) -> None:
        """Convert a model to float64, or raise ModelError with a clause that gives the reason."""
        # This import is slow and rarely needed.
        from onnx.reference import ReferenceEvaluator

        model = source if isinstance(source, OnnxModel) else load_model(source)
        proto = onnx.ModelProto()
        proto.CopyFrom(whole_model(model))
        widen(proto)
        try:
            self._evaluator = ReferenceEvaluator(proto, new_ops=OPERATORS)
        except Exception as error:
            raise ModelError(f"onnx's evaluator cannot load it: {one_line(error)}") from error
        self._types = {
            output.name: helper.tensor_dtype_to_np_dtype(output.type.tensor_type.elem_type)
            for output in model.proto.graph.output
        }

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """Return outputs by name, as float64 if the model's type is a float of 16 bits or more.

        `feeds` have the model's element types. Raises ModelError if an operator does not support
        float64.
        """
        wide = {name: _widened(array) for name, array in feeds.items()}
        try:
            with warnings.catch_warnings(), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = dict(self._evaluator.run(None, wide, intermediate=True))
        except Exception as error:
            raise ModelError(f"onnx's evaluator cannot run it: {one_line(error)}") from error
        given = {name for name in wide if name}
        for node in self._evaluator.proto_.graph.node:
            for name in node.output:
                if name and name not in given and _is_narrow(found.get(name)):
                    raise ModelError(f"onnx's evaluator computes {node.op_type} in lower precision")
        return {name: np.asarray(found[name]) for name in self._types}


def widen(model: onnx.ModelProto) -> None:
    """Convert all floats of 16 or 32 bits to float64, in place, or raise ModelError."""
    _widen_graph(model.graph)
    for function in model.functions:
        _widen_nodes(function.node)
        del function.value_info[:]


def _widen_graph(graph: onnx.GraphProto) -> None:
    if graph.sparse_initializer:
        raise ModelError("it has sparse constants")
    for tensor in graph.initializer:
        _widen_tensor(tensor)
    for value in (*graph.input, *graph.output):
        _widen_type(value.type)
    # Declared types of intermediates are optional.
    del graph.value_info[:]
    _widen_nodes(graph.node)


def _widen_nodes(nodes: Iterable[onnx.NodeProto]) -> None:
    for node in nodes:
        if not _is_trusted(node):
            raise ModelError(f"onnx's evaluator has no {node.op_type} in double precision")
        if node.op_type == "Constant":
            _widen_constant(node)
        elif node.op_type == "ConstantOfShape" and not node.attribute:
            node.attribute.append(helper.make_attribute("value", _tensor(np.zeros(1))))
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            elif (
                attribute.name in _TYPE_ATTRIBUTES
                and attribute.i in _WIDENED
                and node.op_type != "LayerNormalization"
            ):
                # For LayerNormalization the evaluator accepts float32 only, but computes in the
                # input's type.
                attribute.i = TensorProto.DOUBLE
        for graph in subgraphs(node):
            _widen_graph(graph)


def _is_trusted(node: onnx.NodeProto) -> bool:
    """Whether onnx's evaluator computes a node as specified, in float64."""
    if node.op_type in _NOT_TRUSTED or node.op_type in _NO_VALUE_IN_DOUBLE:
        return False
    texts = {a.name: a.s.decode(errors="replace") for a in node.attribute}
    if node.op_type in _PLAIN_RECURRENT:
        more = any(node.input[_MAX_RECURRENT_INPUTS:])
        return not more and texts.keys() <= {"hidden_size"}
    if node.op_type == "Resize":
        coordinates = texts.get("coordinate_transformation_mode", "half_pixel")
        rounding = texts.get("nearest_mode", "round_prefer_floor")
        return coordinates in _RESIZE_COORDINATES and rounding == "round_prefer_floor"
    return True


def _widen_constant(node: onnx.NodeProto) -> None:
    """Replace numbers in attributes by a tensor, which has an element type."""
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_floats"):
            numbers = attribute.f if attribute.name == "value_float" else list(attribute.floats)
            attribute.CopyFrom(helper.make_attribute("value", _tensor(np.array(numbers, float))))


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in _WIDENED:
        tensor.CopyFrom(_tensor(_widened(numpy_helper.to_array(tensor)), tensor.name))


def _widen_type(declared: onnx.TypeProto) -> None:
    kind = declared.WhichOneof("value")
    if kind == "tensor_type" and declared.tensor_type.elem_type in _WIDENED:
        declared.tensor_type.elem_type = TensorProto.DOUBLE
    elif kind in ("sequence_type", "optional_type"):
        _widen_type(getattr(declared, kind).elem_type)


def _tensor(array: Array, name: str = "") -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, np.float64), name)


def _widened(array: Array) -> Array:
    code = helper.np_dtype_to_tensor_dtype(array.dtype)
    return array.astype(np.float64) if code in _WIDENED else array


def _is_narrow(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_is_narrow, value))
    dtype = getattr(value, "dtype", None)
    return dtype is not None and dtype.name in ("float16", "bfloat16", "float32")
