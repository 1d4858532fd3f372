"""Translates ONNX nodes to Tensors, including functions and the bodies of If, Loop and Scan.

A value that depends on the inputs becomes a Tensor, a lazy graph. A value known at import stays an
array: the interpreter computes it here, and fails if that takes too much time or memory. For an
operator without a translator, the function that ONNX defines for it is translated. If there is none
and the inputs are known, ONNX's reference evaluator computes it. Bodies of If, Loop and Scan can
read the names of the enclosing graphs; bodies of functions cannot.
"""

from __future__ import annotations

import warnings
from collections import ChainMap
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from math import prod

import numpy as np
import onnx
from onnx import TypeProto, helper

from runtime.texts import count_text
from scheduler.errors import DynamicInputError, InternalError, ModelError, SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.origin import Origins
from scheduler.ir.rewrite import SERIAL, keep_form
from scheduler.onnx_import.context import (
    AnyValue,
    Array,
    NodeContext,
    Value,
    ValueList,
    WeightCache,
    is_half,
    narrow,
    wide,
)
from scheduler.onnx_import.element_types import graph_array
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.files.tensor_data import graph_constants
from scheduler.onnx_import.limits import (
    DEFAULT_DOMAINS,
    MAX_KNOWN_BYTES,
    check_shape,
    node_label,
    one_line,
    printable,
    qualified_op,
)
from scheduler.onnx_import.support import (
    RANDOM,
    Body,
    Key,
    find_local,
    has_schema_body,
    instantiate,
    local_functions,
    schema_body,
)
from scheduler.onnx_import.table import ROUND_ONCE, TRANSLATORS
from scheduler.tensor.tensor import Tensor, evaluate

Values = MutableMapping[str, AnyValue]

# Exceptions that a translator raises for inputs of the wrong rank or attributes of the wrong type.
# Any other exception is a defect of the translator.
_MALFORMED = (ArithmeticError, LookupError, TypeError, ValueError, MemoryError, RuntimeError)
# Limits against exponential growth of nested loops and functions.
MAX_DEPTH = 32  # nesting of bodies and functions
MAX_NODES = 500_000  # translated nodes, counting every iteration
MAX_REASON = 260  # characters of the reason in a message about a node
MAX_LABEL = 90  # characters of the node's label in a message


@dataclass(slots=True)
class Translation:
    """The state shared by the whole import of one model."""

    model: str  # name of the model, for messages
    functions: Mapping[Key, onnx.FunctionProto]  # the model's own functions
    types: Mapping[str, int]  # ONNX element types by value name, for carried types only
    origins: Origins  # the ONNX nodes from which graph nodes were made
    weights: WeightCache = field(default_factory=WeightCache)  # constants as Tensors
    nodes: int = 0  # number of nodes translated so far
    folded: int = 0  # number of elements computed at import so far
    # Initializers of inner graphs, by the graph's id. The graphs are kept because the ids of freed
    # objects are reused.
    initializers: dict[int, tuple[onnx.GraphProto, dict[str, Array]]] = field(default_factory=dict)

    def arrays(self, graph: onnx.GraphProto) -> dict[str, Array]:
        """Return the initializers of an inner graph, by name."""
        if id(graph) not in self.initializers:
            known = graph_constants(graph, self.model)
            self.initializers[id(graph)] = graph, {n: graph_array(a) for n, a in known.items()}
        return self.initializers[id(graph)][1]


def translation_of(model: OnnxModel, types: Mapping[str, int], origins: Origins) -> Translation:
    """Return the initial state for the import of a model."""
    return Translation(model.name, local_functions(model.proto), types, origins)


