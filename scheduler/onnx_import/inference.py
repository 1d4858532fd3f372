"""Element types of values in models that use types which are carried (see `element_types`).

What a value is carried in does not tell what it is: a float32 may be a bfloat16. Where a model has
such types at all, ONNX's own inference tells which values have them.
"""

from __future__ import annotations

from collections.abc import Iterator

import onnx

from scheduler.onnx_import.element_types import CARRIED
from scheduler.onnx_import.files.load import OnnxModel


def carried_types(model: OnnxModel) -> dict[str, int]:
    """Return value name -> ONNX element type, for values of carried types only."""
    if not _mentions_carried(model.proto):
        return {}
    light = onnx.ModelProto()
    light.CopyFrom(model.proto)
    try:
        inferred = onnx.shape_inference.infer_shapes(light)
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        inferred = light  # the declared types are left
    found: dict[str, int] = {}
    for graph in _graphs(inferred.graph):
        for tensor in graph.initializer:
            found[tensor.name] = tensor.data_type
        for value in (*graph.input, *graph.output, *graph.value_info):
            found[value.name] = value.type.tensor_type.elem_type
    return {name: code for name, code in found.items() if code in CARRIED}


def _mentions_carried(model: onnx.ModelProto) -> bool:
    for graph in _graphs(model.graph):
        if any(t.data_type in CARRIED for t in graph.initializer):
            return True
        values = (*graph.input, *graph.output, *graph.value_info)
        if any(v.type.tensor_type.elem_type in CARRIED for v in values):
            return True
        if any(_node_mentions(node) for node in graph.node):
            return True
    return any(_node_mentions(node) for f in model.functions for node in f.node)


def _node_mentions(node: onnx.NodeProto) -> bool:
    """Return whether a node makes values of a carried type by an attribute."""
    return any(
        (a.name in _TYPE_ATTRIBUTES and a.i in CARRIED)
        or (a.HasField("t") and a.t.data_type in CARRIED)
        for a in node.attribute
    )


_TYPE_ATTRIBUTES = frozenset({"to", "dtype", "output_dtype"})


def _graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _graphs(attribute.g)
            for inner in attribute.graphs:
                yield from _graphs(inner)
