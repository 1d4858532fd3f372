"""Every value and every problem of a model at once, whether it can be compiled or not.

Translates node by node like `importer`. Where a node cannot be translated, the problem is noted and
its outputs become stand-ins of the shape that ONNX's own inference gives them, so that what comes
after is looked at as well. Costs what an import costs. Called by `report`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import onnx
from onnx import helper, numpy_helper

from scheduler.errors import InternalError, ModelError, SchedulerError
from scheduler.onnx_import.binding import Binding, declared
from scheduler.onnx_import.context import AnyValue
from scheduler.onnx_import.element_types import carried, graph_array, graph_dtype, type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.inference import carried_types
from scheduler.onnx_import.metadata import ModelMetadata, parse_metadata, sliced_width
from scheduler.onnx_import.support import nearest_form, node_label, qualified_op, unsupported_nodes
from scheduler.onnx_import.translate import Scope, translation_of
from scheduler.tensor.tensor import Tensor

# Larger initializers are no shapes: inference does not need their values.
MAX_SHAPE_ELEMENTS = 1024


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value.

    Attributes:
        shape: sizes.
        dtype: ONNX's name of the element type where it is carried (bfloat16), else numpy's.
        itemsize: bytes of an element where it is stored.
        constant: whether it does not depend on the inputs.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    constant: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot be compiled: one of the reasons.

    Attributes:
        node: its name; "" for what is no node.
        op: operator with its domain; "input", "output" or "metadata" for what is no node.
        reason: one clause.
        nearest: what to write instead, "" if unknown.
    """

    node: str
    op: str
    reason: str
    nearest: str = ""


@dataclass(slots=True)
class Probe:
    """What was found.

    Attributes:
        values: by name; those of unknown shape are missing.
        problems: in the order of the file.
        notes: what was assumed about symbolic dimensions.
        unchecked: nodes that could not be looked at, because what they read is unknown.
        metadata: None if it is unusable.
    """

    values: dict[str, Value] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    unchecked: int = 0
    metadata: ModelMetadata | None = None


def probe(model: OnnxModel, bind: Mapping[str, int] | None = None) -> Probe:
    """Look at every node.

    Args:
        model: that was read.
        bind: sizes of symbolic dimensions, as for `import_model`.

    Raises:
        ModelError: a name in `bind` is none of a dimension.
    """
    found = Probe()
    binding = Binding(model, dict(bind or {}))
    inputs = _inputs(model, binding, found)
    found.notes = tuple(binding.notes)
    _Walk(model, found, inputs).run()
    _check_metadata(model, found)
    return found


def _inputs(model: OnnxModel, binding: Binding, found: Probe) -> dict[str, Tensor]:
    try:
        return binding.inputs({}, ())
    except ModelError as error:
        found.problems += list(_input_problems(model)) or [Problem("", "input", str(error))]
        return {}


def _input_problems(model: OnnxModel) -> Iterator[Problem]:
    for value in model.inputs:
        try:
            declared(value, f'"{value.name}"')
        except ModelError as error:
            yield Problem("", "input", str(error))


