"""Finds the nodes of a model that cannot be translated, and expands ONNX functions.

An operator is supported if it has a translator, if a function of the model or of ONNX defines it
through other operators, or if it is evaluated at import because its inputs are known. Error
messages suggest the nearest supported form.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import TypeProto

from scheduler.errors import ModelError, UnsupportedOpError
from scheduler.onnx_import.files.graph_checks import subgraphs
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.limits import DEFAULT_DOMAINS, node_label, one_line, qualified_op
from scheduler.onnx_import.table import TRANSLATORS

# --- Operators defined by a function of the model or of ONNX itself ---------------------------
#
#     Gelu(x)   ->   the nodes of its body, with attribute values filled in and their own opset
#
# A model's own functions have precedence: they can replace an operator.

Key = tuple[str, str, str]  # (domain, name, overload) of a function


@dataclass(frozen=True, slots=True)
class Body:
    """The body of a function for one call."""

    inputs: tuple[str, ...]  # names of the formal inputs
    outputs: tuple[str, ...]  # names of the formal outputs
    nodes: tuple[onnx.NodeProto, ...]  # the nodes, with the call's attribute values filled in
    opset: int  # version of the default domain for the nodes


def local_functions(model: onnx.ModelProto) -> dict[Key, onnx.FunctionProto]:
    """Return a model's own functions by (domain, name, overload)."""
    return {(f.domain, f.name, f.overload): f for f in model.functions}


def find_local(
    functions: Mapping[Key, onnx.FunctionProto], node: onnx.NodeProto
) -> onnx.FunctionProto | None:
    """Return the model's own function that a node calls, or None."""
    return functions.get((node.domain, node.op_type, node.overload))


def has_schema_body(op_type: str, opset: int) -> bool:
    """Return whether ONNX defines an operator of the default domain by a function."""
    if not onnx.defs.has(op_type, opset, ""):
        return False
    schema: Any = onnx.defs.get_schema(op_type, opset, "")  # the type stubs lack these members
    return bool(schema.has_function or schema.has_context_dependent_function)


def schema_body(node: onnx.NodeProto, opset: int, types: Sequence[TypeProto]) -> onnx.FunctionProto:
    """Return ONNX's own function for a node of the default domain.

    `types` are the input types; a left-out input has an empty type. Raises ModelError if ONNX
    defines no function for these types.
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
        raise ModelError(f"ONNX does not define it for these types: {one_line(error)}") from error
    defaults = (a.default_value for a in schema.attributes.values())
    function.attribute_proto.extend(d for d in defaults if d.name)
    return function


def _version(versions: Sequence[int], opset: int) -> int:
    """Return the version of a function for an opset: the newest up to it, or else the oldest."""
    # ONNX added some functions long after the last change of the operator.
    return max((v for v in versions if v <= opset), default=min(versions))


def instantiate(function: onnx.FunctionProto, node: onnx.NodeProto, opset: int) -> Body:
    """Return a function's body for one call.

    `opset` is the caller's version of the default domain; it applies if the function has none.
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
    """Return a node with references to the function's attributes replaced by the given values."""
    if not _refers(node):
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    del made.attribute[:]
    for attribute in node.attribute:
        if attribute.ref_attr_name:
            value = given.get(attribute.ref_attr_name)
            if value is not None:  # otherwise the operator's default applies
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


__all__ = ["check_supported", "node_label", "qualified_op", "unsupported_nodes"]

