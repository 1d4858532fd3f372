"""ONNX's own inference of shapes and element types, used where the translation cannot tell.

It tells which values have a carried type (see `element_types`), and the shapes behind a node that
has no translation.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import onnx
from onnx import helper, numpy_helper

from scheduler.onnx_import.element_types import CARRIED
from scheduler.onnx_import.files.load import OnnxModel

# Larger initializers are no shapes: inference does not need their values.
MAX_SHAPE_ELEMENTS = 1024


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


def infer(
    model: OnnxModel, inputs: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[tuple[int, ...], int]]:
    """Return value name -> (shape, ONNX element type) for what ONNX's inference finds static.

    Large weights are left out, so this is cheap. `inputs` have their symbolic dimensions bound.
    """
    light, sizes = _light(model, inputs)
    try:
        graph = onnx.shape_inference.infer_shapes(light, data_prop=True).graph
    except (RuntimeError, ValueError, onnx.shape_inference.InferenceError):
        graph = light.graph  # what the file declares is left
    found = {}
    for value in (*graph.value_info, *graph.output):
        kind = value.type.tensor_type
        if not kind.HasField("shape") or not kind.elem_type:
            continue
        shape = [
            int(d.dim_value) if d.HasField("dim_value") else sizes.get(d.dim_param, -1)
            for d in kind.shape.dim
        ]
        if all(size >= 0 for size in shape):
            found[value.name] = (tuple(shape), int(kind.elem_type))
    return found


def _light(
    model: OnnxModel, inputs: Mapping[str, tuple[int, ...]]
) -> tuple[onnx.ModelProto, dict[str, int]]:
    """Return the model without large weights, and the sizes of its symbolic dimensions."""
    full, sizes = model.proto, {"": -1}
    light = onnx.ModelProto(ir_version=full.ir_version)
    light.opset_import.extend(full.opset_import)
    light.functions.extend(full.functions)
    light.graph.name = "light"
    light.graph.node.extend(full.graph.node)
    light.graph.output.extend(full.graph.output)
    light.graph.value_info.extend(full.graph.value_info)
    for value in model.inputs:
        light.graph.input.append(value)
        dims = light.graph.input[-1].type.tensor_type.shape.dim
        for dim, size in zip(dims, inputs.get(value.name, ()), strict=False):
            if not dim.HasField("dim_value"):
                sizes[dim.dim_param] = size
            dim.dim_value = size
    for name, array in model.constants.items():
        if array.size <= MAX_SHAPE_ELEMENTS:
            light.graph.initializer.append(numpy_helper.from_array(array, name))
        else:
            code = helper.np_dtype_to_tensor_dtype(array.dtype)
            light.graph.input.append(helper.make_tensor_value_info(name, code, array.shape))
    sizes[""] = -1
    return light, sizes
