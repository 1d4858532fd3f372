"""Captures results of kernel launches, or computes them with the interpreter, and pairs them.

Two programs can divide the same model into different kernels. Results count as the same if their
kernels cover the same ONNX nodes and they have equal shape and type. The remaining results are
paired by the largest overlap of nodes. Some results have no counterpart.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from runtime.format.manifest import Manifest
from runtime.run.program import Program
from scheduler.debug.kernel_table import KernelTable, kernel_tables
from tools.errors import ToolError
from tools.timing.run_parts import Stepper

if TYPE_CHECKING:
    from scheduler.emit.schedule import Schedule
    from scheduler.schedule_cache import EntryGraph

Array = NDArray[Any]

# Rounding errors from sums in a different order, relative to the largest value of a result, between
# two programs on one device.
ROUNDING: Final = 2e-5
# The same between a program and the interpreter, where a kernel's inputs include the rounding
# errors of all earlier kernels.
INTERPRETER_ROUNDING: Final = 1e-4
# Minimum fraction of common nodes for two kernels to count as the same step.
LEAST_OVERLAP: Final = 0.5
# Maximum number of axes longer than 1 for which all orders are tried.
MOST_AXES: Final = 4
_POINTERS: Final = {
    "char": "int8",
    "uchar": "uint8",
    "short": "int16",
    "ushort": "uint16",
    "int": "int32",
    "uint": "uint32",
    "long": "int64",
    "ulong": "uint64",
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "bool": "uint8",
}
_PARAMETERS: Final = re.compile(r"\bvoid\s+(\w+)\s*\(([^)]*)\)")


@dataclass(frozen=True, slots=True)
class Value:
    """One result of one launch."""

    launch: int  # number of the launch in the entry
    position: int  # position among the results of the launch
    kernel: str  # name of the function, derived from its text; "" if there is none
    nodes: tuple[str, ...]  # nodes of the ONNX models, or of the frame program ("queue/features")
    shape: tuple[int, ...]  # shape of the result
    data: Array | None  # flat array in memory order; None if it cannot be read
    is_logical: bool = False  # whether `data` is in the order of the axes instead


@dataclass(frozen=True, slots=True)
class Difference:
    """The difference between two results: ``left``, which `text` calls now, and ``right``.

    Attributes:
        left, right: the two values at `at`.
    """

    elements: int  # number of elements whose values differ
    total: int  # number of elements
    largest: float  # largest absolute difference; infinite if only one value is finite
    scale: float  # largest absolute value of the right result
    at: int  # flat index of the largest difference
    left: float
    right: float

    def exceeds(self, relative: float) -> bool:
        """Whether the difference exceeds rounding, given as a fraction of the scale."""
        return self.elements > 0 and self.largest > relative * self.scale

    @property
    def text(self) -> str:
        """The difference in one clause."""
        return (
            f"{self.elements} of {self.total} values differ, by at most {self.largest:.3g} "
            f"(values up to {self.scale:.3g}; element {self.at}: {self.right:.9g} before, "
            f"{self.left:.9g} now)"
        )


class LaunchReader:
    """Reads the results of the launches of one entry.

    `program`: a loaded program. `entry`: name of the entry.
    """

    def __init__(self, program: Program, entry: str) -> None:
        self.stepper = Stepper(program)
        self.entry = entry
        self.table = table_of(program.manifest, entry)
        self._manifest = program.manifest
        self._types = _written_types(program.manifest)

    def run(self, inputs: Mapping[str, Array]) -> Iterator[list[Value]]:
        """Run the entry and yield the results of each launch."""
        spec = self._manifest.entry(self.entry)
        assert spec is not None
        for number in self.stepper.launches(inputs, self.entry):
            launch = self.table.launches[number]
            types = self._types.get(launch.kernel, [])
            yield [
                Value(
                    number,
                    position,
                    launch.kernel,
                    launch.origin,
                    self.table.values[index].shape,
                    self._read(
                        self.table.values[index].buffer,
                        types[position] if position < len(types) else "",
                    ),
                )
                for position, index in enumerate(launch.writes)
            ]

    def _read(self, buffer: int, dtype: str) -> Array | None:
        raw = self.stepper.read(buffer)
        if raw is None:
            return None
        found = np.dtype(dtype or self._manifest.buffers[buffer].dtype)
        return raw.view(found) if raw.size % found.itemsize == 0 else raw


def table_of(manifest: Manifest, entry: str) -> KernelTable:
    """Return the kernel table of one entry."""
    return next(table for table in kernel_tables(manifest.raw) if table.entry == entry)


def _written_types(manifest: Manifest) -> dict[str, list[str]]:
    """Return for each kernel the numpy types of its writable parameters, "" if unknown."""
    found = {}
    for program in manifest.programs:
        for name, parameters in _PARAMETERS.findall(program.source):
            written = [
                text.split("*")[0].split()[-1]
                for text in parameters.split(",")
                if "__global" in text and not re.search(r"\bconst\b", text)
            ]
            found[name] = [_POINTERS.get(re.sub(r"\d+$", "", word), "") for word in written]
    return found


def difference(left: Value, right: Value) -> Difference | None:
    """Compare two results; None if they cannot be compared.

    The axes of a result can be in any order in memory if the kernels' texts differ or a result is
    logical. Results that are equal up to the order of axes do not differ.
    """
    if left.data is None or right.data is None or left.data.size != right.data.size:
        return None
    found = compare_arrays(left.data, right.data)
    if not found.exceeds(ROUNDING) or left.kernel == right.kernel:
        return found
    for data in _orders(right):
        found = min((found, compare_arrays(left.data, data)), key=lambda one: one.largest)
        if not found.exceeds(ROUNDING):
            break
    return found


def _orders(value: Value) -> Iterator[Array]:
    """Yield the data of a result with its axes in other orders."""
    assert value.data is not None
    shape = [size for size in value.shape if size > 1]
    if len(shape) > MOST_AXES or value.data.size != prod(shape):
        return
    orders = list(itertools.permutations(range(len(shape))))
    for stored in orders[:1] if value.is_logical else orders:
        array = value.data.reshape([shape[axis] for axis in stored])
        for order in orders:
            yield np.asarray(array.transpose(order), order="C").ravel()


def compare_arrays(left: Array, right: Array) -> Difference:
    """Compare flat arrays of equal size; NaN equals NaN."""
    width = np.result_type(left, right, np.float32)
    a, b = left.astype(width), right.astype(width)
    with np.errstate(all="ignore"):
        apart = np.abs(a - b)
        apart[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
        apart[np.isnan(apart)] = np.inf
        finite = np.abs(b[np.isfinite(b)])
    at = int(np.argmax(apart)) if apart.size else 0
    return Difference(
        int(np.count_nonzero(apart)),
        int(apart.size),
        float(apart[at]) if apart.size else 0.0,
        float(finite.max()) if finite.size else 0.0,
        at,
        float(a[at]) if apart.size else 0.0,
        float(b[at]) if apart.size else 0.0,
    )


def align(ours: Sequence[Value], theirs: Sequence[Value]) -> dict[tuple[int, int], Value]:
    """Return the matching result of `theirs` for each (launch, position) of `ours`."""
    waiting: dict[object, list[Value]] = {}
    for value in theirs:
        waiting.setdefault(_exact(value), []).append(value)
    found: dict[tuple[int, int], Value] = {}
    for value in ours:
        candidates = waiting.get(_exact(value))
        if candidates:
            found[value.launch, value.position] = candidates.pop(0)
    left = [value for values in waiting.values() for value in values]
    for value in ours:
        if (value.launch, value.position) in found:
            continue
        near = [
            (overlap, -other.launch, other)
            for other in left
            if _form(other) == _form(value)
            and (overlap := _overlap(value.nodes, other.nodes)) >= LEAST_OVERLAP
        ]
        if near:
            best = max(near, key=lambda item: item[:2])[2]
            left.remove(best)
            found[value.launch, value.position] = best
    return found


def _exact(value: Value) -> object:
    return frozenset(value.nodes), value.position, _form(value)


def _form(value: Value) -> object:
    kind = value.data.dtype if value.data is not None else None
    return tuple(size for size in value.shape if size > 1), kind, prod(value.shape)


def _overlap(one: Sequence[str], other: Sequence[str]) -> float:
    union = {*one, *other}
    return len({*one} & {*other}) / len(union) if union else 0.0


def interpret(
    models: Sequence[Path],
    manifest: Manifest,
    entry: str,
    inputs: Mapping[str, Array],
    states: Mapping[str, Array],
) -> list[Value]:
    """Compute one frame with numpy.

    This version of the compiler divides the models into kernels for the artifact's device row. If
    the artifact was compiled the same way, results match launch by launch.

    `models`: the ONNX files, in any order. `manifest`: manifest of the judged artifact. `entry`:
    its entry, "run" or "prepare". `inputs`, `states`: inputs of the frame, and the states before
    it. The result has one value per result of each launch, in launch order.

    Raises:
        ToolError: the models are not those from which the artifact was compiled.
        SchedulerError: the models cannot be compiled.
    """
    from scheduler.ir.interp import evaluate
    from scheduler.ir.ops import Op
    from scheduler.onnx_import import load_model

    given_models = {model.sha256: model for model in map(load_model, models)}
    for known in manifest.models:
        if known.sha256 not in given_models:
            found = ", ".join(model.name for model in given_models.values())
            raise ToolError(
                f"--onnx: expected the {known.role} model that the artifact was made from "
                f"({known.file}, {known.sha256[:12]}), found {found}; give the files that were "
                "compiled"
            )
    ordered = [given_models[known.sha256] for known in manifest.models]
    graph = _graph_of(ordered, manifest, entry)
    plan = _scheduled(graph, manifest)
    given = {
        node.arg: (inputs if node.arg.kind == "input" else states)[node.arg.name]
        for node in _buffers(graph)
        if node.arg.kind in ("input", "state")
    }
    # A kernel that commits a state writes a BUFFER; the graph has the value assigned to it.
    assigned = {node.src[0].arg: node for node in graph.states}
    stored = [
        (number, position, assigned[node.arg] if node.op is Op.BUFFER else node, kernel)
        for number, kernel in enumerate(plan.lowered)
        for position, node in enumerate(kernel.storage)
    ]
    names = _kernel_names(plan)
    arrays = evaluate([node for _, _, node, _ in stored], given)
    return [
        Value(
            number,
            position,
            f"interpreter of {names[number]}",
            tuple(kernel.kernel.origin),
            node.shape,
            np.asarray(array, order="C").ravel(),
            is_logical=True,
        )
        for (number, position, node, kernel), array in zip(stored, arrays, strict=True)
    ]


def _graph_of(models: Sequence[Any], manifest: Manifest, entry: str) -> EntryGraph:
    from runtime.format.interfaces import parse_interface
    from scheduler.driving.program import driving_entries

    interface = parse_interface(manifest.metadata["interface"])
    spec = manifest.entries[0]
    buffers = (manifest.buffers[number] for number in spec.inputs)
    capacity = next(b.shape[0] for b in buffers if b.name == "road_frame")
    return driving_entries(interface, models, capacity)[entry]


def _scheduled(graph: EntryGraph, manifest: Manifest) -> Schedule:
    from scheduler.context import FAST, WIDE, context_for
    from scheduler.device.targets import target_for

    precision = "fp16" if manifest.metadata.get("precision") else "fp32"
    halves = manifest.metadata.get("halves", WIDE)
    numerics = manifest.metadata.get("numerics", FAST)
    target = target_for(manifest.target.name)
    context = context_for(target, precision=precision, halves=halves, numerics=numerics)
    return graph.schedule(context)


def _kernel_names(plan: Schedule) -> list[str]:
    return [", ".join(kernel.kernel.origin[:1]) for kernel in plan.lowered]


def _buffers(graph: EntryGraph) -> list[Any]:
    from scheduler.ir.node import toposort
    from scheduler.ir.ops import Op

    roots = [node for _, node in graph.roots()]
    return [node for node in toposort(roots) if node.op is Op.BUFFER]
