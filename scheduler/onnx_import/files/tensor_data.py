"""Reads tensor data of a model: initializers as arrays, and weights in external files.

The shape and type of each tensor are compared with its data, which is laid out as message
TensorProto in onnx.proto describes. Model files are not trusted: an external location outside the
model's directory (absolute, `..`, or through a symbolic link) is refused before the file is opened.
External files are memory-mapped and must not change until the model is compiled.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from runtime.texts import count_text
from scheduler.errors import ModelError
from scheduler.onnx_import.limits import (
    MAX_FILE_BYTES,
    MAX_FILLED_BYTES,
    check_shape,
    one_line,
    printable,
)

Array = NDArray[Any]

# Bits per element. Elements below a byte are packed. Complex numbers are not supported.
_BITS = {
    **dict.fromkeys(("INT2", "UINT2"), 2),
    **dict.fromkeys(("INT4", "UINT4", "FLOAT4E2M1"), 4),
    **dict.fromkeys(("INT8", "UINT8", "BOOL", "FLOAT8E8M0"), 8),
    **dict.fromkeys(("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ"), 8),
    **dict.fromkeys(("INT16", "UINT16", "FLOAT16", "BFLOAT16"), 16),
    **dict.fromkeys(("INT32", "UINT32", "FLOAT"), 32),
    **dict.fromkeys(("INT64", "UINT64", "DOUBLE"), 64),
}
# The TensorProto field with the elements of a type; types that are not listed use int32_data.
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
    """Return the initializers of a graph by name, with sparse ones made dense.

    `known` has the arrays of initializers whose data is external. Raises ModelError if two
    initializers share a name, or the data of one does not fit its shape.
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


def _element_bits(tensor: TensorProto, label: str) -> int:
    """Return the bits per element; raise ModelError for strings and unsupported types."""
    name = _type_name(tensor)
    if name not in _BITS:
        raise ModelError(f"{label}: element type {name} is not supported")
    return _BITS[name]


