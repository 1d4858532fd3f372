"""ONNX graph -> Tensors, node by node in the order of the file.

Values known while importing (weights, shapes and everything computed from them) stay arrays and are
computed here; only what depends on the inputs becomes a graph.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import helper

from scheduler import dtype as dt
from scheduler.errors import ModelError, SchedulerError
from scheduler.node import origin
from scheduler.onnx_import.context import NodeContext, Value, as_tensor
from scheduler.onnx_import.fold import evaluate_reference
from scheduler.onnx_import.load import OnnxModel, from_proto, load_model, one_line, printable
from scheduler.onnx_import.metadata import ModelMetadata, parse_metadata
from scheduler.onnx_import.support import check_supported, node_label, qualified_op
from scheduler.onnx_import.table import TRANSLATORS
from scheduler.tensor import Tensor, evaluate

logger = logging.getLogger(__name__)

# What a translator runs into on inputs of the wrong rank or attributes of the wrong type.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, MemoryError)


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model as Tensors.

    Attributes:
        inputs: by name, in the order of the file.
        outputs: by name, in the order of the file.
        metadata: checkpoint and output slices.
        notes: what was assumed, one sentence each (symbolic dimensions bound to 1).
        source: the checked model.
    """

    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    metadata: ModelMetadata
    notes: tuple[str, ...]
    source: OnnxModel


def import_model(
    source: str | Path | onnx.ModelProto | OnnxModel,
    inputs: Mapping[str, Tensor] | None = None,
) -> ImportedModel:
    """Translate an ONNX model.

    Args:
        source: a file, a ModelProto or a loaded model.
        inputs: Tensors to use for inputs of the model, by name; the others become new inputs.

    Raises:
        ModelError: the model is invalid, or a node cannot be translated; names the node.
        UnsupportedOpError: lists every operator without a translator.
    """
    model = _as_model(source)
    check_supported(model)
    notes: list[str] = []
    bound = _bind_inputs(model, dict(inputs or {}), notes)
    values: dict[str, Value] = {**model.constants, **bound}
    tensors: dict[str, Tensor] = {}
    for node in model.proto.graph.node:
        results = _translate(model, node, values, tensors)
        # Trailing optional outputs may be left out on either side; "" is one that nobody reads.
        values.update(zip(node.output, results, strict=False))
    outputs = {}
    for output in model.proto.graph.output:
        if output.name not in values:
            raise ModelError(f'{model.name}: output "{output.name}" is computed by no node')
        outputs[output.name] = as_tensor(values[output.name])
    for note in notes:
        logger.info("%s: %s", model.name, note)
    width = next(iter(outputs.values())).shape[-1:] if len(outputs) == 1 else ()
    metadata = parse_metadata(model.metadata_props, width[0] if width else None, model.name)
    return ImportedModel(bound, outputs, metadata, tuple(notes), model)


def _as_model(source: str | Path | onnx.ModelProto | OnnxModel) -> OnnxModel:
    if isinstance(source, OnnxModel):
        return source
    return from_proto(source) if isinstance(source, onnx.ModelProto) else load_model(source)


def _bind_inputs(model: OnnxModel, given: dict[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    """Return a Tensor for every input; one with an initializer is an input only if it is given."""
    bound: dict[str, Tensor] = {}
    for value in model.proto.graph.input:
        tensor = given.pop(value.name, None)
        if tensor is None and value.name in model.constants:
            continue
        where = f'{model.name}: input "{value.name}"'
        shape, dtype = _declared(value, where)
        if tensor is None:
            free = [name for name, size in shape if size is None]
            if free:
                notes.append(f'input "{value.name}": {", ".join(free)} bound to 1')
            sizes = [1 if size is None else size for _, size in shape]
            tensor = Tensor.input(value.name, sizes, dtype)
        fits = len(tensor.shape) == len(shape) and all(
            size in (None, actual) for (_, size), actual in zip(shape, tensor.shape, strict=True)
        )
        if not fits or tensor.dtype is not dtype:
            declared = [name if size is None else size for name, size in shape]
            raise ModelError(
                f"{where}: expected {dtype} {declared}, found {tensor.dtype} {list(tensor.shape)}"
            )
        bound[value.name] = tensor
    if given:
        raise ModelError(
            f"{model.name}: has no input {sorted(given)}; found {[v.name for v in model.inputs]}"
        )
    return bound


def _declared(
    value: onnx.ValueInfoProto, where: str
) -> tuple[list[tuple[str, int | None]], dt.DType]:
    """Return (name, size) per axis, size None if symbolic, and the element type of an input."""
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ModelError(f"{where}: expected a tensor with a declared number of axes")
    try:
        dtype = dt.from_numpy(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    except (KeyError, ValueError, ModelError) as error:
        raise ModelError(f"{where}: unsupported element type {kind.elem_type}") from error
    shape: list[tuple[str, int | None]] = []
    for axis, dim in enumerate(kind.shape.dim):
        size = int(dim.dim_value) if dim.HasField("dim_value") else None
        if size is not None and size < 0:
            size = None  # -1 is how some tools write "any"
        shape.append((str(dim.dim_param) or f"axis {axis}", size))
    return shape, dtype


def _translate(
    model: OnnxModel,
    node: onnx.NodeProto,
    values: Mapping[str, Value],
    tensors: dict[str, Tensor],
) -> Sequence[Value]:
    label = node_label(node)
    where = f'{model.name}: node "{label}" ({qualified_op(node)}, opset {model.opset})'
    missing = [printable(name) for name in node.input if name and name not in values]
    if missing:
        raise ModelError(f"{where}: input {missing} is computed by no node before it")
    resolved = tuple(values[name] if name else None for name in node.input)
    known = all(not isinstance(value, Tensor) for value in resolved)
    translator = TRANSLATORS.get(node.op_type)
    try:
        with origin(label):
            if translator is None:
                return evaluate_reference(node, resolved, model.opset)
            result = translator(NodeContext(node, model.opset, resolved, tensors))
            results = result if isinstance(result, list) else [result]
            return _fold(results) if known else results
    except SchedulerError as error:
        raise ModelError(f"{where}: {error}") from error
    except _MALFORMED as error:
        shapes = [None if value is None else list(value.shape) for value in resolved]
        raise ModelError(
            f"{where}: inputs of shapes {shapes} do not fit the operator: {one_line(error)}"
        ) from error


def _fold(results: Sequence[Value]) -> list[Value]:
    """Evaluate results that depend on no input; the interpreter is what defines their meaning."""
    lazy = [value for value in results if isinstance(value, Tensor)]
    arrays = iter(evaluate(lazy))
    return [next(arrays) if isinstance(value, Tensor) else value for value in results]