@dataclass(frozen=True, slots=True)
class Scope:
    """A graph or function body under translation: its visible values and its opset."""

    shared: Translation  # state of the whole import
    values: Values  # visible values by name; results are added
    opset: int  # version of the default operator domain
    depth: int = 0  # nesting depth
    path: str = ""  # prefix of node labels in messages, such as "loop/iteration 3/"

    def translate(self, nodes: Sequence[onnx.NodeProto]) -> None:
        """Translate nodes and add their results to the values, or raise ModelError."""
        for node in nodes:
            results = self._node(node)
            # Either side can leave out trailing optional outputs.
            self.values.update(zip(node.output, results, strict=False))

    def output(self, name: str) -> AnyValue:
        """Return an output by name; raise ModelError if no node computes it."""
        if name not in self.values:
            raise ModelError(
                f'{self.shared.model}: output "{printable(name)}" is computed by no node'
            )
        return self.values[name]

    def _node(self, node: onnx.NodeProto) -> Sequence[AnyValue]:
        label = printable(self.path + node_label(node), MAX_LABEL)
        where = f'{self.shared.model}: node "{label}" ({qualified_op(node)}, opset {self.opset})'
        missing = [printable(name) for name in node.input if name and name not in self.values]
        if missing:
            raise ModelError(f"{where}: input {missing} is not computed by an earlier node")
        self.shared.nodes += 1
        if self.shared.nodes > MAX_NODES:
            raise ModelError(f"{where}: loops and functions expand to more than {MAX_NODES} nodes")
        resolved = tuple(self.values[name] if name else None for name in node.input)
        try:
            # Constants can divide by 0, which is valid on the device too.
            with np.errstate(all="ignore"):
                return self._named(_checked(self._results(node, resolved, label)), label)
        except DynamicInputError as error:
            raise DynamicInputError(_prefixed(where, error), error.value, error.inputs) from error
        except InternalError:
            raise
        except SchedulerError as error:
            raise ModelError(_prefixed(where, error)) from error
        except _MALFORMED as error:
            shapes = [None if v is None else list(getattr(v, "shape", ())) for v in resolved]
            raise ModelError(
                f"{where}: inputs of shapes {shapes} do not fit the operator: {one_line(error)}"
            ) from error
        except Exception as error:
            raise InternalError(
                f"{where}: a defect of the compiler, not of the model: "
                f"{type(error).__name__}: {one_line(error)}"
            ) from error

    def _named(self, results: Sequence[AnyValue], label: str) -> Sequence[AnyValue]:
        """Record the ONNX node `label` as the origin of new nodes; return the results unchanged."""
        self.shared.origins.name(_nodes(results), (label,))
        return results

    def _results(
        self, node: onnx.NodeProto, resolved: tuple[AnyValue | None, ...], label: str
    ) -> Sequence[AnyValue]:
        local = find_local(self.shared.functions, node)
        if local is not None:
            return self._call(instantiate(local, node, self.opset), resolved, label)
        translator = TRANSLATORS.get(qualified_op(node))
        arrays = [v for v in resolved if not isinstance(v, Tensor | ValueList)]
        known = len(arrays) == len(resolved)
        if translator is None:
            defined = node.domain in DEFAULT_DOMAINS and node.op_type not in RANDOM
            if defined and has_schema_body(node.op_type, self.opset):
                return self._defined_by_onnx(node, resolved, label)
            if known and defined:
                return _evaluate_reference(node, arrays, self.opset)
            raise ModelError("no translation; its inputs depend on run-time data")

        def run_graph(
            graph: onnx.GraphProto, arguments: Sequence[AnyValue], name: str
        ) -> list[AnyValue]:
            return self._run_graph(graph, arguments, f"{label}/{name}/")

        context = NodeContext(
            node, self.opset, resolved, self.shared.weights, self.shared.types, run_graph
        )
        result = translator(context)
        results = [result] if isinstance(result, Tensor | np.ndarray | ValueList) else result
        has_body = any(a.HasField("g") for a in node.attribute)
        return self._fold(results) if known and not has_body else results

    def _fold(self, results: Sequence[AnyValue]) -> list[AnyValue]:
        """Evaluate results that do not depend on inputs."""
        lazy = [value for value in results if isinstance(value, Tensor)]
        found, self.shared.folded = evaluate_known(lazy, self.shared.folded)
        arrays = iter(found)
        return [next(arrays) if isinstance(value, Tensor) else value for value in results]

    def _defined_by_onnx(
        self, node: onnx.NodeProto, arguments: tuple[AnyValue | None, ...], label: str
    ) -> list[AnyValue]:
        """Translate a node by the function that ONNX defines for it; fp16 is rounded at the end."""
        widens = node.op_type in ROUND_ONCE and is_half(arguments[0])
        given = [wide(value) for value in arguments] if widens else arguments
        function = schema_body(node, self.opset, self._types(node, given))
        results = self._call(instantiate(function, node, self.opset), given, label)
        return [narrow(value) for value in results] if widens else results

    def _call(self, body: Body, arguments: Sequence[AnyValue | None], label: str) -> list[AnyValue]:
        """Translate the body of a function, in which only its arguments are visible."""
        given = zip(body.inputs, arguments, strict=False)
        values: Values = {name: value for name, value in given if value is not None}
        inner = self._inner_scope(values, f"{label}/", body.opset)
        left_out = set(body.inputs) - set(values)
        inner.translate([_without_inputs(node, left_out) for node in body.nodes])
        return [inner.output(name) if name else ValueList(()) for name in body.outputs]

    def _run_graph(
        self, graph: onnx.GraphProto, arguments: Sequence[AnyValue], path: str
    ) -> list[AnyValue]:
        """Translate an inner graph, in which the names of the enclosing graphs are visible."""
        if len(arguments) != len(graph.input):
            takes = count_text(len(graph.input), "input")
            raise ModelError(f"its graph takes {takes}; expected {len(arguments)}")
        values: Values = dict(self.shared.arrays(graph))
        values.update(zip((i.name for i in graph.input), arguments, strict=True))
        outer = self.values
        maps = outer.maps if isinstance(outer, ChainMap) else [outer]
        inner = self._inner_scope(ChainMap(values, *maps), path, self.opset)
        inner.translate(graph.node)
        return [inner.output(o.name) for o in graph.output]

    def _inner_scope(self, values: Values, path: str, opset: int) -> Scope:
        if self.depth >= MAX_DEPTH:
            raise ModelError(f"functions and graphs are nested deeper than {MAX_DEPTH}")
        return Scope(self.shared, values, opset, self.depth + 1, path)

    def _types(self, node: onnx.NodeProto, resolved: Sequence[AnyValue | None]) -> list[TypeProto]:
        types = []
        for name, value in zip(node.input, resolved, strict=True):
            if isinstance(value, Tensor | np.ndarray):
                code = self.shared.types.get(name, 0) or _element_type(value)
                types.append(onnx.helper.make_tensor_type_proto(code, value.shape))
            else:
                types.append(TypeProto())
        return types


