"""Reports the contents of an ONNX model: operators, sizes, arithmetic work and problems.

`probe` walks over the whole model and collects every value and every problem, even if the model
cannot be compiled. `report` turns its findings into a `ModelReport`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from math import prod

import onnx

from scheduler.errors import InternalError, ModelError, SchedulerError
from scheduler.onnx_import.binding import Binding
from scheduler.onnx_import.context import Array, ValueList
from scheduler.onnx_import.element_types import carried, graph_dtype, type_name
from scheduler.onnx_import.files.graph_checks import all_nodes
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.importer import Subject, carried_types, infer, metadata_of, walk
from scheduler.onnx_import.limits import node_label, qualified_op
from scheduler.onnx_import.metadata import ModelMetadata
from scheduler.onnx_import.support import nearest_form, unsupported_nodes
from scheduler.onnx_import.translate import Values
from scheduler.onnx_import.work import flops
from scheduler.tensor.tensor import Tensor

# --- The walk over a model, which collects every value and every problem ----------------------
#
# If a node cannot be translated, its outputs become placeholders with the shape from ONNX's own
# inference, so that the nodes after it are checked too.


@dataclass(frozen=True, slots=True)
class Value:
    """Shape and type of a value in a model."""

    shape: tuple[int, ...]
    dtype: str  # numpy's name of the element type, or ONNX's for a carried type (bfloat16)
    itemsize: int  # bytes per stored element
    constant: bool  # whether the value is independent of the inputs


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason why a model cannot be compiled."""

    node: str  # name of the node; "" for a problem of an input, an output or the metadata
    op: str  # operator with its domain, or "input", "output" or "metadata"
    reason: str  # one clause
    nearest: str = ""  # the nearest supported form, "" if unknown


@dataclass(slots=True)
class Probe:
    """The findings of a walk over a model."""

    values: dict[str, Value] = field(default_factory=dict)  # values of known shape, by name
    problems: list[Problem] = field(default_factory=list)  # in file order
    notes: tuple[str, ...] = ()  # assumptions about symbolic dimensions
    unchecked: int = 0  # number of nodes that were not checked, because an input is unknown
    metadata: ModelMetadata | None = None  # parsed metadata, None if it is unusable


def probe(model: OnnxModel, bind: Mapping[str, int] | None = None) -> Probe:
    """Check every node of a model; `bind` has sizes of symbolic dimensions as for `import_model`.

    Raises ModelError if a name in `bind` is not a dimension, and InternalError for a translator's
    defect.
    """
    found = Probe()
    binding = Binding(model, dict(bind or {}))
    problems = _AllProblems(model, found)
    walked = walk(model, binding, problems, {}, {})
    found.notes = tuple(binding.notes)
    types = carried_types(model)
    for name, value in walked.values.items():
        if not isinstance(value, ValueList):
            found.values[name] = _value(value, types.get(name, 0))
    # Output slices can be checked only if the shapes of all outputs are known.
    if len(walked.outputs) == len(model.proto.graph.output):
        try:
            found.metadata = metadata_of(model, walked.outputs)
        except ModelError as error:
            problems.note("metadata", str(error))
    return found


class _AllProblems:
    """Records each problem, and puts placeholders for missing values so that the walk continues."""

    def __init__(self, model: OnnxModel, found: Probe) -> None:
        self._model = model
        self._found = found
        # Outputs of each node that has no translation; they identify the node.
        self._untranslated = {tuple(node.output) for node in unsupported_nodes(model)}
        self._unknown: set[str] = set()  # names of values that could not be computed
        # Value name -> (shape, ONNX element type) by ONNX's inference, made on first use.
        self._inferred: dict[str, tuple[tuple[int, ...], int]] | None = None

    @contextmanager
    def __call__(self, kind: str, subject: Subject, values: Values) -> Iterator[None]:
        problem = ""
        try:
            yield
        except InternalError:
            raise
        except SchedulerError as error:
            problem = str(error)
        if isinstance(subject, onnx.NodeProto):
            self._node(subject, values, problem)
        elif problem and subject.name not in self._unknown:
            self.note(kind, problem)

    def note(self, kind: str, problem: str) -> None:
        """Record a problem of an input, an output, or the metadata."""
        # The report prints the model and the kind in separate columns.
        reason = problem.removeprefix(f"{self._model.name}: ").removeprefix(f"{kind} ")
        self._found.problems.append(Problem("", kind, reason))

    def _node(self, node: onnx.NodeProto, values: Values, problem: str) -> None:
        untranslated = tuple(node.output) in self._untranslated
        if not untranslated and not problem:
            return
        op = qualified_op(node)
        if untranslated:
            reason, nearest = "no translation", nearest_form(op)
            self._found.problems.append(Problem(node_label(node), op, reason, nearest))
        elif any(name and name not in values for name in node.input):
            self._found.unchecked += 1
        else:
            # The message is 'MODEL: node "LABEL" (OPERATOR, opset N): REASON'.
            is_own = problem.startswith(f'{self._model.name}: node "')
            reason = problem.partition("): ")[2] if is_own else ""
            self._found.problems.append(Problem(node_label(node), op, reason or problem))
        self._add_placeholders(node, values)

    def _add_placeholders(self, node: onnx.NodeProto, values: Values) -> None:
        if self._inferred is None:
            known = {value.name: values.get(value.name) for value in self._model.inputs}
            shapes = {n: v.shape for n, v in known.items() if isinstance(v, Tensor)}
            self._inferred = infer(self._model, shapes)
        for name in node.output:
            if name in values:
                continue
            self._unknown.add(name)
            if name in self._inferred:
                shape, code = self._inferred[name]
                # If Tensors do not support the type, the value stays unknown.
                with suppress(ModelError):
                    values[name] = Tensor.input(f"stand-in {name}", shape, graph_dtype(code))


