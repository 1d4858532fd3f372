"""External tensor data: weights in files beside the model, read only from inside its directory.

A model file may come from anywhere, so a location that leads out of its directory (absolute, `..`,
or through a symbolic link) is refused before the file is opened. Files are mapped, and must stay as
they are until the model is compiled.
"""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from numpy.typing import NDArray
from onnx import TensorProto, helper

from scheduler.errors import ModelError
from scheduler.onnx_import.files.initializers import element_bits, stored_bytes
from scheduler.onnx_import.limits import MAX_FILE_BYTES
from scheduler.onnx_import.text import printable


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
        expected = stored_bytes(tensor, label)
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
        if element_bits(tensor, label) < 8:
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
