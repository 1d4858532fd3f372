"""What a test of the suite needs: operators and element types. Tables match on these."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import onnx
from onnx import TensorProto


@dataclass(frozen=True, slots=True)
class Traits:
    """What a model consists of.

    Attributes:
        operators: op types of all nodes, those of nested graphs included, with their domain where
            it is not the default one ("ai.onnx.ml:Binarizer").
        types: of inputs and outputs: ONNX's names of element types ("float16"), or "sequence",
            "optional".
    """

    operators: frozenset[str]
    types: frozenset[str]


def traits_of(model: onnx.ModelProto) -> Traits:
    """Return what a model consists of."""
    operators = {_qualified(node) for node in _nodes(model.graph)}
    types = {_type_of(value.type) for value in (*model.graph.input, *model.graph.output)}
    return Traits(frozenset(operators), frozenset(types))


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                yield from _nodes(attribute.g)


def _qualified(node: onnx.NodeProto) -> str:
    return node.op_type if node.domain in ("", "ai.onnx") else f"{node.domain}:{node.op_type}"


def _type_of(value: onnx.TypeProto) -> str:
    kind = value.WhichOneof("value")
    if kind == "tensor_type":
        return str(TensorProto.DataType.Name(value.tensor_type.elem_type)).lower()
    return str(kind).removesuffix("_type")
