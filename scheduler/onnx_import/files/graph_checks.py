"""Checks the structure of a model's graphs and sorts their nodes.

Every name must be defined once, every value that a node reads must exist, and there must be no
cycles and no recursive functions. Sizes and numbers have limits, because model files are not
trusted. ONNX requires nodes in topological order; many exporters ignore that, so the nodes are
sorted here. The operators themselves are checked by onnx's own checker.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence

import onnx
from google.protobuf.message import Message

from scheduler.errors import ModelError
from scheduler.onnx_import.limits import (
    COUNTS,
    MAX_DEPTH,
    MAX_EXPANDED_NODES,
    MAX_PORTS,
    check_shape,
    node_label,
    printable,
    qualified_op,
)

NAMES_IN_CYCLE = 3  # the maximum number of nodes of a cycle named in a message
# Bytes per element of an input; types that are not listed count as one byte.
_WIDE = {onnx.TensorProto.FLOAT: 4, onnx.TensorProto.INT32: 4, onnx.TensorProto.UINT32: 4}
_WIDE |= {onnx.TensorProto.DOUBLE: 8, onnx.TensorProto.INT64: 8, onnx.TensorProto.UINT64: 8}


def check_text(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError if a name is not UTF-8 text, or graphs are nested too deep."""
    texts: list[object] = [t for o in model.opset_import for t in (o.domain,)]
    for function in model.functions:
        texts += (function.name, function.domain, *function.input, *function.output)
        texts += (*function.attribute, *(o.domain for o in function.opset_import))
    for graph in _all_graphs(model, where):
        texts += (t.name for t in graph.initializer)
        texts += (s.values.name for s in graph.sparse_initializer)
        for value in (*graph.input, *graph.output):
            texts.append(value.name)
            texts += (d.dim_param for d in value.type.tensor_type.shape.dim)
        texts += _texts_of(graph.node)
    for function in model.functions:
        texts += _texts_of(function.node)
    if not all(isinstance(text, str) for text in texts):
        raise ModelError(f"{where}: a name in it is not UTF-8 text; is the file complete?")


def _texts_of(nodes: Iterable[onnx.NodeProto]) -> Iterator[object]:
    for node in nodes:
        yield from (node.name, node.op_type, node.domain, node.overload)
        yield from node.input
        yield from node.output
        for attribute in node.attribute:
            yield from (attribute.name, attribute.ref_attr_name)


