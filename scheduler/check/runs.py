"""Runs a compiled model and its reference on the same inputs and compares the outputs.

`run_both` runs them on several kinds of seeded inputs. `judged` returns the worst difference of
each output, after an evaluation in float64 has settled disputed differences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from runtime.format.artifact import from_memory
from runtime.opencl.device import Device
from runtime.opencl.program_cache import shared_cache
from runtime.run.executor import Program
from scheduler.check.outputs import (
    Arbiter,
    Dispute,
    OutputCheck,
    Rounding,
    check_output,
    check_parts,
)
from scheduler.check.references import Reference
from scheduler.check.sample_inputs import Kind, is_float, sample_inputs, sets_of, unsuited
from scheduler.compile import CompiledModel
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import import ImportedModel, OnnxModel
from scheduler.onnx_import.element_types import from_storage, to_storage

Array = NDArray[Any]
Arrays = Mapping[str, Array]

# Sets of standard normal inputs. Two are enough to see whether an output depends on its inputs.
SEEDS = 2
# For an output that did not change, inputs are tried up to this number before it is reported.
MOST_SEEDS = 4


@dataclass(frozen=True, slots=True)
class Subject:
    """The model under test."""

    compiled: CompiledModel  # result of `compile_plain`
    model: OnnxModel  # the ONNX model it was compiled from
    imported: ImportedModel  # the imported model, with the same sizes
    rounding: Rounding  # the coarsest rounding inside the model

    @property
    def operators(self) -> frozenset[str]:
        """The ONNX operator types of the main graph."""
        return frozenset(node.op_type for node in self.model.proto.graph.node)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shapes of the program's inputs, by name."""
        return input_shapes(self.compiled)

    def unsuited(self, kind: Kind) -> str:
        """Return the reason not to use a kind of inputs, or "" to use it."""
        roots = [output.node for output in self.imported.outputs.values()]
        manifest = self.compiled.manifest
        launches = manifest["entries"]["run"]["launches"]
        flops = sum(manifest["kernels"][index]["flops"] for index in launches)
        half = self.rounding is not Rounding.FLOAT
        return unsuited(kind, self.operators, roots, half=half, flops=flops)


@dataclass(frozen=True, slots=True)
class Run:
    """The inputs and outputs of the program and of the reference, for one set of inputs."""

    kind: Kind  # kind of the inputs
    feeds: dict[str, Array]  # inputs of the reference, in the model's types
    given: dict[str, Array]  # inputs of the program, in the device's types
    raw: dict[str, Array]  # outputs of the program, in the device's types
    found: dict[str, Array]  # outputs of the program, in the model's types
    expected: dict[str, Array]  # outputs of the reference, in the model's types


def input_shapes(compiled: CompiledModel) -> dict[str, tuple[int, ...]]:
    """Return the input shapes of a plain program, by name."""
    buffers = compiled.manifest["buffers"]
    used = (buffers[index] for index in compiled.manifest["entries"]["run"]["inputs"])
    return {buffer["name"]: tuple(buffer["shape"]) for buffer in used}


def run_both(
    subject: Subject, reference: Reference, device: Device, constant: Sequence[str]
) -> tuple[list[Run], dict[str, str]]:
    """Run model and reference on seeded inputs of each kind that suits the model.

    `constant` names outputs that depend on no input. Sets of standard normals are added until all
    outputs that depend on an input have changed, up to MOST_SEEDS. Returns the runs, standard
    normals first, and the skipped kinds with their reasons.
    """
    model, compiled = subject.model, subject.compiled
    codes = {
        v.name: v.type.tensor_type.elem_type for v in (*model.inputs, *model.proto.graph.output)
    }
    artifact = from_memory(compiled.manifest, compiled.data)
    with Program(artifact, device, shared_cache(device)) as program:

        def run(kind: Kind, seed: int) -> Run:
            rng = np.random.default_rng(seed)
            feeds = sample_inputs(model, subject.shapes, rng, kind)
            given = {name: to_storage(array, codes[name]) for name, array in feeds.items()}
            raw = copied(program.run(given))
            found = {name: from_storage(array, codes[name]) for name, array in raw.items()}
            return Run(kind, feeds, given, raw, found, reference.run(feeds))

        runs: list[Run] = []
        while len(runs) < SEEDS or (len(runs) < MOST_SEEDS and unchanged(runs, constant)):
            runs.append(run(Kind.NORMAL, len(runs)))
        left_out: dict[str, str] = {}
        values = sum(prod(s) for name, s in subject.shapes.items() if is_float(codes[name]))
        for kind in (Kind.GRID, Kind.EXTREME, Kind.INFINITE) if values else ():
            why = subject.unsuited(kind)
            if why:
                left_out[kind.value] = why
            runs += [run(kind, seed) for seed in range(0 if why else sets_of(kind, values))]
    return runs, left_out


