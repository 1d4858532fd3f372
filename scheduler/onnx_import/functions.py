"""Operators that are functions: defined in the model, or by ONNX itself, through other operators.

    Gelu(x)   ->   the nodes of its body, with attributes put in and the function's own opset

A model's own functions come first: they may replace an operator. ONNX's bodies serve the operators
that have no translator.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TypeProto

from scheduler.errors import ModelError
from scheduler.onnx_import.text import DEFAULT_DOMAINS, one_line

Key = tuple[str, str, str]


@dataclass(frozen=True, slots=True)
class Body:
    """The nodes of a function, ready for translation.

    Attributes:
        inputs, outputs: names of the formal parameters.
        nodes: with the attributes of the call put in.
        opset: version of the default domain that they are written in.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: tuple[onnx.NodeProto, ...]
    opset: int


def local_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """Return a model's own functions by (domain, name, overload)."""
    return {(f.domain, f.name, f.overload): f for f in model.functions}


def find_local(
    functions: Mapping[Key, onnx.FunctionProto], node: onnx.NodeProto
) -> onnx.FunctionProto | None:
    """Return the model's own function that a node calls, None if it calls none."""
    return functions.get((node.domain, node.op_type, node.overload))


def has_schema_body(op_type: str, opset: int) -> bool:
    """Return whether ONNX defines an operator of the default domain through others."""
    if not onnx.defs.has(op_type, opset, ""):
        return False
    schema: Any = onnx.defs.get_schema(op_type, opset, "")  # its type stubs lack these members
    return bool(schema.has_function or schema.has_context_dependent_function)


def schema_body(node: onnx.NodeProto, opset: int, types: Sequence[TypeProto]) -> onnx.FunctionProto:
    """Return ONNX's own definition of an operator through others.

    Args:
        node: of the default domain, of an operator that has one.
        opset: version of it.
        types: of the node's inputs, an empty one for what is left out.

    Raises:
        ModelError: the definition does not exist for these types.
    """
    schema: Any = onnx.defs.get_schema(node.op_type, opset, "")
    function = onnx.FunctionProto()
    try:
        if schema.has_context_dependent_function:
            data = schema.get_context_dependent_function_with_opset_version(
                _version(schema.context_dependent_function_opset_versions, opset),
                node.SerializeToString(),
                [t.SerializeToString() for t in types],
            )
        else:
            version = _version(schema.function_opset_versions, opset)
            data = schema.get_function_with_opset_version(version)
        function.ParseFromString(data)
    except (ValueError, RuntimeError) as error:
        raise ModelError(f"ONNX gives it no definition here: {one_line(error)}") from error
    defaults = (a.default_value for a in schema.attributes.values())
    function.attribute_proto.extend(d for d in defaults if d.name)
    return function


def _version(versions: Sequence[int], opset: int) -> int:
    """Return which text of a definition serves an opset: the newest it knows, or the oldest."""
    # Some operators were given a definition long after their last change of meaning.
    return max((v for v in versions if v <= opset), default=min(versions))


def instantiate(function: onnx.FunctionProto, node: onnx.NodeProto, opset: int) -> Body:
    """Return the body of a function as one call of it (a node) needs it.

    The caller's opset is for functions that do not say theirs.
    """
    given = {a.name: a for a in function.attribute_proto} | {a.name: a for a in node.attribute}
    versions = [o.version for o in function.opset_import if o.domain in DEFAULT_DOMAINS]
    return Body(
        tuple(function.input),
        tuple(function.output),
        tuple(_with_attributes(inner, given) for inner in function.node),
        versions[0] if versions else opset,
    )


def _with_attributes(
    node: onnx.NodeProto, given: Mapping[str, onnx.AttributeProto]
) -> onnx.NodeProto:
    """Return a node with references to attributes of the function replaced by their values."""
    if not _refers(node):
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = given.get(attribute.ref_attr_name)
            if value is not None:  # else the operator's own default
                made.attribute.add().CopyFrom(value)
                made.attribute[-1].name = attribute.name
            continue
        made.attribute.add().CopyFrom(attribute)
        graphs = [made.attribute[-1].g] if attribute.HasField("g") else made.attribute[-1].graphs
        for graph in graphs:
            inner = [_with_attributes(n, given) for n in graph.node]
            del graph.node[:]
            graph.node.extend(inner)
    return made


def _refers(node: onnx.NodeProto) -> bool:
    return any(a.ref_attr_name or a.HasField("g") or a.graphs for a in node.attribute)
