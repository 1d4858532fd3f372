"""Initializers as arrays; the shape and type of each tensor are compared with its data.

Layout of the data fields: onnx.proto, message TensorProto.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.limits import MAX_FILLED_BYTES, check_shape
from scheduler.onnx_import.text import one_line, printable

Array = NDArray[Any]

# Those below a byte are packed in raw data. Complex numbers are not supported.
_BITS = {
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT8", "UINT8", "BOOL", "FLOAT8E8M0"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    **dict.fromkeys(("INT16", "UINT16", "FLOAT16", "BFLOAT16"), 16),
    **dict.fromkeys(("INT32", "UINT32", "FLOAT"), 32),
    **dict.fromkeys(("INT64", "UINT64", "DOUBLE"), 64),
}
# Which typed field holds a type's elements; all others are in int32_data.
_FIELDS = {
    "FLOAT": "float_data",
    "DOUBLE": "double_data",
    **dict.fromkeys(("UINT32", "UINT64"), "uint64_data"),
    "INT64": "int64_data",
    "STRING": "string_data",
}


def graph_constants(
    graph: onnx.GraphProto, where: str, known: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Return the initializers of a graph by name, sparse ones made dense; no data is external.

    `known` are arrays of those that hold no data any more. Raises ModelError if two have one name,
    or one does not have the data that its shape needs.
    """
    found: dict[str, Array] = {}
    for tensor in graph.initializer:
        array = known.get(tensor.name) if known else None
        if array is None:
            array = tensor_array(tensor, _label(where, tensor.name))
        _add(found, tensor.name, array, where)
    for sparse in graph.sparse_initializer:
        name = sparse.values.name
        _add(found, name, dense_array(sparse, _label(where, name)), where)
    return found


def _label(where: str, name: str) -> str:
    return f'{where}: initializer "{printable(name)}"'


def _add(found: dict[str, Array], name: str, array: Array, where: str) -> None:
    if not name or name in found:
        fault = "occurs twice" if name else "has no name"
        raise ModelError(f"{_label(where, name)} {fault}; export the model again")
    found[name] = array


def element_bits(tensor: TensorProto, label: str) -> int:
    """Return the bits of a tensor's element; raise ModelError for strings and unknown types."""
    name = _type_name(tensor)
    if name not in _BITS:
        raise ModelError(f"{label}: element type {name} is not supported")
    return _BITS[name]


def stored_bytes(tensor: TensorProto, label: str) -> int:
    """Return the bytes that shape and type need, or raise ModelError; nothing is allocated."""
    bits = element_bits(tensor, label)
    check_shape(tensor.dims, -(-bits // 8), label)
    return -(-prod(int(size) for size in tensor.dims) * bits // 8)


def tensor_array(tensor: TensorProto, label: str) -> Array:
    """Return a tensor's inside data; raise ModelError if shape and type do not fit it."""
    check_tensor(tensor, label)
    try:
        with np.errstate(all="ignore"):
            array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OverflowError, NotImplementedError) as error:
        raise ModelError(f"{label} is damaged: {one_line(error)}") from error
    # Bytes other than 0 and 1 would be neither true nor false.
    return np.asarray(array.view(np.uint8) != 0) if array.dtype == np.bool_ else array


def check_tensor(tensor: TensorProto, label: str) -> None:
    """Compare the data of a tensor with its shape and type; raise ModelError as `tensor_array`."""
    if tensor.HasField("segment"):
        raise ModelError(f"{label} is in segments, which are not supported; export it whole")
    name, count = _type_name(tensor), prod(tensor.dims)
    if name == "STRING":
        check_shape(tensor.dims, 1, label)
        found, needed, unit = len(tensor.string_data), count, "texts"
    elif tensor.HasField("raw_data"):
        found, needed, unit = len(tensor.raw_data), stored_bytes(tensor, label), "bytes"
    else:
        stored_bytes(tensor, label)
        found = len(getattr(tensor, _FIELDS.get(name, "int32_data")))
        needed, unit = _typed_count(name, count), "values"
    if found != needed:
        raise ModelError(
            f"{label} is damaged: shape {list(tensor.dims)} of {name} needs {needed} {unit} of "
            f"data, found {found}; copy or export the model again"
        )


def _typed_count(name: str, count: int) -> int:
    return -(-count * _BITS[name] // 8) if _BITS[name] < 8 else count


def _type_name(tensor: TensorProto) -> str:
    try:
        return str(TensorProto.DataType.Name(tensor.data_type))
    except ValueError:
        return str(tensor.data_type)


def dense_array(sparse: onnx.SparseTensorProto, label: str) -> Array:
    """Return a sparse tensor as a dense array: zeros where it gives no value.

    Indices are either positions in the flattened tensor, (values,), or coordinates, (values, axes).
    Raises ModelError if indices do not fit the shape, or the dense array would be too large.
    """
    values = tensor_array(sparse.values, label)
    indices = tensor_array(sparse.indices, f"{label}, its indices")
    shape = tuple(sparse.dims)
    check_shape(shape, values.itemsize, f"{label}, made dense", MAX_FILLED_BYTES)
    coordinates = indices.ndim == 2 and indices.shape == (values.size, len(shape))
    if values.ndim != 1 or not (coordinates or indices.shape == values.shape):
        raise ModelError(
            f"{label} is damaged: {list(values.shape)} values with indices of shape "
            f"{list(indices.shape)} for a tensor of {count_text(len(shape), 'axis', 'axes')}"
        )
    bounds = np.array(shape if coordinates else (prod(shape),), np.int64)
    if indices.dtype != np.int64 or (indices.size and not _within(indices, bounds)):
        raise ModelError(
            f"{label} is damaged: an index lies outside of shape {list(shape)} or is no int64"
        )
    dense = np.zeros(shape, values.dtype)
    where = tuple(indices.T) if coordinates else np.unravel_index(indices, shape)
    dense[where] = values
    return dense


def _within(indices: Array, bounds: Array) -> bool:
    return bool((indices >= 0).all() and (indices < bounds).all())