def _prefixed(where: str, error: SchedulerError) -> str:
    """Return a message with the innermost node only; `where` is the current node."""
    text = str(error)
    if text.startswith(where.split(": node ", 1)[0] + ": node "):
        return text
    return f"{where}: {printable(text, MAX_REASON)}"


def _nodes(values: Iterable[AnyValue]) -> Iterator[Node]:
    for value in values:
        if isinstance(value, Tensor):
            yield value.node
        elif isinstance(value, ValueList):
            yield from _nodes(value.values)


def _checked(results: Sequence[AnyValue]) -> Sequence[AnyValue]:
    """Return the results; raise ModelError if one has too many axes or bytes."""
    for value in results:
        if isinstance(value, Tensor):
            check_shape(value.shape, value.dtype.itemsize, "its result")
    return results


def _element_type(value: Tensor | Array) -> int:
    dtype = value.dtype.np if isinstance(value, Tensor) else value.dtype
    return int(onnx.helper.np_dtype_to_tensor_dtype(dtype))


def _without_inputs(node: onnx.NodeProto, names: set[str]) -> onnx.NodeProto:
    """Return a node of a function without the inputs that the call leaves out."""
    if names.isdisjoint(node.input):
        return node
    made = onnx.NodeProto()
    made.CopyFrom(node)
    for i, name in enumerate(node.input):
        if name in names:
            made.input[i] = ""
    return made


# --- Evaluation of nodes whose inputs are all known -------------------------------------------

