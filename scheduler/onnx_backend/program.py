"""Compiles an ONNX model for given input shapes, and checks the arrays of a run.

If a node needs the value of an input at compile time, the model is compiled for the given value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from runtime.errors import InputError
from runtime.format.artifact import from_memory
from runtime.opencl.device import Device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from runtime.texts import count_text
from scheduler.context import context_for
from scheduler.device.targets import spec_of_device
from scheduler.errors import DynamicInputError, ModelError
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import.element_types import from_storage, storage_dtype, to_storage, type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.importer import ImportedModel, import_model
from scheduler.schedule_cache import EntryGraph, compile_entries

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class ModelProgram:
    """A model compiled for the shapes of its inputs, loaded on a device."""

    bound: tuple[str, ...]  # inputs whose values were needed at compile time, in model order
    live: Mapping[str, int]  # inputs of every run -> ONNX element type
    outputs: tuple[tuple[str, int, tuple[int, ...]], ...]  # (name, ONNX element type, shape)
    program: Program | None  # the loaded program; None if all outputs are empty
    folded: bool  # whether all outputs are constant, so that the compiler computed them

    def run(self, arrays: Mapping[str, Array]) -> tuple[Array, ...]:
        """Return the outputs for checked arrays by name; raise RuntimeFault if the device fails."""
        if self.program is None:
            found: Mapping[str, Array] = {}
        else:
            found = self.program.run({n: to_storage(arrays[n], c) for n, c in self.live.items()})
        empty = {n: np.empty(shape, _storage(c)) for n, c, shape in self.outputs if 0 in shape}
        return tuple(
            from_storage(empty[name] if name in empty else found[name], code)
            for name, code, _ in self.outputs
        )

    def close(self) -> None:
        """Free the device memory."""
        if self.program is not None:
            self.program.close()


def compile_for(
    model: OnnxModel, arrays: Mapping[str, Array], bound: Iterable[str], device: Device
) -> ModelProgram:
    """Compile a model for the shapes of arrays and, if a node needs them, for their values.

    Args:
        model: the checked model.
        arrays: the arrays of a run by name; they replace initializers of the same name.
        bound: inputs whose values are known to be needed.
        device: the device that the program is for.

    Raises:
        ModelError: the model cannot be compiled for these shapes and values.
        BuildError, RuntimeFault: the device cannot build or load the program.
    """
    shaped = _with_shapes(model, arrays)
    imported, needed = _import(shaped, arrays, set(bound))
    codes = {v.name: int(v.type.tensor_type.elem_type) for v in model.proto.graph.input}
    live = {name: codes[name] for name in imported.inputs}
    outputs = tuple(
        (v.name, int(v.type.tensor_type.elem_type), imported.outputs[v.name].shape)
        for v in model.proto.graph.output
    )
    nodes = {n: t.node for n, t in imported.outputs.items() if t.size}
    reads = (n.arg.kind for n in toposort(nodes.values()) if n.op is Op.BUFFER)
    folded = "input" not in reads
    program = None
    if nodes:
        inputs = [t.node for t in imported.inputs.values()]
        graph = EntryGraph(nodes, inputs=inputs, origins=imported.origins)
        context = context_for(spec_of_device(device))
        emitted = compile_entries({"run": graph}, context, name=model.name, kind="plain")
        artifact = from_memory(emitted.manifest, emitted.data)
        program = Program(artifact, device, shared_cache(device))
    order = tuple(name for name in codes if name in needed)
    return ModelProgram(order, live, outputs, program, folded)


def _import(
    model: OnnxModel, arrays: Mapping[str, Array], bound: set[str]
) -> tuple[ImportedModel, set[str]]:
    """Import a model, binding more inputs to their values until no node needs another.

    Returns the imported model and the bound inputs.
    """
    while True:
        try:
            constants = {name: arrays[name] for name in bound}
            return import_model(model, constants=constants), bound
        except ModelError as error:
            wanted = _dynamic_inputs(model, error) - bound
            if not wanted:
                raise
            bound = bound | wanted


def _dynamic_inputs(model: OnnxModel, error: BaseException | None) -> set[str]:
    """Return the inputs whose values an error or its causes need; empty for other errors."""
    asked = ""
    while error is not None:
        if isinstance(error, DynamicInputError):
            if error.inputs:
                return set(error.inputs)
            asked = asked or error.value
        error = error.__cause__
    return _sources(model.proto.graph, asked) if asked else set()


def _sources(graph: onnx.GraphProto, value: str) -> set[str]:
    """Return the inputs of a graph on which a value depends."""
    producers = {name: node for node in graph.node for name in node.output}
    inputs = {given.name for given in graph.input}
    found: set[str] = set()
    todo, seen = [value], {value}
    while todo:
        name = todo.pop()
        if name in producers:
            new = set(producers[name].input) - seen
            todo += new
            seen |= new
        elif name in inputs:
            found.add(name)
    return found


def _with_shapes(model: OnnxModel, arrays: Mapping[str, Array]) -> OnnxModel:
    """Return the model with the shapes of the arrays declared, and their initializers removed."""
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    for value in proto.graph.input:
        if value.name in arrays:
            shape = value.type.tensor_type.shape
            shape.ClearField("dim")
            shape.SetInParent()
            for size in arrays[value.name].shape:
                shape.dim.add().dim_value = size
    kept = [tensor for tensor in proto.graph.initializer if tensor.name not in arrays]
    if len(kept) < len(proto.graph.initializer):
        kept = [onnx.TensorProto.FromString(tensor.SerializeToString()) for tensor in kept]
        del proto.graph.initializer[:]
        proto.graph.initializer.extend(kept)
    constants = {n: array for n, array in model.constants.items() if n not in arrays}
    return replace(model, proto=proto, constants=constants)


def _storage(code: int) -> np.dtype[Any]:
    return to_storage(np.empty(0, onnx.helper.tensor_dtype_to_np_dtype(code)), code).dtype


def check_types(model: OnnxModel) -> None:
    """Raise ModelError if an input or output of the model is not a numeric tensor."""
    graph = model.proto.graph
    for role, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            where = f'{model.name}: {role} "{value.name}"'
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type":
                found = (kind or "value without a type").removesuffix("_type").replace("_", " ")
                raise ModelError(
                    f"{where}: expected a tensor, found: {found}; inputs and outputs of a "
                    "compiled program must be tensors"
                )
            try:
                storage_dtype(value.type.tensor_type.elem_type)
            except ModelError as error:
                raise ModelError(f"{where}: {error}") from error


def named_arrays(model: OnnxModel, inputs: Any) -> dict[str, Array]:
    """Check the inputs of a run, and return them by name in the order of the model.

    Inputs are as for `OnnxBackendRep.run`; those with an initializer are optional. Raises
    InputError if an array is missing or unknown, or its type, rank or size is not as declared.
    """
    declared = {value.name: value for value in model.proto.graph.input}
    needed = [value.name for value in model.inputs]
    given = _by_name(model.name, inputs, needed, list(declared))
    unknown = sorted(set(given) - set(declared))
    missing = [name for name in needed if name not in given]
    if unknown or missing:
        raise InputError(
            f"{model.name}: expected inputs {needed}, found {list(given)}; "
            f"missing: {missing}, unknown: {unknown}"
        )
    sizes: dict[str, int] = {}
    return {
        name: _checked(f'{model.name}: input "{name}"', given[name], value, sizes)
        for name, value in declared.items()
        if name in given
    }


def _by_name(
    model: str, inputs: Any, needed: Sequence[str], declared: Sequence[str]
) -> dict[str, Any]:
    if isinstance(inputs, Mapping):
        return dict(inputs)
    values = list(inputs) if isinstance(inputs, list | tuple) else [inputs]
    # Arrays by position include either all inputs with an initializer, or none of them.
    names = needed if len(values) <= len(needed) else declared
    if len(values) > len(names):
        raise InputError(
            f"{model}: expected inputs {list(needed)}, found {count_text(len(values), 'array')}"
        )
    return dict(zip(names, values, strict=False))


def _checked(where: str, given: Any, declared: onnx.ValueInfoProto, sizes: dict[str, int]) -> Array:
    """Return an input as an array; raise InputError if it does not fit its declaration.

    `sizes` has the symbolic dimensions bound so far; new ones are added.
    """
    kind = declared.type.tensor_type
    wanted = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    if not isinstance(given, np.ndarray | np.generic):
        raise InputError(f"{where}: expected an array, found {type(given).__name__}")
    array = np.asarray(given)
    if array.dtype != wanted:
        raise InputError(f"{where}: expected {type_name(kind.elem_type)}, found {array.dtype}")
    if not kind.HasField("shape"):
        return array
    expected: list[int | str] = []
    for axis, dim in enumerate(kind.shape.dim):
        size: int | str = dim.dim_value if dim.HasField("dim_value") else dim.dim_param or "any"
        if isinstance(size, str) and size != "any" and axis < array.ndim:
            size = sizes.setdefault(size, array.shape[axis])
        expected.append("any" if isinstance(size, int) and size < 0 else size)
    fits = len(expected) == array.ndim and all(
        size in ("any", actual) for size, actual in zip(expected, array.shape, strict=True)
    )
    if not fits:
        raise InputError(f"{where}: expected shape {expected}, found {list(array.shape)}")
    return array