# Always evaluated at import: the result does not depend on the values of inputs.
SHAPE_ONLY = frozenset({"Constant", "Shape", "Size"})
# Never evaluated at import: the result is not a function of the inputs.
RANDOM = frozenset(
    {"Bernoulli", "Multinomial"}
    | {"RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
NAMES_PER_OP = 8  # the maximum number of nodes of an operator named in a message

# ONNX operator -> advice on what to use instead.
HINTS = {
    "NonMaxSuppression": "end the model before it; how many boxes remain depends on data",
    "SequenceMap": "Loop, or the operator written out for each element",
}
CUSTOM_HINT = "a function of the model, made of ONNX operators"
# Smallest similarity (difflib) of a misspelled name to the correct one. Softmaxx and Softmax have
# 0.93, Foo and Floor 0.75.
MISSPELLING = 0.85


def unsupported_nodes(model: OnnxModel, known: Collection[str] = ()) -> list[onnx.NodeProto]:
    """Return every node that can be neither translated nor evaluated at import.

    Nodes in inner graphs are included. `known` are names of model inputs with fixed values.
    """
    search = _Search(model.opset, local_functions(model.proto))
    search.graph(model.proto.graph.node, {*model.constants, *known})
    return search.bad


@dataclass
class _Search:
    """Walks a model and collects the nodes that cannot be translated in `bad`."""

    opset: int
    functions: Mapping[Key, onnx.FunctionProto]
    bad: list[onnx.NodeProto] = field(default_factory=list)
    _called: set[Key] = field(default_factory=set)

    def graph(self, nodes: Iterable[onnx.NodeProto], known: set[str]) -> None:
        """Check nodes in order; the names of values known at import are added to `known`."""
        for node in nodes:
            self._node(node, known)

    def _node(self, node: onnx.NodeProto, known: set[str]) -> None:
        graphs = subgraphs(node)
        for graph in graphs:
            inner = {*known, *(t.name for t in graph.initializer)}
            self.graph(graph.node, inner - {i.name for i in graph.input})
        local = find_local(self.functions, node)
        if local is not None:
            self._function(local)
            return
        default = node.domain in DEFAULT_DOMAINS
        foldable = default and node.op_type not in RANDOM and not graphs
        inputs_known = all(not name or name in known for name in node.input)
        if foldable and (node.op_type in SHAPE_ONLY or inputs_known):
            if node.op_type not in TRANSLATORS and not onnx.defs.has(node.op_type, self.opset, ""):
                self.bad.append(node)
            known.update(node.output)
        elif qualified_op(node) not in TRANSLATORS and not (default and self._has_body(node)):
            self.bad.append(node)

    def _has_body(self, node: onnx.NodeProto) -> bool:
        return node.op_type not in RANDOM and has_schema_body(node.op_type, self.opset)

    def _function(self, function: onnx.FunctionProto) -> None:
        key = function.domain, function.name, function.overload
        if key not in self._called:  # each function is checked once
            self._called.add(key)
            self.graph(function.node, set())


def check_supported(*models: OnnxModel, known: Collection[str] = ()) -> None:
    """Raise UnsupportedOpError, listing all nodes of the models that cannot be translated.

    `known` are names of model inputs with fixed values.
    """
    found = [text for model in models if (text := _unsupported_text(model, known))]
    if found:
        raise UnsupportedOpError(f"{'; '.join(found)}; replace them and export again")


def _unsupported_text(model: OnnxModel, known: Collection[str]) -> str:
    """Return a text about a model's nodes that cannot be translated, "" if there are none."""
    bad = unsupported_nodes(model, known)
    if not bad:
        return ""
    by_op: dict[str, list[str]] = {}
    for node in bad:
        by_op.setdefault(qualified_op(node), []).append(node_label(node))
    parts = [f"{op} ({_names(names)}{_hint(op)})" for op, names in sorted(by_op.items())]
    kinds = "operator is" if len(by_op) == 1 else "operators are"
    return (
        f"{model.name}: {len(by_op)} {kinds} not supported at opset {model.opset}: "
        f"{', '.join(parts)}"
    )


def _names(names: Iterable[str]) -> str:
    listed = list(names)
    text = ", ".join(f'"{name}"' for name in listed[:NAMES_PER_OP])
    rest = len(listed) - NAMES_PER_OP
    kind = "node" if len(listed) == 1 else "nodes"
    return f"{kind} {text} and {rest} more" if rest > 0 else f"{kind} {text}"


def nearest_form(op: str) -> str:
    """Return advice on what to use instead of an operator, "" if unknown.

    `op` is a name in the form of `qualified_op`. An operator of another domain is matched by its op
    type, and a name that ONNX does not know is treated as a misspelling.
    """
    _, colon, op_type = op.rpartition(":")
    if colon:
        if op_type in TRANSLATORS:
            return f"{op_type} of the default domain"
        namesakes = [name for name in TRANSLATORS if name.endswith(f":{op_type}")]
        return namesakes[0] if namesakes else CUSTOM_HINT
    if op in HINTS or onnx.defs.has(op):
        return HINTS.get(op, "")
    own = {name.lower(): name for name in TRANSLATORS if ":" not in name}
    close = difflib.get_close_matches(op.lower(), own, n=1, cutoff=MISSPELLING)
    return own[close[0]] if close else ""


def _hint(op: str) -> str:
    hint = nearest_form(op)
    return f"; nearest supported: {hint}" if hint else ""
