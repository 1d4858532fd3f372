"""Checks of the arrays that go into a compiled ONNX model; part of `onnx_backend`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from runtime.errors import InputError
from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.element_types import storage_dtype, type_name
from scheduler.onnx_import.files.load import OnnxModel

Array = NDArray[Any]


def check_types(model: OnnxModel) -> None:
    """Refuse models whose inputs and outputs are not all tensors of numbers, by a ModelError."""
    graph = model.proto.graph
    for role, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            where = f'{model.name}: {role} "{value.name}"'
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type":
                found = (kind or "value without a type").removesuffix("_type").replace("_", " ")
                raise ModelError(
                    f"{where}: expected a tensor, found: {found}; a compiled program takes and "
                    "gives tensors only"
                )
            try:
                storage_dtype(value.type.tensor_type.elem_type)
            except ModelError as error:
                raise ModelError(f"{where}: {error}") from error


def named_arrays(model: OnnxModel, inputs: Any) -> dict[str, Array]:
    """Return the arrays given for a run by input name, in the order of the model, checked.

    Inputs are as for `OnnxBackendRep.run`; those with an initializer may be left out. Raises
    InputError if an array is missing, unknown, or of another type, rank or size than declared.
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
    # By position; inputs with an initializer are given all or not at all.
    names = needed if len(values) <= len(needed) else declared
    if len(values) > len(names):
        raise InputError(
            f"{model}: expected inputs {list(needed)}, found {count_text(len(values), 'array')}"
        )
    return dict(zip(names, values, strict=False))


def _checked(where: str, given: Any, declared: onnx.ValueInfoProto, sizes: dict[str, int]) -> Array:
    """Return a value as an array that fits its declaration; `sizes` holds symbolic ones so far."""
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
