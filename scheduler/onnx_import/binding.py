"""Binds the inputs of a model: sizes of symbolic dimensions, Tensors, and fixed values.

Each input that the caller does not supply becomes a new Tensor. An input with a fixed value becomes
an initializer, so an `If` that depends on it has one branch and shapes that depend on it are known.

f(x, rate)   ->   f(x)   with the value of rate as an initializer
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from scheduler.errors import ModelError
from scheduler.ir.dtype import DType
from scheduler.onnx_import.element_types import storage_dtype, type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.limits import printable
from scheduler.tensor.tensor import Tensor

Array = NDArray[Any]
# (name, size) of each axis; the size is None if it is symbolic.
Declared = list[tuple[str, int | None]]


class Binding:
    """Binds the symbolic dimensions of one model to sizes, and makes Tensors for its inputs."""

    def __init__(self, model: OnnxModel, sizes: dict[str, int]) -> None:
        """Check sizes by name ("INPUT:AXIS" for unnamed dimensions), or raise ModelError."""
        self.notes: list[str] = []  # assumptions made so far, one sentence each
        self._model = model
        self._sizes = sizes
        self._found: dict[str, int] = {}
        known = open_names(model)
        for name, size in sizes.items():
            if size < 0:
                raise ModelError(f"{model.name}: {printable(name)}={size}: expected a size >= 0")
            if name not in known:
                raise ModelError(
                    f'{model.name}: no input has a dimension "{printable(name)}"; found '
                    f"{sorted(known) or 'no symbolic dimensions'}"
                )

    def free_inputs(
        self, given: Collection[str], known: Collection[str]
    ) -> list[onnx.ValueInfoProto]:
        """Return the inputs that need a Tensor.

        Those are the inputs without a known value, and of the inputs with an initializer only the
        given ones. Raises ModelError if `given` or `known` has a name that is not an input.
        """
        model = self._model
        names = [value.name for value in model.proto.graph.input]
        unknown = sorted({*given, *known} - set(names))
        if unknown:
            raise ModelError(f"{model.name}: has no input {unknown}; found {names}")
        return [
            value
            for value in model.proto.graph.input
            if value.name not in known
            and (value.name in given or value.name not in model.constants)
        ]

    def tensor(self, value: onnx.ValueInfoProto, given: Tensor | None) -> Tensor:
        """Return the given Tensor or a new one; raise ModelError if shape or type does not fit."""
        where = f'{self._model.name}: input "{printable(value.name)}"'
        shape, dtype = declared(value, where)
        if given is None:
            return Tensor.input(value.name, self._sizes_of(value.name, shape), dtype)
        fits = len(given.shape) == len(shape) and all(
            size in (None, actual) for (_, size), actual in zip(shape, given.shape, strict=True)
        )
        if not fits or given.dtype is not dtype:
            wanted = [name if size is None else size for name, size in shape]
            raise ModelError(
                f"{where}: expected {dtype} {wanted}, found {given.dtype} {list(given.shape)}"
            )
        return given

    def _sizes_of(self, input_name: str, shape: Declared) -> list[int]:
        sizes, assumed = [], []
        for axis, (name, size) in enumerate(shape):
            if size is not None:
                sizes.append(size)
                continue
            key = name if name in self._sizes else f"{input_name}:{axis}"
            if key not in self._sizes:
                assumed.append(name or key)
            sizes.append(self._sizes.get(key, 1))
        if assumed:
            names = ", ".join(map(printable, assumed))
            hint = " ".join(f"--bind {printable(name)}=SIZE" for name in assumed)
            self.notes.append(
                f'input "{printable(input_name)}": {names} bound to 1; other sizes: {hint}'
            )
        return sizes


def open_names(model: OnnxModel) -> set[str]:
    """Return the names of a model's symbolic dimensions, and "INPUT:AXIS" for each of them."""
    names = set()
    for value in model.inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if declared_size(dim) is None:
                names |= {dim.dim_param, f"{value.name}:{axis}"} - {""}
    return names