class _Walk:
    """Translates what can be translated."""

    def __init__(self, model: OnnxModel, found: Probe, inputs: Mapping[str, Tensor]) -> None:
        self._model = model
        self._found = found
        self._inputs = inputs
        self._types = carried_types(model)
        self._inferred: dict[str, tuple[tuple[int, ...], int]] | None = None

    def run(self) -> None:
        """Fill in values and problems."""
        model = self._model
        bad = {tuple(node.output) for node in unsupported_nodes(model)}
        scope = Scope(translation_of(model, self._types), self._leaves(), model.opset)
        for name, value in list(scope.values.items()):
            self._remember(name, value)
        for node in model.proto.graph.node:
            unknown = any(name and name not in scope.values for name in node.input)
            if tuple(node.output) in bad:
                self._refuse(scope, node, "no translation")
            elif unknown:
                self._found.unchecked += 1
                self._stand_in(scope, node)
            else:
                self._translate(scope, node)
            for name in node.output:
                if name in scope.values:
                    self._remember(name, scope.values[name])
        self._outputs(scope)

    def _leaves(self) -> dict[str, AnyValue]:
        model = self._model
        values: dict[str, AnyValue] = {n: graph_array(a) for n, a in model.constants.items()}
        for value in model.proto.graph.input:
            if value.name in self._inputs:
                kind = carried(value.type.tensor_type.elem_type)
                given = self._inputs[value.name]
                values[value.name] = kind.decode(given) if kind else given
        return values

    def _translate(self, scope: Scope, node: onnx.NodeProto) -> None:
        try:
            scope.translate([node])
        except InternalError:
            raise
        except SchedulerError as error:
            reason = str(error)
            # The message begins with model and node, which the report says in columns.
            start = f'{self._model.name}: node "'
            reason = reason.partition("): ")[2] if reason.startswith(start) else reason
            self._refuse(scope, node, reason or str(error))

    def _refuse(self, scope: Scope, node: onnx.NodeProto, reason: str) -> None:
        op = qualified_op(node)
        nearest = nearest_form(op) if reason == "no translation" else ""
        self._found.problems.append(Problem(node_label(node), op, reason, nearest))
        self._stand_in(scope, node)

    def _stand_in(self, scope: Scope, node: onnx.NodeProto) -> None:
        if self._inferred is None:
            self._inferred = infer(self._model, {n: t.shape for n, t in self._inputs.items()})
        for name in node.output:
            if name in self._inferred and name not in scope.values:
                shape, code = self._inferred[name]
                try:
                    scope.values[name] = Tensor.input(f"stand-in {name}", shape, graph_dtype(code))
                except SchedulerError:  # a type that there is no Tensor of: stays unknown
                    continue

    def _outputs(self, scope: Scope) -> None:
        for output in self._model.proto.graph.output:
            value = scope.values.get(output.name)
            if value is not None and not hasattr(value, "shape"):
                reason = f'"{output.name}" is a sequence or an optional; expected a tensor'
                self._found.problems.append(Problem("", "output", reason))

    def _remember(self, name: str, value: AnyValue) -> None:
        if not hasattr(value, "shape"):
            return
        constant = not isinstance(value, Tensor)
        kind = carried(self._types.get(name, 0))
        if kind is not None:
            dtype, itemsize = kind.name, kind.storage.itemsize
        else:
            dtype, itemsize = _type_of(value)
        self._found.values[name] = Value(tuple(value.shape), dtype, itemsize, constant)


def _type_of(value: AnyValue) -> tuple[str, int]:
    dtype = value.dtype  # type: ignore[union-attr]  # has a shape: a Tensor or an array
    return (dtype.name, dtype.itemsize)


def infer(
    model: OnnxModel, inputs: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return value name -> (shape, ONNX element type) for what ONNX's inference finds static.

    Args:
        model: large weights are left out, so this is cheap.
        inputs: shapes to use for inputs, symbolic dimensions bound.
    """
    light, sizes = _light(model, inputs)
    try:
        graph = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        graph = light.graph  # what the file declares is left
    found = {}
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
    """Return the model without large weights, and the sizes of its symbolic dimensions."""
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


def _check_metadata(model: OnnxModel, found: Probe) -> None:
    outputs = [output.name for output in model.proto.graph.output]
    shapes = {name: found.values[name].shape for name in outputs if name in found.values}
    if len(shapes) < len(outputs):
        return  # widths are not known: whether slices fit cannot be said
    try:
        found.metadata = parse_metadata(model.metadata_props, sliced_width(shapes), model.name)
    except ModelError as error:
        reason = str(error).removeprefix(f"{model.name}: ")
        found.problems.append(Problem("", "metadata", reason))


def declared_type(value: onnx.ValueInfoProto) -> str:
    """Return the declared element type of an input or output, "?" for what is no tensor."""
    kind = value.type
    return type_name(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else "?"
