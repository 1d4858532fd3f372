"""The data of tensors in a model: initializers as arrays, and weights in files beside the model.

The shape and type of each tensor are compared with its data; the layout is in onnx.proto, message
TensorProto. A model file may come from anywhere, so a location that leads out of its directory
(absolute, `..`, or through a symbolic link) is refused before the file is opened. Files are mapped,
and must stay as they are until the model is compiled.
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


def _element_bits(tensor: TensorProto, label: str) -> int:
    """Return the bits of a tensor's element; raise ModelError for strings and unknown types."""
    name = _type_name(tensor)
    if name not in _BITS:
        raise ModelError(f"{label}: element type {name} is not supported")
    return _BITS[name]


def _stored_bytes(tensor: TensorProto, label: str) -> int:
    """Return the bytes that shape and type need, or raise ModelError; nothing is allocated."""
    bits = _element_bits(tensor, label)
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


class ExternalData:
    """The files that the tensors of a model refer to; each is mapped once."""

    def __init__(self, directory: Path | None, where: str) -> None:
        self._directory = directory
        self._where = where
        self._files: dict[Path, memoryview] = {}
        self._copied = 0

    def bytes_of(self, tensor: TensorProto) -> memoryview:
        """Return the bytes of an external tensor, a window of the mapped file.

        Raises ModelError if a location leads out of the directory, or the file is missing or too
        short.
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
        # The location is text from a stranger's file.
        path = _resolve(entries.get("location", ""), self._directory, label)
        expected = _stored_bytes(tensor, label)
        # Without offset and length the tensor starts at 0 and fills its shape.
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
        """Return a read-only array over the file, None if packed; raise as `bytes_of` does."""
        label = f'{self._where}: tensor "{printable(tensor.name)}"'
        if _element_bits(tensor, label) < 8:
            return None
        dtype = helper.tensor_dtype_to_np_dtype(tensor.data_type).newbyteorder("<")
        array = np.frombuffer(self.bytes_of(tensor), dtype).reshape(tuple(tensor.dims))
        # Offsets need not be multiples of the element's size, and numpy is slow on such data or
        # refuses it.
        return array if array.flags.aligned else array.copy()

    def read_into(self, tensor: TensorProto) -> None:
        """Put a tensor's external bytes into it; raise as `bytes_of` does, or for too many."""
        data = self.bytes_of(tensor)
        self._copied += len(data)
        # One protobuf message holds what is copied, and has a limit of its own.
        if self._copied > MAX_FILE_BYTES:
            raise ModelError(
                f"{self._where}: more than {MAX_FILE_BYTES} bytes of external data in attributes; "
                "make them initializers"
            )
        tensor.raw_data = bytes(data)
        forget(tensor)


def external_files(path: Path) -> list[Path]:
    """Return the files beside a model that it refers to; none where it is no model to read."""
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
        with suppress(ModelError):  # said when the model is loaded
            found.append(_resolve(name, path.parent, ""))
    return found


def is_external(tensor: TensorProto) -> bool:
    """Whether a tensor's data is in another file."""
    return bool(tensor.data_location == TensorProto.EXTERNAL)


def forget(tensor: TensorProto) -> None:
    """Take the reference to a file out of a tensor."""
    del tensor.external_data[:]
    tensor.data_location = TensorProto.DEFAULT


def _map(path: Path, label: str) -> memoryview:
    try:
        # Not to wait for a pipe, nor to follow what the name became since it was checked.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        try:
            status = os.fstat(handle)
            if not stat.S_ISREG(status.st_mode):
                raise ModelError(f"{label}: external data {printable(path.name)} is no plain file")
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
    """Return the file a location names; it must lie inside the model's directory."""
    shown = repr(printable(location))
    # Backslashes would be separators on another system.
    if not location or "\0" in location or "\\" in location or Path(location).is_absolute():
        raise ModelError(
            f"{label}: external data location {shown} must be a path relative to the model"
        )
    try:
        root = directory.resolve()
        path = (root / location).resolve()
        inside, there = path.is_relative_to(root), path.is_file()
    except (OSError, RuntimeError) as error:  # a name too long, links in a circle
        raise ModelError(f"{label}: external data location {shown} cannot be resolved") from error
    if not inside:
        raise ModelError(
            f"{label}: external data location {shown} leads out of the model's directory; "
            "put the file beside the model"
        )
    if not there:
        raise ModelError(
            f"{label}: external data file {shown} is missing; copy it beside the model"
        )
    return path


def _number(entries: dict[str, str], key: str, default: int, label: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    # Eighteen digits fit into 64 bits, and longer text is no size of a file.
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(
            f"{label}: external data {key} must be a size in bytes, found {printable(text)!r}"
        )
    return int(text)


def inner_tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor but the graph's initializers: of attributes, branches, functions."""
    for sparse in model.graph.sparse_initializer:
        yield from (sparse.values, sparse.indices)
    graphs: list[onnx.GraphProto] = []
    nodes = [*model.graph.node, *(n for function in model.functions for n in function.node)]
    for function in model.functions:
        for attribute in function.attribute_proto:
            yield from _attribute_tensors(attribute, graphs)
    # Branches of a hostile file may be nested at any depth.
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
