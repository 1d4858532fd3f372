"""Compiles ONNX files to artifacts. This is the compiler's public entry point.

There is one function for each kind of program: a single model without driving conventions, a
driving program of one to three models, and a driver monitoring model. Each returns a
`CompiledModel`, which can build device binaries and write the artifact.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

from runtime.files.cache import cache_dir
from runtime.format.artifact import Digests, write_artifact
from runtime.format.interfaces import MONITORING_ROLE, Interface
from runtime.format.parts import fitted_lineage
from runtime.opencl.device import choose_device
from runtime.run.executor import build_binaries
from scheduler.context import FAST, FP32, WIDE, CompileContext, context_for
from scheduler.device.spec import DeviceSpec
from scheduler.device.targets import AUTO, target_for
from scheduler.device.tuned_table import TunedTable
from scheduler.driving.monitoring import MONITORING, monitoring_graph, recognise_monitoring
from scheduler.driving.program import DEFAULT_CAPACITY, driving_entries
from scheduler.driving.recognise import recognise_driving
from scheduler.emit.artifact import Emitted
from scheduler.emit.limit_checks import check_limits
from scheduler.flags import Flags
from scheduler.onnx_import import (
    ImportedModel,
    OnnxModel,
    check_supported,
    import_model,
    load_model,
)
from scheduler.onnx_import.binding import declared
from scheduler.onnx_import.metadata import CHECKPOINT_KEY, SLICES_KEY
from scheduler.schedule_cache import EntryGraph, ScheduleCache

# Called with the current step, the number of finished items and their total.
Progress = Callable[[str, int, int], None]
# Returns the table of loops for the entries; it can measure them first.
Tables = Callable[[Mapping[str, EntryGraph], CompileContext], TunedTable]


class CompileOptions(TypedDict, total=False):
    """The options that all `compile_*` functions take as keyword arguments."""

    precision: str  # "fp32", or "fp16" to store fp16 (`scheduler.passes.halves.precision`)
    halves: str  # "wide" (the default) or "exact"; see `scheduler.passes.halves.half_arithmetic`
    numerics: str  # "fast" (the default) or "strict", see `scheduler.passes.strict_numerics`
    target: DeviceSpec | None  # see `scheduler.device.targets`; None for this machine's target
    tables: Tables | None  # source of measured loops; None for the table shipped for the target
    flags: Flags | None  # compiler flags; None for the environment's flags


@dataclass(frozen=True, slots=True)
class CompiledModel:
    """A compiled model that has not been written yet."""

    manifest: dict[str, Any]  # the manifest for `runtime.write_artifact`, without binaries
    data: bytes  # the artifact's data: the weights
    arena_unplanned: int  # size of the largest entry's intermediates without reuse, in bytes
    notes: tuple[str, ...] = ()  # assumptions about the models, one sentence each
    # The source graph of each entry, by name; `scheduler.check.vectors` evaluates them.
    graphs: Mapping[str, EntryGraph] = field(default_factory=dict)
    sources: tuple[OnnxModel, ...] = ()  # the models, in run order

    @property
    def kernels(self) -> int:
        """The number of distinct kernel functions."""
        return len({k["name"] for k in self.manifest["kernels"]})

    def build(self, device: str | None = None, progress: Progress | None = None) -> CompiledModel:
        """Return the model with device binaries, built on a device of this machine.

        If the model has a self-test, only binaries of a program that passed it are used.

        Args:
            device: device name, as for `runtime.load_program`; None for the default device.
            progress: called with ("building kernels", done, total).

        Raises:
            NoDeviceError: there is no device.
            BuildError: a program does not build.
            SelfTestError: the device's results differ from the model's.
        """
        chosen = choose_device(device)
        if progress is not None:
            progress("building kernels", 0, self.kernels)
        binaries = build_binaries(self.manifest, self.data, chosen)
        if progress is not None:
            progress("building kernels", self.kernels, self.kernels)
        old = self.manifest["programs"]
        programs = [{**p, "binary": b} for p, b in zip(old, binaries, strict=True)]
        target = {
            **self.manifest["target"],
            "device": chosen.info.name,
            "driver": chosen.info.driver,
        }
        manifest = {**self.manifest, "programs": programs, "target": target}
        return replace(self, manifest=manifest)

    def write(self, path: str | os.PathLike[str]) -> Digests:
        """Write the artifact atomically, or raise ArtifactError; return its digests."""
        return write_artifact(path, self.manifest, self.data)


def compile_plain(
    source: str | Path | OnnxModel,
    *,
    bind: Mapping[str, int] | None = None,
    **options: Unpack[CompileOptions],
) -> CompiledModel:
    """Compile one ONNX model without driving conventions. The program has one entry, "run".

    Args:
        source: an ONNX file, or a loaded model.
        bind: sizes of symbolic dimensions by name, see `import_model`; all others become 1.
        options: see `CompileOptions`.

    Raises:
        ModelError: the file is unreadable, invalid or uses unsupported operators, or has no
            dimension that `bind` names.
    """
    model = source if isinstance(source, OnnxModel) else load_model(source)
    imported = import_model(model, bind=bind)
    emitted = emitted_plain(imported, _context(options), options.get("tables"))
    finished = _finish(emitted, {"model": model}, {})
    return replace(finished, notes=imported.notes, graphs={"run": _plain_graph(imported)})


def emitted_plain(
    imported: ImportedModel, context: CompileContext, tables: Tables | None = None
) -> Emitted:
    """Return the artifact's data and the schedule of its entry "run", or raise SchedulerError."""
    name = Path(imported.source.name).stem or "model"
    return _emitted({"run": _plain_graph(imported)}, context, name, "plain", tables)


