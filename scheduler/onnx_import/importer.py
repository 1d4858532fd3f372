"""Imports an ONNX model: turns a file, ModelProto or `OnnxModel` into Tensors (`ImportedModel`).

The import binds the inputs, translates the nodes in order, and collects the outputs. `walk` does
this for `import_model`, which stops at the first problem, and for `report`, which collects all
problems. ONNX's own shape inference is used only if the translation does not know a type or shape.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.ir.origin import Origins
from scheduler.onnx_import.binding import Binding
from scheduler.onnx_import.context import AnyValue, Array, ValueList
from scheduler.onnx_import.element_types import (
    CARRIED,
    carried,
    graph_array,
    graph_dtype,
    type_name,
)
from scheduler.onnx_import.files.graph_checks import subgraphs
from scheduler.onnx_import.files.load import OnnxModel, from_proto, load_model
from scheduler.onnx_import.limits import node_label, printable
from scheduler.onnx_import.metadata import ModelMetadata, parse_metadata, sliced_width
from scheduler.onnx_import.support import check_supported
from scheduler.onnx_import.translate import Scope, Values, translation_of
from scheduler.tensor.tensor import Tensor

logger = logging.getLogger(__name__)

Subject = onnx.NodeProto | onnx.ValueInfoProto
# (kind, subject, values) -> the context manager in which an "input", a "node" or an "output" is
# processed. It either lets a SchedulerError end the import, or records the error and adds
# placeholders to the values.
Reaction = Callable[[str, Subject, Values], AbstractContextManager[None]]
# The largest initializer that can be a shape; shape inference gets the values of these only.
MAX_SHAPE_ELEMENTS = 1024
_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})
# The maximum number of notes about values whose computed type differs from the declared type.
MOST_NOTES: Final = 3


@dataclass(frozen=True, slots=True)
class ImportedModel:
    """A model as Tensors."""

    # Inputs and outputs by name, in file order. Carried element types (bfloat16, ...) are in their
    # storage type, see `element_types`.
    inputs: dict[str, Tensor]
    outputs: dict[str, Tensor]
    metadata: ModelMetadata  # checkpoint and output slices
    notes: tuple[str, ...]  # changes and assumptions, such as symbolic dimensions bound to 1
    source: OnnxModel  # the checked model
    origins: Origins  # the ONNX nodes from which each graph node was made


def import_model(
    source: str | Path | onnx.ModelProto | OnnxModel,
    inputs: Mapping[str, Tensor] | None = None,
    *,
    bind: Mapping[str, int] | None = None,
    constants: Mapping[str, NDArray[Any]] | None = None,
    origins: Origins | None = None,
) -> ImportedModel:
    """Translate an ONNX model.

    Args:
        source: path of a file, a ModelProto or a loaded model.
        inputs: Tensors to use as inputs of the model, by name. New Tensors are made for the others.
        bind: sizes of symbolic dimensions by name, or by "INPUT:AXIS" for a dimension without a
            name. The default is 1, with a note.
        constants: fixed values of inputs by name. The model is specialized for them, and these
            inputs are removed.
        origins: origins of the nodes that compute `inputs`. The origins of the model's nodes are
            added to it.

    Raises:
        DynamicInputError: a shape or an axis depends on the inputs; the message has the node.
        ModelError: the model is invalid, or a node cannot be translated; the message has the node.
        UnsupportedOpError: some operators have no translator; the message lists them all.
    """
    model = _as_model(source)
    fixed = {name: graph_array(array) for name, array in (constants or {}).items()}
    # Report all unknown operators before a translator can fail.
    check_supported(model, known=fixed)
    binding = Binding(model, dict(bind or {}))
    given = dict(inputs or {})
    origins = Origins() if origins is None else origins
    found = walk(model, binding, _first_problem, given, fixed, origins)
    assumed = (*binding.notes, *_type_notes(model, found.values))
    for note in assumed:
        logger.info("%s: %s", model.name, note)
    metadata = metadata_of(model, found.outputs)
    notes = (*model.notes, *assumed)
    return ImportedModel(found.inputs, found.outputs, metadata, notes, model, origins)


def _first_problem(_: str, __: Subject, ___: Values) -> AbstractContextManager[None]:
    return nullcontext()


class Walked(NamedTuple):
    """The result of `walk`: inputs and outputs as in `ImportedModel`, and all values by name."""

    inputs: dict[str, Tensor]
    values: Values
    outputs: dict[str, Tensor]


def walk(
    model: OnnxModel,
    binding: Binding,
    reaction: Reaction,
    given: Mapping[str, Tensor],
    fixed: Mapping[str, Array],
    origins: Origins | None = None,
) -> Walked:
    """Bind the inputs of a model, translate its nodes in order, and collect its outputs.

    Args:
        model: the checked model.
        binding: sizes of symbolic dimensions.
        reaction: the context manager for each input, node and output.
        given: Tensors to use as inputs, by name.
        fixed: constant values of inputs, by name.
        origins: receives the origins of new nodes.
    """
    graph, origins = model.proto.graph, Origins() if origins is None else origins
    values: Values = {name: graph_array(array) for name, array in model.constants.items()}
    # A fixed value overrides the initializer.
    values.update(fixed)
    bound: dict[str, Tensor] = {}
    for value in binding.free_inputs(given, fixed):
        with reaction("input", value, values):
            bound[value.name] = binding.tensor(value, given.get(value.name))
            kind = carried(value.type.tensor_type.elem_type)
            stored = bound[value.name]
            values[value.name] = kind.decode(stored) if kind else stored
    # Inputs have no origin; without this the first reader would be recorded as theirs.
    origins.name((v.node for v in values.values() if isinstance(v, Tensor)), ())
    scope = Scope(translation_of(model, carried_types(model), origins), values, model.opset)
    for node in graph.node:
        with reaction("node", node, values):
            scope.translate([node])
    outputs = {}
    for output in graph.output:
        with reaction("output", output, values):
            outputs[output.name] = _output(scope, output, model.name)
    return Walked(bound, values, outputs)


def metadata_of(model: OnnxModel, outputs: Mapping[str, Tensor]) -> ModelMetadata:
    """Return a model's metadata; raise ModelError if output slices do not fit the outputs."""
    width = sliced_width({name: tensor.shape for name, tensor in outputs.items()})
    return parse_metadata(model.metadata_props, width, model.name)


