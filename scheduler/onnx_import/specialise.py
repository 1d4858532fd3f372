"""A model with some of its inputs fixed: shapes, modes, sampling rates given as inputs.

f(x, rate)   ->   f(x)   with rate an initializer: If on it takes one branch, shapes are known
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from scheduler.errors import ModelError
from scheduler.onnx_import.element_types import type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.text import printable

Array = NDArray[Any]


def specialise(model: OnnxModel, values: Mapping[str, Array]) -> OnnxModel:
    """Return a model that has the inputs named here no more; their values have the declared types.

    Raises:
        ModelError: there is no such input.
    """
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


def parse_value(model: OnnxModel, name: str, numbers: list[str]) -> Array:
    """Return the value of an input written as text.

    Args:
        model: whose input it is.
        name: of the input.
        numbers: one for all elements, or all elements row by row.

    Raises:
        ModelError: there is no such input, or the numbers do not fit its type or shape.
    """
    where = f'{model.name}: input "{printable(name)}"'
    found = [value for value in model.inputs if value.name == name]
    if not found:
        raise ModelError(f"{where} is not there; found {[v.name for v in model.inputs]}")
    kind = found[0].type.tensor_type
    dims = [d.dim_value if d.HasField("dim_value") else -1 for d in kind.shape.dim]
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
        raise ModelError(
            f"{where}: expected {type_name(kind.elem_type)}{dims}, found {','.join(numbers)[:60]}"
        ) from error