def unchanged(runs: Sequence[Run], constant: Sequence[str]) -> list[str]:
    """Return the outputs that depend on an input but are equal in all runs."""
    return [
        name
        for name, first in runs[0].raw.items()
        if name not in constant
        and first.size
        and all(run.raw[name].tobytes() == first.tobytes() for run in runs[1:])
    ]


def judged(
    runs: Sequence[Run], subject: Subject, arbiter: Arbiter
) -> tuple[list[OutputCheck], list[OutputCheck]]:
    """Return the worst comparison of each output and slice, after arbitration, worst first."""
    slices = subject.imported.metadata.output_slices
    outputs: dict[str, OutputCheck] = {}
    parts: dict[str, OutputCheck] = {}
    width = max((stop for _, stop in slices.values()), default=0)
    for run in runs:
        for name, expected in run.expected.items():
            found = run.found[name]
            inside = slices if expected.ndim and expected.shape[-1] >= width else {}
            check = check_output(name, found, expected, rounding=subject.rounding, slices=inside)
            comparable = (found.shape, found.dtype) == (expected.shape, expected.dtype)
            if comparable:
                check = _settled(check, run, subject, arbiter)
            _keep(outputs, check)
            if comparable and run.kind is Kind.NORMAL:
                for part in check_parts(name, found, expected, inside):
                    _keep(parts, part)
    order: list[list[OutputCheck]] = [
        sorted(checks.values(), key=lambda check: -check.excess) for checks in (outputs, parts)
    ]
    return order[0], order[1]


def _settled(check: OutputCheck, run: Run, subject: Subject, arbiter: Arbiter) -> OutputCheck:
    """Return a comparison after arbitration by float64."""
    dispute = Dispute(check.name, run.feeds, run.found[check.name], run.expected[check.name])
    if run.kind in (Kind.EXTREME, Kind.INFINITE):
        return arbiter.settle_special(check, dispute, _excused(dispute, subject))
    return arbiter.settle(check, dispute) if check.problem else check


def _excused(dispute: Dispute, subject: Subject) -> Array:
    """Return a mask of elements that are arbitrary if inputs are infinite (docs/numerics.md)."""
    nodes = toposort([output.node for output in subject.imported.outputs.values()])
    found, expected = dispute.found, dispute.expected
    excused = np.zeros(found.shape, np.bool_)
    if found.dtype.kind in "iub":
        return excused
    with np.errstate(all="ignore"):
        ours, theirs = found.astype(np.float64), expected.astype(np.float64)
    if any(node.op in (Op.MAX, Op.MIN) or _picks(node) for node in nodes):
        # A maximum of 0.0 and -0.0 can be either, so the sign of its reciprocal is arbitrary.
        excused |= np.isinf(ours) & np.isinf(theirs)
    return excused


def _picks(node: Any) -> bool:
    """Whether a node is a reduction to the maximum or minimum."""
    return node.op is Op.REDUCE and node.arg[0] in (Op.MAX, Op.MIN)


def _keep(worst: dict[str, OutputCheck], check: OutputCheck) -> None:
    kept = worst.get(check.name)
    # Failures come first, then checks that float64 decided, then larger differences.
    if kept is None or (bool(check.problem), bool(check.note), check.excess) > (
        *(bool(kept.problem), bool(kept.note), kept.excess),
    ):
        worst[check.name] = check


def copied(outputs: Arrays) -> dict[str, Array]:
    """Return copies of the outputs, which the next run would overwrite."""
    return {name: array.copy() for name, array in outputs.items()}