def _as_model(source: str | Path | onnx.ModelProto | OnnxModel) -> OnnxModel:
    if isinstance(source, OnnxModel):
        return source
    return from_proto(source) if isinstance(source, onnx.ModelProto) else load_model(source)


def with_outputs(model: OnnxModel, names: Sequence[str]) -> OnnxModel:
    """Return a model with more outputs.

    `names` are labels of nodes (as in messages) or names of computed values. Outputs are stored, so
    this can change the fusion of nodes. Raises ModelError for an unknown name.
    """
    nodes = [(node_label(node), [*filter(None, node.output)]) for node in model.proto.graph.node]
    values = {value for _, outputs in nodes for value in outputs}
    wanted: list[str] = []
    for name in names:
        found = [one for label, outputs in nodes if label == name for one in outputs]
        wanted += found or ([name] if name in values else [])
        if not found and name not in values:
            near = get_close_matches(name, [*(label for label, _ in nodes), *values], 3)
            hint = f"is it {', '.join(near)}?" if near else "modeld inspect --nodes lists them"
            raise ModelError(
                f"{model.name}: expected the name of a node or of its output, found "
                f"{printable(name)}; {hint}"
            )
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    known = {value.name: value for value in proto.graph.value_info}
    there = {value.name for value in proto.graph.output}
    for value in dict.fromkeys(wanted):
        if value not in there:
            proto.graph.output.append(known.get(value, onnx.ValueInfoProto(name=value)))
    return replace(model, proto=proto)


def _output(scope: Scope, output: onnx.ValueInfoProto, model: str) -> Tensor:
    """Return an output in its storage type; raise ModelError if it is not a tensor."""
    value: AnyValue = scope.output(output.name)
    where = f'{model}: output "{printable(output.name)}"'
    if isinstance(value, ValueList):
        raise ModelError(f"{where} is a sequence or an optional; expected a tensor")
    code = output.type.tensor_type.elem_type
    found = value if isinstance(value, Tensor) else scope.shared.weights.of(value, code)
    kind = carried(code)
    if kind is None:
        return found
    if found.dtype is not kind.carrier:
        raise ModelError(f"{where}: expected {type_name(code)}, found {found.dtype}")
    return kind.encode(found)


# --- Notes about values whose computed type differs from the declared type --------------------
# fp16 converters leave such contradictions: a Cast to float32 computes a value that is declared
# float16. The computed type is used here; onnxruntime refuses such a model.


def _type_notes(model: OnnxModel, values: Mapping[str, AnyValue]) -> tuple[str, ...]:
    """Return notes about values whose computed type differs from the declared type."""
    found = list(_contradictions(model, values))
    notes = found[:MOST_NOTES]
    if len(found) > MOST_NOTES:
        more = count_text(len(found) - MOST_NOTES, "more value")
        notes.append(f"{more} with another type than declared")
    return tuple(notes)