def _stored_bytes(tensor: TensorProto, label: str) -> int:
    """Return the number of bytes for the tensor's shape and type; raise ModelError if too large."""
    bits = _element_bits(tensor, label)
    check_shape(tensor.dims, -(-bits // 8), label)
    return -(-prod(int(size) for size in tensor.dims) * bits // 8)


def tensor_array(tensor: TensorProto, label: str) -> Array:
    """Return the data inside a tensor; raise ModelError if it does not fit shape and type."""
    check_tensor(tensor, label)
    try:
        with np.errstate(all="ignore"):
            array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, OverflowError, NotImplementedError) as error:
        raise ModelError(f"{label} is damaged: {one_line(error)}") from error
    # Normalize booleans: bytes other than 0 and 1 are invalid in numpy.
    return np.asarray(array.view(np.uint8) != 0) if array.dtype == np.bool_ else array


def check_tensor(tensor: TensorProto, label: str) -> None:
    """Raise ModelError if the amount of data in a tensor does not fit its shape and type."""
    if tensor.HasField("segment"):
        raise ModelError(f"{label} is in segments, which are not supported; export it in one piece")
    name, count = _type_name(tensor), prod(tensor.dims)
    if name == "STRING":
        check_shape(tensor.dims, 1, label)
        found, needed, unit = len(tensor.string_data), count, "texts"
    elif tensor.HasField("raw_data"):
        found, needed, unit = len(tensor.raw_data), _stored_bytes(tensor, label), "bytes"
    else:
        _stored_bytes(tensor, label)
        found = len(getattr(tensor, _FIELDS.get(name, "int32_data")))
        needed, unit = _typed_count(name, count), "values"
    if found != needed:
        raise ModelError(
            f"{label} is damaged: shape {list(tensor.dims)} of {name} needs {needed} {unit} of "
            f"data, found {found}; copy or export the model again"
        )


def _typed_count(name: str, count: int) -> int:
    """Return the values in a typed field for `count` elements; one holds a byte of packed ones."""
    return -(-count * _BITS[name] // 8) if _BITS[name] < 8 else count


def _type_name(tensor: TensorProto) -> str:
    try:
        return str(TensorProto.DataType.Name(tensor.data_type))
    except ValueError:
        return str(tensor.data_type)


def dense_array(sparse: onnx.SparseTensorProto, label: str) -> Array:
    """Return a sparse tensor as a dense array, with zeros for missing values.

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
            f"{label} is damaged: an index is outside shape {list(shape)} or not int64"
        )
    dense = np.zeros(shape, values.dtype)
    where = tuple(indices.T) if coordinates else np.unravel_index(indices, shape)
    dense[where] = values
    return dense


def _within(indices: Array, bounds: Array) -> bool:
    return bool((indices >= 0).all() and (indices < bounds).all())


class ExternalData:
    """The external data files of a model; each is mapped once."""

    def __init__(self, directory: Path | None, where: str) -> None:
        """Create a reader for `directory` (None: no external data) of the model `where`."""
        self._directory = directory
        self._where = where
        self._files: dict[Path, memoryview] = {}
        self._copied = 0

    def bytes_of(self, tensor: TensorProto) -> memoryview:
        """Return the bytes of an external tensor, as a view of the mapped file.

        Raises ModelError if the location is outside the model's directory, or the file is missing
        or too short.
        """
        label = f'{self._where}: tensor "{printable(tensor.name)}"'
        if self._directory is None:
            raise ModelError(
                f"{label}: its data is external, but the model did not come from a file; "
                "load it by path"
            )
        entries = {entry.key: entry.value for entry in tensor.external_data}
        if not all(isinstance(text, str) for pair in entries.items() for text in pair):
            raise ModelError(f"{label}: its reference to external data is not UTF-8 text")
        # The location is untrusted.
        path = _resolve(entries.get("location", ""), self._directory, label)
        expected = _stored_bytes(tensor, label)
        # The default offset is 0, and the default length follows from the shape.
        offset = _number(entries, "offset", 0, label)
        length = _number(entries, "length", expected, label)
        if length != expected:
            raise ModelError(
                f"{label}: shape {list(tensor.dims)} needs {expected} bytes of external data, "
                f"found length {length}; export the model again"
            )
        if path not in self._files:
            self._files[path] = _map(path, label)
        data = self._files[path]
        if offset + length > len(data):
            raise ModelError(
                f"{label}: external data {printable(path.name)} ends too early: expected at least "
                f"{offset + length} bytes, found {len(data)}; copy the file again"
            )
        return data[offset : offset + length]

    def array_of(self, tensor: TensorProto) -> NDArray[Any] | None:
        """Return a read-only array over the mapped file, or None for elements below a byte."""
        label = f'{self._where}: tensor "{printable(tensor.name)}"'
        if _element_bits(tensor, label) < 8:
            return None
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
        array = np.frombuffer(self.bytes_of(tensor), dtype).reshape(tuple(tensor.dims))
        # An offset can be unaligned. numpy is slow on unaligned data, or refuses it.
        return array if array.flags.aligned else array.copy()

    def read_into(self, tensor: TensorProto) -> None:
        """Copy a tensor's external bytes into it; raise ModelError if the total is too large."""
        data = self.bytes_of(tensor)
        self._copied += len(data)
        # All copies end up in one protobuf message, whose size is limited.
        if self._copied > MAX_FILE_BYTES:
            raise ModelError(
                f"{self._where}: more than {MAX_FILE_BYTES} bytes of external data in attributes; "
                "make them initializers"
            )
        tensor.raw_data = bytes(data)
        forget(tensor)


def external_files(path: Path) -> list[Path]:
    """Return the external data files of a model; empty if the model cannot be read."""
    try:
        model = onnx.load_model(path, format="protobuf", load_external_data=False)
    except (OSError, ValueError, DecodeError):
        return []
    tensors = [*model.graph.initializer, *inner_tensors(model)]
    names = {
        entry.value
        for tensor in tensors
        if is_external(tensor)
        for entry in tensor.external_data
        if entry.key == "location"
    }
    found = []
    for name in sorted(names):
        with suppress(ModelError):  # `load_model` reports bad locations
            found.append(_resolve(name, path.parent, ""))
    return found


def is_external(tensor: TensorProto) -> bool:
    """Return whether a tensor's data is in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def forget(tensor: TensorProto) -> None:
    """Remove a tensor's reference to external data."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT


def _map(path: Path, label: str) -> memoryview:
    try:
        # Do not block on a pipe, nor follow a symbolic link put there after the check.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                name = printable(path.name)
                raise ModelError(f"{label}: external data {name} is not a regular file")
            if status.st_size == 0:
                return memoryview(b"")
            return memoryview(mmap.mmap(handle, 0, access=mmap.ACCESS_READ))
        finally:
            os.close(handle)
    except (OSError, ValueError) as error:
        text = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise ModelError(
            f"{label}: external data {printable(path.name)} cannot be read ({text})"
        ) from error


def _resolve(location: str, directory: Path, label: str) -> Path:
    """Return the path of a location; raise ModelError if it is outside the model's directory."""
    shown = repr(printable(location))
    # Backslashes separate directories on other systems.
    if not location or "\0" in location or "\\" in location or Path(location).is_absolute():
        raise ModelError(
            f"{label}: external data location {shown} must be a path relative to the model"
        )
    try:
        root = directory.resolve()
        path = (root / location).resolve()
        inside, there = path.is_relative_to(root), path.is_file()
    except (OSError, RuntimeError) as error:  # the name is too long, or links form a loop
        raise ModelError(f"{label}: external data location {shown} cannot be resolved") from error
    if not inside:
        raise ModelError(
            f"{label}: external data location {shown} leads out of the model's directory; "
            "put the file next to the model"
        )
    if not there:
        raise ModelError(
            f"{label}: external data file {shown} is missing; copy it next to the model"
        )
    return path


def _number(entries: dict[str, str], key: str, default: int, label: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    # Eighteen digits fit into 64 bits; no file size has more.
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(
            f"{label}: external data {key} must be a size in bytes, found {printable(text)!r}"
        )
    return int(text)


def inner_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor except the top graph's dense initializers.

    That includes sparse initializers, and the tensors of attributes, branches and functions.
    """
    for sparse in model.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    graphs: list[onnx.GraphProto] = []
    nodes = [*model.graph.node, *(n for function in model.functions for n in function.node)]
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute, graphs)
    # A hostile file can nest graphs at any depth, so this does not recurse.
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
            continue
        for attribute in nodes.pop().attribute:
            yield from _attribute_tensors(attribute, graphs)


def _attribute_tensors(
    attribute: onnx.AttributeProto, graphs: list[onnx.GraphProto]
) -> Iterator[TensorProto]:
    if attribute.HasField("t"):
        yield attribute.t
    yield from attribute.tensors
    for sparse in attribute.sparse_tensors:
        yield from (sparse.values, sparse.indices)
    if attribute.HasField("sparse_tensor"):
        yield from (attribute.sparse_tensor.values, attribute.sparse_tensor.indices)
    graphs.extend(attribute.graphs)
    if attribute.HasField("g"):
        graphs.append(attribute.g)
