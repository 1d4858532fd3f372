"""External tensor data: weights in files beside the model, read only from inside its directory.

Called by `load`. A model file may come from anywhere, so a location that leads out of the model's
directory (absolute, `..`, or through a symbolic link) is refused before the file is opened.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from pathlib import Path

import onnx
from onnx import TensorProto

from scheduler.errors import ModelError


def read_external_data(model: onnx.ModelProto, directory: Path | None, where: str) -> None:
    """Replace every external tensor of a model by its bytes, in place.

    Args:
        model: changed in place; afterwards no tensor refers to a file.
        directory: of the model file; None for a model that did not come from a file.
        where: the model's name, for messages.

    Raises:
        ModelError: a location leads out of the directory, or the file is missing or too short.
    """
    for tensor in _tensors(model):
        if tensor.data_location != TensorProto.EXTERNAL:
            continue
        label = f'{where}: tensor "{tensor.name}"'
        if directory is None:
            raise ModelError(
                f"{label}: its data is external, but the model did not come from a file; "
                "load it by path"
            )
        tensor.raw_data = _read(tensor, directory, label)
        del tensor.external_data[:]
        tensor.data_location = TensorProto.DEFAULT


def _read(tensor: TensorProto, directory: Path, label: str) -> bytes:
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _resolve(entries.get("location", ""), directory, label)
    expected = prod(tensor.dims) * _bits(tensor, label) // 8
    offset = _number(entries, "offset", 0, label)
    length = _number(entries, "length", expected, label)
    if length != expected:
        raise ModelError(
            f"{label}: shape {list(tensor.dims)} needs {expected} bytes of external data, "
            f"found length {length}; export the model again"
        )
    size = path.stat().st_size
    if offset + length > size:
        raise ModelError(
            f"{label}: external data {path.name} ends too early: expected at least "
            f"{offset + length} bytes, found {size}; copy the file again"
        )
    with path.open("rb") as file:
        file.seek(offset)
        return file.read(length)


def _resolve(location: str, directory: Path, label: str) -> Path:
    """Return the file a location names; it must lie inside the model's directory."""
    root = directory.resolve()
    # Backslashes would be separators on another system: not a name this project would write.
    if not location or "\0" in location or "\\" in location or Path(location).is_absolute():
        raise ModelError(
            f"{label}: external data location {location!r} must be a path relative to the model"
        )
    path = (root / location).resolve()
    if not path.is_relative_to(root):
        raise ModelError(
            f"{label}: external data location {location!r} leads out of the model's directory; "
            "put the file beside the model"
        )
    if not path.is_file():
        raise ModelError(
            f"{label}: external data file {location!r} is missing; copy it beside the model"
        )
    return path


def _bits(tensor: TensorProto, label: str) -> int:
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)
    except (KeyError, ValueError) as error:
        raise ModelError(f"{label}: unknown element type {tensor.data_type}") from error
    return 8 * dtype.itemsize


def _number(entries: dict[str, str], key: str, default: int, label: str) -> int:
    text = entries.get(key, "")
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ModelError(f"{label}: external data {key} must be a size in bytes, found {text!r}")
    return int(text)


def _tensors(model: onnx.ModelProto) -> Iterator[TensorProto]:
    """Yield every tensor of a model: initializers and attributes, subgraphs and functions too."""
    graphs = [model.graph]
    nodes = [node for function in model.functions for node in function.node]
    while graphs or nodes:
        if graphs:
            graph = graphs.pop()
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
            nodes.extend(graph.node)
            continue
        for attribute in nodes.pop().attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            graphs.extend(attribute.graphs)
            if attribute.HasField("g"):
                graphs.append(attribute.g)