def _contradictions(model: OnnxModel, values: Mapping[str, AnyValue]) -> Iterator[str]:
    graph = model.proto.graph
    declared = {v.name: v.type.tensor_type.elem_type for v in (*graph.value_info, *graph.output)}
    for node in graph.node:
        for name in node.output:
            code, value = declared.get(name, 0), values.get(name)
            if not code or value is None or isinstance(value, ValueList):
                continue
            computed = value.dtype.name
            try:
                expected = graph_dtype(code).name
            except ModelError:
                continue
            if computed != expected:
                yield (
                    f'node "{printable(node_label(node))}" computes "{printable(name)}" as '
                    f"{computed}, but declares {type_name(code)}; using {computed}, export the "
                    "model again if that is wrong"
                )


# --- ONNX's own inference of shapes and element types -----------------------------------------
# It finds the values of carried types (see `element_types`), and the shapes of values that cannot
# be translated.


def carried_types(model: OnnxModel) -> dict[str, int]:
    """Return value name -> ONNX element type, for values of carried types only."""
    if not _mentions_carried(model.proto):
        return {}
    light = onnx.ModelProto()
    light.CopyFrom(model.proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(light)
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        inferred = light  # use the declared types only
    found: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        for tensor in graph.initializer:
            found[tensor.name] = tensor.data_type
        for value in (*graph.input, *graph.output, *graph.value_info):
            found[value.name] = value.type.tensor_type.elem_type
    return {name: code for name, code in found.items() if code in CARRIED}


def _mentions_carried(model: onnx.ModelProto) -> bool:
    for graph in _graphs(model.graph):
        if any(t.data_type in CARRIED for t in graph.initializer):
            return True
        values = (*graph.input, *graph.output, *graph.value_info)
        if any(v.type.tensor_type.elem_type in CARRIED for v in values):
            return True
        if any(_node_mentions(node) for node in graph.node):
            return True
    return any(_node_mentions(node) for f in model.functions for node in f.node)


def _node_mentions(node: onnx.NodeProto) -> bool:
    """Return whether an attribute of a node contains or selects a carried type."""
    return any(
        (a.name in _TYPE_ATTRIBUTES and a.i in CARRIED)
        or (a.HasField("t") and a.t.data_type in CARRIED)
        for a in node.attribute
    )


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from _graphs(inner)


def infer(
    model: OnnxModel, inputs: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return value name -> (shape, ONNX element type) for values of static shape.

    ONNX's shape inference runs without large weights, so this is cheap. `inputs` are the shapes of
    inputs by name, with symbolic dimensions bound.
    """
    light, sizes = _light(model, inputs)
    try:
        graph = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        graph = light.graph  # use the declared shapes only
    found = {}
    # A size of -1 is unknown.
    for value in (*graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if not kind.HasField("shape") or not kind.elem_type:
            continue
        shape = [
            int(d.dim_value) if d.HasField("dim_value") else sizes.get(d.dim_param, -1)
            for d in kind.shape.dim
        ]
        if all(size >= 0 for size in shape):
            found[value.name] = (tuple(shape), int(kind.elem_type))
    return found


def _light(
    model: OnnxModel, inputs: Mapping[str, tuple[int, ...]]
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return the model without large weights, and the sizes of its symbolic dimensions.

    Dimensions without a name have the name "" and the size -1, which means unknown.
    """
    full, sizes = model.proto, {"": -1}
    light = onnx.ModelProto(ir_version=full.ir_version)
    light.opset_import.extend(full.opset_import)
    light.functions.extend(full.functions)
    light.graph.name = "light"
    light.graph.node.extend(full.graph.node)
    light.graph.output.extend(full.graph.output)
    light.graph.value_info.extend(full.graph.value_info)
    for value in model.inputs:
        light.graph.input.append(value)
        dims = light.graph.input[-1].type.tensor_type.shape.dim
        for dim, size in zip(dims, inputs.get(value.name, ()), strict=False):
            if not dim.HasField("dim_value"):
                sizes[dim.dim_param] = size
            dim.dim_value = size
    for name, array in model.constants.items():
        if array.size <= MAX_SHAPE_ELEMENTS:
            light.graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            code = helper.np_dtype_to_tensor_dtype(array.dtype)
            light.graph.input.append(helper.make_tensor_value_info(name, code, array.shape))
    sizes[""] = -1
    return light, sizes
