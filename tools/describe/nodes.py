"""Describes the nodes and initializers of an ONNX model, with text that is short of large ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray

from runtime.quantities import count_text, size_text
from scheduler.onnx_import.limits import printable
from tools.lib.table import Section

if TYPE_CHECKING:
    from scheduler.onnx_import.files.load import OnnxModel
    from scheduler.onnx_import.report import NodeFacts

MOST_VALUES: Final = 8
MOST_TEXT: Final = 100
_NUMBERS: Final = "biuf"  # kinds of numpy types that have an order


def node_facts(model: OnnxModel, nodes: Sequence[NodeFacts]) -> list[dict[str, Any]]:
    """Return each node for machines; attributes are plain values, or text if they are large."""
    return [
        {
            "name": node.name,
            "operator": node.op,
            "inputs": list(proto.input),
            "outputs": list(proto.output),
            "attributes": {one.name: _attribute(one) for one in proto.attribute},
            "shape": None if node.shape is None else list(node.shape),
            "dtype": node.dtype,
            "bytes": node.bytes,
            "flops": node.flops,
            "constant": node.constant,
        }
        for node, proto in zip(nodes, model.proto.graph.node, strict=True)
    ]


def node_table(facts: Sequence[dict[str, Any]]) -> Section:
    """Return the nodes for people."""
    header = ("node", "operator", "shape", "dtype", "MFLOP", "", "inputs", "attributes")
    return Section("nodes", header, list(map(_node_row, facts)))


def _node_row(node: dict[str, Any]) -> tuple[object, ...]:
    shape, flops = node["shape"], node["flops"]
    attributes = " ".join(f"{name}={value}" for name, value in node["attributes"].items())
    return (
        node["name"],
        node["operator"],
        "?" if shape is None else "x".join(map(str, shape)) or "scalar",
        node["dtype"] or "?",
        None if flops is None else flops / 1e6,
        "known" if node["constant"] else "",
        printable(", ".join(node["inputs"]), MOST_TEXT),
        printable(attributes, MOST_TEXT),
    )


def initializer_facts(model: OnnxModel) -> list[dict[str, Any]]:
    """Return each initializer for machines; `values` is None for more than a few."""
    return [
        {
            "name": name,
            "dtype": array.dtype.name,
            "shape": list(array.shape),
            "bytes": array.nbytes,
            "values": array.tolist() if array.size <= MOST_VALUES and _is_number(array) else None,
            "min": array.min().item() if array.size and _is_number(array) else None,
            "max": array.max().item() if array.size and _is_number(array) else None,
        }
        for name, array in model.constants.items()
    ]


def initializer_table(facts: Sequence[dict[str, Any]]) -> Section:
    """Return the initializers for people."""
    header = ("initializer", "dtype", "shape", "size", "values")
    return Section("initializers", header, list(_initializer_rows(facts)))


def _initializer_rows(facts: Sequence[dict[str, Any]]) -> Iterator[tuple[object, ...]]:
    for one in facts:
        values = "" if one["values"] is None else str(one["values"])
        if not values and one["min"] is not None:
            values = f"{one['min']:g} to {one['max']:g}"
        shape = "x".join(map(str, one["shape"])) or "scalar"
        yield one["name"], one["dtype"], shape, size_text(one["bytes"]), values


def _attribute(attribute: onnx.AttributeProto) -> Any:
    kind = onnx.AttributeProto.AttributeType.Name(attribute.type)
    value = onnx.helper.get_attribute_value(attribute)
    if kind == "STRING":
        return _text(value)
    if kind == "TENSOR":
        return _tensor(value)
    if kind == "GRAPH":
        return f"graph of {count_text(len(value.node), 'node')}"
    if kind in ("FLOAT", "INT"):
        return value
    if kind in ("FLOATS", "INTS", "STRINGS"):
        found = [_text(one) if kind == "STRINGS" else one for one in value]
        return found if len(found) <= MOST_VALUES else f"{len(found)} {kind.lower()}"
    return kind.lower()  # types, sparse tensors, and lists of tensors and graphs


def _tensor(tensor: onnx.TensorProto) -> str:
    shape = list(tensor.dims)
    name = onnx.TensorProto.DataType.Name(tensor.data_type).lower()
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except (ValueError, TypeError):  # its data lie in another file
        return f"{name}{shape}"
    if array.size > MOST_VALUES or not _is_number(array):
        return f"{name}{shape}"
    return f"{name}{shape} {array.tolist()}"


def _text(value: bytes) -> str:
    return printable(value.decode("utf-8", "replace"), MOST_TEXT)


def _is_number(array: NDArray[Any]) -> bool:
    return np.dtype(array.dtype).kind in _NUMBERS
