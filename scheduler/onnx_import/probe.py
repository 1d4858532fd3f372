"""The walk over a model for its report: every value and every problem, whether it compiles or not.

The walk is that of an import. Where a node cannot be translated, the problem is noted and its
outputs become stand-ins of the shape that ONNX's own inference gives them, so that what comes after
is looked at as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

import onnx

from scheduler.errors import InternalError, ModelError, SchedulerError
from scheduler.onnx_import.binding import Binding
from scheduler.onnx_import.context import Array, ValueList
from scheduler.onnx_import.element_types import carried, graph_dtype, type_name
from scheduler.onnx_import.files.load import OnnxModel
from scheduler.onnx_import.importer import Subject, metadata_of, walk
from scheduler.onnx_import.inference import carried_types, infer
from scheduler.onnx_import.metadata import ModelMetadata
from scheduler.onnx_import.support import nearest_form, node_label, qualified_op, unsupported_nodes
from scheduler.onnx_import.translate import Values
from scheduler.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Value:
    """A value of a model, as far as it is known.

    Attributes:
        shape: sizes.
        dtype: ONNX's name of the element type where it is carried (bfloat16), else numpy's.
        itemsize: bytes of an element where it is stored.
        constant: whether it does not depend on the inputs.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    constant: bool


@dataclass(frozen=True, slots=True)
class Problem:
    """Why a model cannot be compiled: one of the reasons.

    Attributes:
        node: its name; "" for what is no node.
        op: operator with its domain; "input", "output" or "metadata" for what is no node.
        reason: one clause.
        nearest: what to write instead, "" if unknown.
    """

    node: str
    op: str
    reason: str
    nearest: str = ""


@dataclass(slots=True)
class Probe:
    """The findings of a walk over a model.

    Attributes:
        values: by name; those of unknown shape are missing.
        problems: in the order of the file.
        notes: what was assumed about symbolic dimensions.
        unchecked: nodes that could not be looked at, because what they read is unknown.
        metadata: None if it is unusable.
    """

    values: dict[str, Value] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    unchecked: int = 0
    metadata: ModelMetadata | None = None


def probe(model: OnnxModel, bind: Mapping[str, int] | None = None) -> Probe:
    """Look at every node, with sizes of symbolic dimensions as for `import_model`.

    Raises:
        ModelError: a name in `bind` is none of a dimension.
        InternalError: a translator has a defect.
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
    # Where the widths of outputs are not known, whether slices fit cannot be said.
    if len(walked.outputs) == len(model.proto.graph.output):
        try:
            found.metadata = metadata_of(model, walked.outputs)
        except ModelError as error:
            problems.note("metadata", str(error))
    return found


class _AllProblems:
    """Notes each problem; what a node does not give gets stand-ins, so that the walk goes on."""

    def __init__(self, model: OnnxModel, found: Probe) -> None:
        self._model = model
        self._found = found
        self._untranslated = {tuple(node.output) for node in unsupported_nodes(model)}
        self._unknown: set[str] = set()
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
        """Note a problem of an input, an output, or the metadata."""
        # The message begins with the model, and what the report says in a column of its own.
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
            is_own = problem.startswith(f'{self._model.name}: node "')
            reason = problem.partition("): ")[2] if is_own else ""
            self._found.problems.append(Problem(node_label(node), op, reason or problem))
        self._stand_in(node, values)

    def _stand_in(self, node: onnx.NodeProto, values: Values) -> None:
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
                # A type that there is no Tensor of stays unknown.
                with suppress(ModelError):
                    values[name] = Tensor.input(f"stand-in {name}", shape, graph_dtype(code))


def _value(value: Tensor | Array, code: int) -> Value:
    """Return what is known of a value; `code` is its ONNX element type if that is carried."""
    kind = carried(code)
    dtype = value.dtype
    name, itemsize = (kind.name, kind.storage.itemsize) if kind else (dtype.name, dtype.itemsize)
    return Value(tuple(value.shape), name, itemsize, constant=not isinstance(value, Tensor))


def declared_type(value: onnx.ValueInfoProto) -> str:
    """Return the declared element type of an input or output, "?" for what is no tensor."""
    kind = value.type
    return type_name(kind.tensor_type.elem_type) if kind.HasField("tensor_type") else "?"