def _plain_graph(imported: ImportedModel) -> EntryGraph:
    return EntryGraph(
        {n: t.node for n, t in imported.outputs.items()},
        inputs=[t.node for t in imported.inputs.values()],
        origins=imported.origins,
    )


def compile_driving(
    models: Sequence[str | Path | OnnxModel],
    *,
    interface: str | None = None,
    capacity: int = DEFAULT_CAPACITY,
    **options: Unpack[CompileOptions],
) -> CompiledModel:
    """Compile the models of one interface to one driving program.

    The interface fixes the sizes of all inputs, including symbolic dimensions. The program has the
    entry "run". If dropped frames only advance the queues, it also has the entry "prepare". Both
    accept frames of any size up to `capacity`.

    Args:
        models: one to three ONNX files, in any order.
        interface: name of a revision; None to detect it from the models.
        capacity: size of the largest camera frame that a run accepts, in bytes.
        options: see `CompileOptions`.

    Raises:
        ModelError: a model is unusable, or they do not have one known interface.
    """
    loaded = [m if isinstance(m, OnnxModel) else load_model(m) for m in models]
    found, ordered, notes = recognise_driving(loaded, interface)
    check_supported(*ordered)
    entries = driving_entries(found, ordered, capacity)
    emitted = _emitted(entries, _context(options), "driving", "driving", options.get("tables"))
    roles = {part.role: model for part, model in zip(found.models, ordered, strict=True)}
    finished = _finish(emitted, roles, {"interface": found.plain()})
    return replace(finished, notes=notes, graphs=entries)


def compile_monitoring(
    source: str | Path | OnnxModel,
    *,
    interface: str | None = None,
    capacity: int = DEFAULT_CAPACITY,
    **options: Unpack[CompileOptions],
) -> CompiledModel:
    """Compile a driver monitoring model. The entry "run" accepts a frame of any size.

    `interface` names a revision; by default it is detected from the outputs. `capacity` is the size
    of the largest camera frame in bytes. Raises ModelError if the model is unusable or does not
    match the interface.
    """
    model = source if isinstance(source, OnnxModel) else load_model(source)
    found = recognise_monitoring(model, interface)
    graph = monitoring_graph(found, capacity)
    tables = options.get("tables")
    emitted = _emitted({"run": graph}, _context(options), MONITORING, MONITORING, tables)
    finished = _finish(emitted, {MONITORING_ROLE: model}, {"interface": found.interface.plain()})
    return replace(finished, notes=found.notes, graphs={"run": graph})


def driving_sizes(model: OnnxModel, interface: Interface) -> dict[str, int]:
    """Return the sizes of a model's symbolic dimensions, by name, in a driving program.

    The result is empty if the model is not part of the interface.
    """
    names = {value.name for value in model.inputs}
    known = next((part.inputs for part in interface.models if set(part.inputs) == names), None)
    if known is None:
        return {}
    sizes = {}
    for value in model.inputs:
        shape, _ = declared(value, f'{model.name}: input "{value.name}"')
        for axis, (name, size) in enumerate(shape):
            if size is None:
                sizes[name or f"{value.name}:{axis}"] = known[value.name][0][axis]
    return sizes


def _context(options: CompileOptions) -> CompileContext:
    target = options.get("target") or target_for(AUTO)
    return context_for(
        target,
        flags=options.get("flags"),
        precision=options.get("precision", FP32),
        halves=options.get("halves", WIDE),
        numerics=options.get("numerics", FAST),
    )


def _emitted(
    entries: Mapping[str, EntryGraph],
    context: CompileContext,
    name: str,
    kind: str,
    tables: Tables | None,
) -> Emitted:
    """Compile entries with the cache, and check the limits of the target."""
    tuned = None if tables is None else tables(entries, context)
    if tuned is not None and context.flags.tuned:
        context = replace(context, tuned=tuned)
    cache = ScheduleCache(cache_dir() / "schedules")
    emitted = cache.emitted(entries, context, name=name, kind=kind)
    check_limits(emitted.manifest, context.spec)
    return emitted


def _finish(
    emitted: Emitted, models: dict[str, OnnxModel], metadata: dict[str, Any]
) -> CompiledModel:
    """Add metadata, models and lineage to the manifest of an emitted artifact."""
    emitted.manifest["metadata"].update(metadata)  # keep the metadata that `emit` added
    for role, model in models.items():
        props = model.metadata_props
        emitted.manifest["models"].append(
            {
                "role": role,
                "file": Path(model.name).name,
                "sha256": model.sha256 or "0" * 64,  # zeros for a model that was in memory
                "checkpoint": props.get("model_checkpoint", ""),
            }
        )
    lineage = fitted_lineage(_lineage_of(models))
    if lineage:
        emitted.manifest["lineage"] = lineage
    sources = tuple(models.values())
    return CompiledModel(emitted.manifest, emitted.data, emitted.arena_unplanned, sources=sources)


def _lineage_of(models: Mapping[str, OnnxModel]) -> dict[str, str]:
    """Return the models' producers and metadata, with keys ``ROLE.NAME``."""
    found: dict[str, str] = {}
    for role, model in models.items():
        proto = model.proto
        maker = f"{proto.producer_name} {proto.producer_version}".strip()
        for name, text in {**model.metadata_props, "producer": maker}.items():
            if name not in (CHECKPOINT_KEY, SLICES_KEY):
                found[f"{role}.{name}"] = text
    return found