def declared(value: onnx.ValueInfoProto, where: str) -> tuple[Declared, DType]:
    """Return the declared axes and the storage type of an input.

    `where` names the input in messages. Raises ModelError if its type is missing or unsupported.
    """
    kind = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not kind.HasField("shape"):
        raise ModelError(f"{where}: expected a tensor with a declared number of axes")
    try:
        dtype = storage_dtype(kind.elem_type)
    except ModelError as error:
        raise ModelError(
            f"{where}: unsupported element type {type_name(kind.elem_type)}"
        ) from error
    return [(str(dim.dim_param), declared_size(dim)) for dim in kind.shape.dim], dtype


def declared_size(dim: onnx.TensorShapeProto.Dimension) -> int | None:
    """Return a declared size, or None if it is symbolic; some tools write -1 for "any"."""
    size = int(dim.dim_value) if dim.HasField("dim_value") else -1
    return size if size >= 0 else None


def specialise(model: OnnxModel, values: Mapping[str, Array]) -> OnnxModel:
    """Return a model with inputs replaced by values of the declared types, or raise ModelError."""
    names = [value.name for value in model.inputs]
    unknown = sorted(set(values) - set(names))
    if unknown:
        raise ModelError(f"{model.name}: has no input {unknown}; found {names}")
    proto = onnx.ModelProto()
    proto.CopyFrom(model.proto)
    kept = [value for value in proto.graph.input if value.name not in values]
    del proto.graph.input[:]
    proto.graph.input.extend(kept)
    proto.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array), name) for name, array in values.items()
    )
    return replace(model, proto=proto, constants={**model.constants, **values})


def parse_value(model: OnnxModel, name: str, numbers: list[str], bound: Mapping[str, int]) -> Array:
    """Return the array for an input whose value was given as text.

    `numbers` has one number for all elements, or every element in row-major order. `bound` has
    sizes of symbolic dimensions, as for `import_model`. Raises ModelError if there is no such
    input, or the numbers do not fit its type or shape.
    """
    where = f'{model.name}: input "{printable(name)}"'
    found = [value for value in model.inputs if value.name == name]
    if not found:
        raise ModelError(f"{where} does not exist; found {[v.name for v in model.inputs]}")
    kind = found[0].type.tensor_type
    shape = [
        (size, label)
        for axis, dim in enumerate(kind.shape.dim)
        for size, label in [_size(dim, f"{name}:{axis}", bound)]
    ]
    dims = [-1 if size is None else size for size, _ in shape]
    try:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(kind.elem_type))
        if dtype == np.bool_:
            flat = np.array([{"true": True, "false": False}[n.lower()] for n in numbers])
        else:
            flat = np.array([float(n) if dtype.kind == "f" else int(n) for n in numbers], dtype)
        if len(numbers) == 1 and all(size >= 0 for size in dims):
            return np.broadcast_to(flat.reshape(()), dims).copy()
        return flat.reshape(dims)
    except (KeyError, ValueError, OverflowError, TypeError) as error:
        labels = [str(label if size is None else size) for size, label in shape]
        free = next((label for size, label in shape if size is None), None)
        hint = "" if free is None else f"; give its size with --bind {printable(free)}=SIZE"
        raise ModelError(
            f"{where}: expected {type_name(kind.elem_type)}[{printable(', '.join(labels))}], "
            f"found {','.join(numbers)[:60]}{hint}"
        ) from error


def _size(
    dim: onnx.TensorShapeProto.Dimension, place: str, bound: Mapping[str, int]
) -> tuple[int | None, str]:
    """Return the size of a dimension, or None if it is unknown, and its name for `--bind`."""
    label = str(dim.dim_param) or place
    size = declared_size(dim)
    return bound.get(label, bound.get(place)) if size is None else size, label
