"""The results of all kernels of a frame as the numpy interpreter computes them from ONNX models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from runtime.format.manifest import Manifest
from tools.errors import ToolError
from tools.regress.explain.launch_values import Value

if TYPE_CHECKING:
    from scheduler.emit.schedule import Schedule
    from scheduler.schedule_cache import EntryGraph

Array = NDArray[Any]


def interpret(
    models: Sequence[Path],
    manifest: Manifest,
    entry: str,
    inputs: Mapping[str, Array],
    states: Mapping[str, Array],
) -> list[Value]:
    """Compute one frame with numpy.

    The models are cut into kernels by this version of the compiler for the row of device figures of
    the artifact: where it was compiled so, results are matched launch by launch.

    `models`: the ONNX files, in any order. `manifest`: of the artifact that is judged. `entry`: of
    it, "run" or "prepare". `states`: before it. The result is one value for each result of each
    launch, in the order of launches.

    Raises:
        ToolError: the models are not those that the artifact was made from.
        SchedulerError: they cannot be compiled.
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
    # A kernel that commits a state writes its BUFFER; what it writes is what the graph assigns.
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
    from runtime.format.driving_interface import parse_interface
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
