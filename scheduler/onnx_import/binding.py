"""The inputs of a model as Tensors: sizes of symbolic dimensions, and what the caller gives."""

from __future__ import annotations

from collections.abc import Collection

import onnx

from scheduler.errors import ModelError
from scheduler.ir.dtype import DType
from scheduler.onnx_import.element_types import storage_dtype, type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.text import printable
from scheduler.tensor.tensor import Tensor

# (name, size) of each axis; the size is None where the file leaves it open.
Declared = list[tuple[str, int | None]]


class Binding:
    """Sizes for the symbolic dimensions of one model."""

    def __init__(self, model: OnnxModel, sizes: dict[str, int]) -> None:
        """Check names ("INPUT:AXIS" for unnamed dimensions) and sizes, or raise ModelError."""
        self.notes: list[str] = []  # what was assumed, one sentence each
        self._model = model
        self._sizes = sizes
        self._found: dict[str, int] = {}
        known = open_names(model)
        for name, size in sizes.items():
            if size < 0:
                raise ModelError(f"{model.name}: {printable(name)}={size}: expected a size from 0")
            if name not in known:
                raise ModelError(
                    f'{model.name}: no input has a dimension "{printable(name)}"; found '
                    f"{sorted(known) or 'no symbolic dimensions'}"
                )

    def free_inputs(
        self, given: Collection[str], known: Collection[str]
    ) -> list[onnx.ValueInfoProto]:
        """Return the inputs that get a Tensor: not the known ones; with an initializer, if given.

        Raises ModelError if a name is none of an input.
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
        """Return an input's Tensor, given or new; raise ModelError if it does not fit."""
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
    """Return the names of the dimensions of inputs that a model leaves open."""
    names = set()
    for value in model.inputs:
        for axis, dim in enumerate(value.type.tensor_type.shape.dim):
            if declared_size(dim) is None:
                names |= {dim.dim_param, f"{value.name}:{axis}"} - {""}
    return names


def declared(value: onnx.ValueInfoProto, where: str) -> tuple[Declared, DType]:
    """Return (name, size) per axis, None if symbolic, and the stored type, or raise ModelError."""
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
    """Return a declared size, None if it is open; -1 is how some tools write "any"."""
    size = int(dim.dim_value) if dim.HasField("dim_value") else -1
    return size if size >= 0 else None