def _value(value: Tensor | Array, code: int) -> Value:
    """Describe a value; `code` is its ONNX element type if that is a carried type."""
    kind = carried(code)
    dtype = value.dtype
    name, itemsize = (kind.name, kind.storage.itemsize) if kind else (dtype.name, dtype.itemsize)
    return Value(tuple(value.shape), name, itemsize, constant=not isinstance(value, Tensor))


def declared_type(value: onnx.ValueInfoProto) -> str:
    """Return the declared element type of an input or output, "?" if it is not a tensor."""
    kind = value.type
    return type_name(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else "?"


LARGEST = 5  # number of activations in `ModelReport.largest_activations`


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """Facts about one node."""

    name: str  # the node's label, as in messages
    op: str  # operator with its domain
    output: str  # name of the first output
    shape: tuple[int, ...] | None  # shape of the first output; None if unknown
    dtype: str  # element type of the first output; "" if unknown
    bytes: int  # total size of all outputs
    flops: int | None  # arithmetic operations; None if unknown, 0 if `constant`
    constant: bool  # whether the node is computed at compile time


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or output, as declared and as bound."""

    name: str
    dtype: str  # ONNX's name of the element type
    shape: tuple[int | str, ...]  # sizes, and names ("" if unnamed) of symbolic dimensions
    bound: tuple[int, ...] | None  # sizes used for compilation; None if unknown


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The contents of a model."""

    nodes: tuple[NodeFacts, ...]  # top-level nodes in file order; a function call is one node
    operators: Counter[str]  # number of nodes by operator, including nodes in bodies and functions
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    parameters: int  # number of elements of all initializers
    weight_bytes: int  # bytes of all initializers
    element_types: dict[str, int]  # bytes of initializers by element type
    opsets: dict[str, int]  # opset version by domain ("ai.onnx" is the default domain)
    problems: tuple[Problem, ...]  # reasons why the import fails
    unchecked: int  # number of nodes that were not checked because of the problems
    notes: tuple[str, ...]  # changes made while loading, and assumptions about symbolic dimensions
    output_slices: dict[str, tuple[int, int]]  # name -> (start, stop); empty without metadata

    @property
    def flops(self) -> int:
        """Total number of known arithmetic operations."""
        return sum(node.flops or 0 for node in self.nodes)

    @property
    def uncounted(self) -> int:
        """Number of nodes whose operations are unknown."""
        return sum(node.flops is None for node in self.nodes)

    @property
    def flops_by_operator(self) -> dict[str, int]:
        """Arithmetic operations by operator, largest first."""
        totals: Counter[str] = Counter()
        for node in self.nodes:
            totals[node.op] += node.flops or 0
        return dict(totals.most_common())

    @property
    def largest_activations(self) -> list[NodeFacts]:
        """The nodes with the largest outputs, largest first, without constant nodes."""
        live = [node for node in self.nodes if not node.constant and node.bytes]
        return sorted(live, key=lambda node: -node.bytes)[:LARGEST]


def report(model: OnnxModel, bind: Mapping[str, int] | None = None) -> ModelReport:
    """Return the contents of a model; `bind` and the exceptions are as for `probe`."""
    found = probe(model, bind)
    graph = model.proto.graph
    types: Counter[str] = Counter()
    for array in model.constants.values():
        types[array.dtype.name] += array.nbytes
    slices = found.metadata.output_slices if found.metadata else {}
    return ModelReport(
        nodes=tuple(_node(node, found) for node in graph.node),
        operators=Counter(qualified_op(node) for node in all_nodes(model.proto)),
        inputs=tuple(_declared(value, found) for value in model.inputs),
        outputs=tuple(_declared(value, found) for value in graph.output),
        parameters=sum(array.size for array in model.constants.values()),
        weight_bytes=types.total(),
        element_types=dict(types.most_common()),
        opsets={o.domain or "ai.onnx": int(o.version) for o in model.proto.opset_import},
        problems=tuple(found.problems),
        unchecked=found.unchecked,
        notes=(*model.notes, *found.notes),
        output_slices=slices,
    )


def _node(node: onnx.NodeProto, found: Probe) -> NodeFacts:
    outputs = [found.values.get(name) for name in node.output]
    first = outputs[0] if outputs else None
    constant = bool(outputs) and all(value is None or value.constant for value in outputs)
    constant = constant and first is not None
    work = flops(node, _shapes(node.input, found), _shapes(node.output, found))
    return NodeFacts(
        name=node_label(node),
        op=qualified_op(node),
        output=next(iter(node.output), ""),
        shape=first.shape if first else None,
        dtype=first.dtype if first else "",
        bytes=sum(prod(v.shape) * v.itemsize for v in outputs if v is not None),
        flops=0 if constant else work,
        constant=constant,
    )


def _shapes(names: list[str], found: Probe) -> list[tuple[int, ...] | None]:
    return [found.values[name].shape if name in found.values else None for name in names]


def _declared(value: onnx.ValueInfoProto, found: Probe) -> Declared:
    dims = value.type.tensor_type.shape.dim
    shape = tuple(int(d.dim_value) if d.HasField("dim_value") else str(d.dim_param) for d in dims)
    bound = found.values.get(value.name)
    return Declared(value.name, declared_type(value), shape, bound.shape if bound else None)