# Limits on the elements computed or moved at import. numpy takes 1 to 2 ns per element (2026-11):
# at most about 15 s for a node, and 2 minutes for a model. Billions of parameters are within them.
MAX_NODE_WORK = 2**33
MAX_MODEL_WORK = 2**36
# The largest size of an intermediate value, as a multiple of MAX_KNOWN_BYTES.
_INTERMEDIATE_FACTOR = 2
# Products that a matrix product computes in the time of one other operation.
_PRODUCTS_PER_OPERATION = 4
_VIEWS = MOVEMENT - {Op.PAD, Op.CAT}
_FREE = frozenset({Op.BUFFER, Op.CONST, Op.CONTIGUOUS, Op.CUSTOM})


def evaluate_known(tensors: Sequence[Tensor], spent: int) -> tuple[list[Array], int]:
    """Compute Tensors that do not depend on inputs, with the interpreter.

    `spent` is the number of elements computed so far for the model. Returns the arrays and the new
    number. Raises ModelError if a value is too large, or the computation would take too long.
    """
    for tensor in tensors:
        check_shape(tensor.shape, tensor.dtype.itemsize, "its value, known now", MAX_KNOWN_BYTES)
    nodes = [t.node for t in tensors]
    kept = keep_form(nodes, SERIAL)  # the graph that the interpreter computes
    order = toposort([kept[node] for node in nodes])
    products = {n.src[0] for n in order if _is_product(n)}
    work = sum(_work(node, products) for node in order)
    if work > MAX_NODE_WORK or spent + work > MAX_MODEL_WORK:
        raise ModelError(
            f"its inputs are constant, and computing it takes {work:.3g} element operations, after "
            f"{spent:.3g} for earlier nodes; at most {MAX_NODE_WORK:.3g} for a node and "
            f"{MAX_MODEL_WORK:.3g} for a model are supported: make it an input, or save its value"
        )
    return evaluate(tensors), spent + work


def _work(node: Node, products: AbstractSet[Node]) -> int:
    """Return the number of elements that a node computes or moves.

    `products` are multiplications that the interpreter computes as part of a sum, at no cost.
    Raises ModelError if the node's value is too large.
    """
    if node.op in _FREE or node in products or (node.op in _VIEWS and not _is_copy(node)):
        return 0
    if node.op is Op.REDUCE:
        source = node.src[0]
        return prod(source.shape) // (_PRODUCTS_PER_OPERATION if source in products else 1)
    size = prod(node.shape)
    if size * node.dtype.itemsize > _INTERMEDIATE_FACTOR * MAX_KNOWN_BYTES:
        raise ModelError(
            f"its inputs are constant, and computing it takes an intermediate array of shape "
            f"{list(node.shape)}, more than {_INTERMEDIATE_FACTOR * MAX_KNOWN_BYTES} bytes: "
            "make it an input, or save its value"
        )
    return size


def _is_copy(node: Node) -> bool:
    """Return whether a reshape of a view can move elements: not only axes of size 1 change."""
    if node.op is not Op.RESHAPE or node.src[0].op not in _VIEWS:
        return False
    before, after = ([n for n in x.shape if n > 1] for x in (node.src[0], node))
    return before != after


def _is_product(node: Node) -> bool:
    """Return whether a node is a sum of products, which the interpreter computes in one step."""
    if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD:
        return False
    return node.src[0].op is Op.MUL and node.dtype is not dt.bool_


def _evaluate_reference(
    node: onnx.NodeProto, inputs: Sequence[Value | None], opset: int
) -> list[Value]:
    """Compute a node of known inputs with numpy, or raise ModelError."""
    # Imported here because it loads slowly and is rarely needed.
    from onnx.reference import ReferenceEvaluator

    feeds: dict[str, Array] = {}
    for name, value in zip(node.input, inputs, strict=True):
        if isinstance(value, Tensor):
            raise ModelError(f'input "{name}" depends on run-time data; expected a constant')
        if value is not None:
            feeds[name] = value
    graph = helper.make_graph(
        [node],
        "node",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape
            )
            for name, value in feeds.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    try:
        with warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            found = ReferenceEvaluator(model).run(None, feeds)
    except Exception as error:
        raise ModelError(f"cannot be evaluated on constants: {one_line(error)}") from error
    results = iter(found if isinstance(found, list) else list(found))
    return [np.asarray(next(results)) if name else np.zeros(0) for name in node.output]
