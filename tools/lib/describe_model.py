"""What `modeld inspect` says of an ONNX model. Needs the `compile` extra."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import onnx

from scheduler.onnx_import import load_model, unsupported_nodes
from scheduler.onnx_import.metadata import CHECKPOINT_KEY
from tools.inspect import Section
from tools.lib.table import format_size

if TYPE_CHECKING:
    from pathlib import Path


def describe(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return inputs, outputs, operators and weights.

    Raises:
        ModelError: the file is not a sound ONNX model.
    """
    model = load_model(path)
    graph = model.proto.graph
    checkpoint = model.metadata_props.get(CHECKPOINT_KEY, "")
    operators = Counter(node.op_type for node in graph.node)
    unsupported = Counter(node.op_type for node in unsupported_nodes(model))
    facts: dict[str, Any] = {
        "opset": model.opset,
        "sha256": model.sha256,
        "checkpoint": checkpoint,
        "parameters": sum(array.size for array in model.constants.values()),
        "weight_bytes": sum(array.nbytes for array in model.constants.values()),
        "inputs": [_tensor(value) for value in model.inputs],
        "outputs": [_tensor(value) for value in graph.output],
        "operators": dict(sorted(operators.items())),
        "unsupported": dict(sorted(unsupported.items())),
    }
    overview: list[tuple[object, ...]] = [
        ("opset", str(model.opset)),
        ("sha256", model.sha256),
        ("checkpoint", checkpoint or "unknown"),
        ("parameters", f"{facts['parameters']:,}"),
        ("weights", format_size(facts["weight_bytes"])),
    ]
    tensors = [
        (use, item["name"], item["dtype"], "x".join(map(str, item["shape"])) or "scalar")
        for use in ("inputs", "outputs")
        for item in facts[use]
    ]
    rows: list[tuple[object, ...]] = [
        (name, count, "no" if unsupported[name] else "yes")
        for name, count in operators.most_common()
    ]
    return facts, [
        Section("overview", ("what", "value"), overview),
        Section("tensors", ("use", "name", "dtype", "shape"), [tuple(row) for row in tensors]),
        Section(f"{operators.total()} nodes", ("operator", "count", "ok"), rows),
    ]


def _tensor(value: onnx.ValueInfoProto) -> dict[str, Any]:
    tensor = value.type.tensor_type
    shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
    dtype = onnx.TensorProto.DataType.Name(tensor.elem_type).lower()
    return {"name": value.name, "dtype": dtype, "shape": shape}