def subgraphs(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    """Return the graphs in a node's attributes, such as branches and loop bodies."""
    found: list[onnx.GraphProto] = []
    for attribute in node.attribute:
        if attribute.HasField("g"):
            found.append(attribute.g)
        found.extend(attribute.graphs)
    return found


def all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Yield every node of a model, including those in branches, loops and functions."""
    yield from _walk(model.graph.node)
    for function in model.functions:
        yield from _walk(function.node)


def _all_graphs(model: onnx.ModelProto, where: str) -> Iterator[onnx.GraphProto]:
    top = [g for f in model.functions for n in f.node for g in subgraphs(n)]
    stack = [(model.graph, 0), *((g, 1) for g in top)]
    while stack:
        graph, depth = stack.pop()
        if depth > MAX_DEPTH:
            raise ModelError(f"{where}: graphs are nested more than {MAX_DEPTH} deep")
        yield graph
        stack.extend((g, depth + 1) for node in graph.node for g in subgraphs(node))


def check_graphs(model: onnx.ModelProto, where: str) -> list[str]:
    """Check every graph of a model and sort its nodes in place.

    Returns one sentence for each change. Raises ModelError, with the node names, if a name is
    defined twice or not at all, if nodes form a cycle, or if a function calls itself.
    """
    check_ports(model.graph, where)
    notes: list[str] = []
    graph = model.graph
    given = [*(i.name for i in graph.input), *_held(graph)]
    outputs = [o.name for o in graph.output]
    _Checker(where, notes).check(graph.node, given, outputs, ())
    _check_functions(model, where)
    for function in model.functions:
        label = f'{where}: function "{printable(function.name)}"'
        _Checker(label, notes).check(function.node, function.input, function.output, ())
    return notes


def check_ports(graph: onnx.GraphProto, where: str) -> None:
    """Check names, number and declared sizes of inputs and outputs, or raise ModelError."""
    if not graph.output:
        raise ModelError(f"{where}: the model has no outputs, so there is nothing to compute")
    for kind, values in (("input", graph.input), ("output", graph.output)):
        names = [value.name for value in values]
        if len(names) > MAX_PORTS:
            raise ModelError(f"{where}: {len(names)} {kind}s, at most {MAX_PORTS} are supported")
        if len(set(names)) < len(names):
            twice = next(name for i, name in enumerate(names) if name in names[:i])
            raise ModelError(f'{where}: {kind} "{printable(twice)}" is listed twice; rename one')
        if "" in names:
            raise ModelError(f"{where}: {kind} {names.index('')} has no name; export it again")
    for value in graph.input:
        kind_of = value.type.tensor_type
        sizes = [d.dim_value if d.HasField("dim_value") else 1 for d in kind_of.shape.dim]
        # Some tools write a negative size for "any".
        sizes = [1 if size < 0 else size for size in sizes]
        check_shape(
            sizes, _WIDE.get(kind_of.elem_type, 1), f'{where}: input "{printable(value.name)}"'
        )


def _held(graph: onnx.GraphProto) -> list[str]:
    return [
        *(t.name for t in graph.initializer),
        *(s.values.name for s in graph.sparse_initializer),
    ]


class _Checker:
    """Checks and sorts a list of nodes and the graphs in their attributes."""

    def __init__(self, where: str, notes: list[str]) -> None:
        self._where = where
        self._notes = notes

    def check(
        self,
        nodes: Sequence[onnx.NodeProto],
        given: Iterable[str],
        outputs: Iterable[str],
        outer: tuple[Mapping[str, int], ...],
    ) -> set[str]:
        """Check one graph and sort its nodes in place.

        `given` are names of inputs and initializers, `outputs` names of outputs, and `outer` the
        names defined by the enclosing graphs. Returns the names read from enclosing graphs.
        """
        # Name -> position of the node that computes it, or -1 for an input or initializer.
        makers = {name: -1 for name in given if name}
        for index, node in enumerate(nodes):
            self._define(makers, node, index)
        scopes = (*outer, makers)
        free: set[str] = set()
        needs = [self._needs(node, scopes) for node in nodes]
        for node, names in zip(nodes, needs, strict=True):
            for name in names:
                if not any(name in scope for scope in scopes):
                    raise ModelError(
                        f'{self._label(node)}: its input "{printable(name)}" is not a node output, '
                        "graph input or initializer"
                    )
            free.update(name for name in names if name not in makers)
        for name in outputs:
            if not any(name in scope for scope in scopes):
                raise ModelError(
                    f'{self._where}: output "{printable(name)}" is computed by no node'
                )
            if name not in makers:
                free.add(name)
        self._sort(nodes, [{makers[n] for n in names if n in makers} - {-1} for names in needs])
        return free

    def _define(self, makers: dict[str, int], node: onnx.NodeProto, index: int) -> None:
        if not node.op_type:
            raise ModelError(f"{self._label(node)}: it has no operator; export the model again")
        attributes = [attribute.name for attribute in node.attribute]
        if len(set(attributes)) < len(attributes):
            names = [printable(name) for name in sorted(attributes)[:8]]
            raise ModelError(f"{self._label(node)}: an attribute is given twice: {names}")
        for attribute in node.attribute:
            least, most = COUNTS.get(attribute.name, (0, 0))
            values = [*attribute.ints, *([attribute.i] if attribute.HasField("i") else [])]
            if most and any(not least <= value <= most for value in values):
                raise ModelError(
                    f"{self._label(node)}: {attribute.name} {values[:8]}: expected {least} to "
                    f"{most}"
                )
        for name in node.output:
            if name and name in makers:
                raise ModelError(
                    f'{self._label(node)}: its output "{printable(name)}" is already defined by '
                    "another node, an input or an initializer; rename one"
                )
            if name:
                makers[name] = index

    def _label(self, node: onnx.NodeProto) -> str:
        return f'{self._where}: node "{node_label(node)}" ({qualified_op(node)})'

    def _needs(self, node: onnx.NodeProto, scopes: tuple[Mapping[str, int], ...]) -> set[str]:
        """Return the names that a node and its inner graphs read; check and sort these graphs."""
        names = {name for name in node.input if name}
        for graph in subgraphs(node):
            given = [*(i.name for i in graph.input), *_held(graph)]
            names |= self.check(graph.node, given, [o.name for o in graph.output], scopes)
        return names

    def _sort(self, nodes: Sequence[onnx.NodeProto], sources: list[set[int]]) -> None:
        if all(max(found, default=-1) < index for index, found in enumerate(sources)):
            return
        order = _topological(sources)
        if len(order) < len(sources):
            found = _cycle(sources, set(order))
            labels = [f'"{node_label(nodes[i])}"' for i in found[:NAMES_IN_CYCLE]]
            rest = len(found) - len(labels)
            last = f"{rest} more" if rest else labels[0]
            raise ModelError(
                f"{self._where}: nodes feed each other in a cycle: {' -> '.join(labels)} -> {last}"
            )
        copies = [_copy(nodes[index]) for index in order]
        for node, copy in zip(nodes, copies, strict=True):
            node.CopyFrom(copy)
        self._notes.append("nodes were not in topological order; sorted")


def _copy(node: onnx.NodeProto) -> Message:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _topological(sources: list[set[int]]) -> list[int]:
    """Return a topological order of nodes, as close to the given order as possible.

    `sources[i]` are the nodes that node i reads. Nodes that depend on a cycle are left out.
    """
    users: list[list[int]] = [[] for _ in sources]
    missing = [len(found) for found in sources]
    for index, found in enumerate(sources):
        for source in found:
            users[source].append(index)
    ready = [index for index, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for user in users[index]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    return order


def _cycle(sources: list[set[int]], done: set[int]) -> list[int]:
    """Return a cycle of nodes, each read by the next one; `done` are the sorted nodes."""
    # Each node outside `done` has a source outside it, so walking back must close a cycle.
    at = next(i for i in range(len(sources)) if i not in done)
    seen: dict[int, int] = {}
    path: list[int] = []
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = min(source for source in sources[at] if source not in done)
    return path[seen[at] :][::-1]


def _check_functions(model: onnx.ModelProto, where: str) -> None:
    """Raise ModelError for duplicate or recursive functions, or too many nodes after inlining."""
    numbers: dict[tuple[str, str, str], int] = {}
    for number, function in enumerate(model.functions):
        key = (function.domain, function.name, function.overload)
        if key in numbers:
            raise ModelError(f'{where}: function "{printable(function.name)}" is defined twice')
        numbers[key] = number
    calls = [_calls(function.node, numbers) for function in model.functions]
    callees = [set(called) for called in calls]
    order = _topological(callees)
    if len(order) < len(calls):
        names = [printable(model.functions[i].name) for i in _cycle(callees, set(order))]
        raise ModelError(
            f'{where}: function "{names[0]}" calls itself, directly or through others; ONNX has '
            "no recursion"
        )
    sizes = [0] * len(calls)
    for number in order:
        own = sum(1 for _ in _walk(model.functions[number].node))
        sizes[number] = own + sum(sizes[called] for called in calls[number])
    total = sum(sizes[called] for called in _calls(model.graph.node, numbers))
    if max([total, *sizes]) > MAX_EXPANDED_NODES:
        raise ModelError(
            f"{where}: its functions expand to more than {MAX_EXPANDED_NODES} nodes; call them "
            "less often"
        )


def _walk(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    stack = list(nodes)
    while stack:
        node = stack.pop()
        yield node
        for graph in subgraphs(node):
            stack.extend(graph.node)


def _calls(
    nodes: Iterable[onnx.NodeProto], numbers: Mapping[tuple[str, str, str], int]
) -> list[int]:
    """Return the number of the called function for each call in `nodes`."""
    keys = ((node.domain, node.op_type, node.overload) for node in _walk(nodes))
    return [numbers[key] for key in keys if key in numbers]
