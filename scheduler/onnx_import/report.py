"""The report on a model: operators, sizes, arithmetic work, problems and their reasons.

`report` reads a model that was loaded and costs what an import costs; it works on models that
cannot be compiled. Called by `modeld inspect`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

import onnx

from scheduler.onnx_import.files.graph_checks import all_nodes
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.probe import Probe, Problem, declared_type, probe
from scheduler.onnx_import.support import node_label, qualified_op
from scheduler.onnx_import.work import flops

LARGEST = 5  # activations that are listed


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """A node.

    Attributes:
        name, op: as messages name it.
        output: name of its first output.
        shape: of the first output; None if unknown.
        dtype: of the first output; "" if unknown.
        bytes: of all outputs.
        flops: None if unknown; 0 for what is known while compiling.
        constant: whether it is computed while compiling.
    """

    name: str
    op: str
    output: str
    shape: tuple[int, ...] | None
    dtype: str
    bytes: int
    flops: int | None
    constant: bool


@dataclass(frozen=True, slots=True)
class Declared:
    """An input or output.

    Attributes:
        name: of the value.
        dtype: ONNX's name of the element type.
        shape: as declared: sizes, and names of symbolic dimensions ("" for one without a name).
        bound: the sizes it is compiled with; None if unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    bound: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class ModelReport:
    """The contents of a model.

    Attributes:
        nodes: in the order of the file; of bodies and functions, only the nodes that call them.
        operators: nodes by operator, those of bodies and functions included.
        inputs, outputs: as declared and as bound.
        parameters: elements of all initializers.
        weight_bytes: of all initializers.
        element_types: bytes of initializers by element type.
        opsets: version by domain ("ai.onnx" is the default one).
        problems: why it cannot be compiled; empty if it can, as far as importing tells.
        unchecked: nodes that could not be looked at because of the problems.
        notes: what was changed in reading the file, and assumed about symbolic dimensions.
        output_slices: name -> (start, stop); {} if there are none or they are unusable.
    """

    nodes: tuple[NodeFacts, ...]
    operators: Counter[str]
    inputs: tuple[Declared, ...]
    outputs: tuple[Declared, ...]
    parameters: int
    weight_bytes: int
    element_types: dict[str, int]
    opsets: dict[str, int]
    problems: tuple[Problem, ...]
    unchecked: int
    notes: tuple[str, ...]
    output_slices: dict[str, tuple[int, int]]

    @property
    def flops(self) -> int:
        """Operations of all nodes where they are known."""
        return sum(node.flops or 0 for node in self.nodes)

    @property
    def uncounted(self) -> int:
        """The number of nodes whose work is unknown."""
        return sum(node.flops is None for node in self.nodes)

    @property
    def flops_by_operator(self) -> dict[str, int]:
        """Operations by operator, most first."""
        totals: Counter[str] = Counter()
        for node in self.nodes:
            totals[node.op] += node.flops or 0
        return dict(totals.most_common())

    @property
    def largest_activations(self) -> list[NodeFacts]:
        """The nodes with the largest outputs that depend on the inputs, largest first."""
        live = [node for node in self.nodes if not node.constant and node.bytes]
        return sorted(live, key=lambda node: -node.bytes)[:LARGEST]


def report(model: OnnxModel, bind: Mapping[str, int] | None = None) -> ModelReport:
    """Return what is in a model, with sizes of symbolic dimensions as for `import_model`.

    Raises:
        ModelError: a name in `bind` is none of a dimension.
    """
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
