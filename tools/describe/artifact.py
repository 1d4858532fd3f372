"""Describes an artifact and its interface, as `modeld inspect` prints them.

Each property of an interface has a value and a source: derived from the model, declared for the
interface, or declared by a file of rules next to the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from runtime.format.artifact import Artifact, read_artifact
from runtime.format.interfaces import (
    HistoryRule,
    Interface,
    ModelPart,
    MonitoringInterface,
    parse_interface,
    parse_monitoring_interface,
)
from runtime.texts import count_text, flops_column, size_text
from tools.lib.terminal import Section, printable

if TYPE_CHECKING:
    from pathlib import Path

    from runtime.format.manifest import BufferSpec, EntrySpec, Manifest

SHOWN_KERNELS = 20
DERIVED = "names, shapes and slices of the model"

Recognised = Interface | MonitoringInterface
Row = tuple[str, str, str]


def describe(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return the manifest without sources and binaries, as facts and as tables.

    Raises:
        ArtifactError: the file is not a valid artifact.
    """
    artifact = read_artifact(path)
    manifest = artifact.manifest
    facts = {
        "name": manifest.name,
        "artifact_kind": manifest.kind,
        "sha256": artifact.sha256,
        "program_sha256": artifact.program_sha256,
        "lineage": manifest.lineage,
        "models": manifest.raw["models"],
        "metadata": manifest.metadata,
        "target": manifest.raw["target"],
        "interface": interface_facts(manifest.kind, manifest.metadata),
        "problem": _problem(manifest),
        "entries": {entry.name: _entry_facts(manifest, entry) for entry in manifest.entries},
        "state": [_tensor_facts(b) for b in manifest.buffers if b.kind == "state"],
        "arena_bytes": manifest.arena_size,
        "data_bytes": manifest.data_size,
        "programs": len(manifest.programs),
        "binaries": sum(1 for program in manifest.programs if program.binary),
        "kernels": len({(kernel.program, kernel.name) for kernel in manifest.kernels}),
        "self_test": [{"entry": v.entry, "seed": v.seed} for v in manifest.self_test],
    }
    return facts, _sections(artifact)


def _tensor_facts(buffer: BufferSpec) -> dict[str, Any]:
    return {"name": buffer.name, "dtype": buffer.dtype, "shape": list(buffer.shape)}


def _entry_facts(manifest: Manifest, entry: EntrySpec) -> dict[str, Any]:
    launches = [manifest.kernels[index] for index in entry.launches]
    return {
        "inputs": [_tensor_facts(manifest.buffers[index]) for index in entry.inputs],
        "outputs": [_tensor_facts(manifest.buffers[index]) for index in entry.outputs],
        "launches": len(launches),
        "in_megakernel": sum(kernel.function >= 0 for kernel in launches),
        "flops": sum(kernel.flops for kernel in launches),
        "bytes_moved": sum(kernel.bytes_moved for kernel in launches),
    }


def _sections(artifact: Artifact) -> list[Section]:
    manifest = artifact.manifest
    binaries = sum(1 for program in manifest.programs if program.binary)
    overview: list[tuple[object, ...]] = [
        ("name", manifest.name),
        ("kind", manifest.kind),
        ("sha256", artifact.sha256),
        ("program sha256", artifact.program_sha256),
        ("compiled for", f"{manifest.target.name}: {manifest.target.device or 'any device'}"),
        ("driver", manifest.target.driver or "any"),
        *((n, manifest.metadata[n]) for n in ("halves", "numerics") if n in manifest.metadata),
        ("weights", size_text(manifest.data_size)),
        ("arena", size_text(manifest.arena_size)),
        ("programs", f"{len(manifest.programs)}, {binaries} with a device binary"),
        ("self-test", _self_test(manifest)),
        ("a run is", _commands(manifest)),
    ]
    overview += [
        (model.role, f"{model.file}, checkpoint {model.checkpoint or 'unknown'}")
        for model in manifest.models
    ]
    overview += [(f"lineage {name}", printable(it)) for name, it in manifest.lineage.items()]
    problem = _problem(manifest)
    if problem:
        overview.append(("cannot drive", problem))
    tensors: list[tuple[object, ...]] = []
    for entry in manifest.entries:
        for use, indices in (("input", entry.inputs), ("output", entry.outputs)):
            tensors += [_tensor_row(entry.name, use, manifest.buffers[i]) for i in indices]
    tensors += [_tensor_row("(all)", "state", b) for b in manifest.buffers if b.kind == "state"]
    facts = [_entry_facts(manifest, entry) for entry in manifest.entries]
    unit, work = flops_column([f["flops"] for f in facts])
    entries: list[tuple[object, ...]] = [
        (entry.name, f["launches"], f["in_megakernel"], flops, size_text(f["bytes_moved"]))
        for entry, f, flops in zip(manifest.entries, facts, work, strict=True)
    ]
    return [
        Section("overview", ("what", "value"), overview),
        *_interface(manifest),
        Section("entries", ("entry", "launches", "in megakernel", unit, "moved"), entries),
        Section("tensors", ("entry", "use", "name", "dtype", "shape"), tensors),
        _kernel_section(manifest),
    ]


def _commands(manifest: Manifest) -> str:
    """Return the number of driver commands that launch a run's kernels, by device."""
    one = "if the driver records them (see modeld devices)"
    if manifest.megakernel is not None:
        one = f"on PoCL's CPU devices, or {one}"
    return f"one command for all launches {one}, else one per launch"


def _self_test(manifest: Manifest) -> str:
    runs = Counter(vector.entry for vector in manifest.self_test)
    seeds = (f"{count_text(count, 'seed')} of {entry}" for entry, count in runs.items())
    return ", ".join(seeds) or "none"


def _interface(manifest: Manifest) -> list[Section]:
    found = stored_interface(manifest.kind, manifest.metadata)
    return [] if found is None else [interface_section(found)]


def _problem(manifest: Manifest) -> str | None:
    """Return why the daemon would reject the heads of a driving model; None if it would not."""
    found = stored_interface(manifest.kind, manifest.metadata)
    if not isinstance(found, Interface):
        return None
    # takes half a second, which few artifacts need
    from scheduler.driving.derive import head_problems

    return "; ".join(head_problems(found.models, found.action).values()) or None


def _tensor_row(entry: str, use: str, buffer: BufferSpec) -> tuple[object, ...]:
    return entry, use, buffer.name, buffer.dtype, "x".join(map(str, buffer.shape)) or "scalar"


def _kernel_section(manifest: Manifest) -> Section:
    launches = manifest.entries[0].launches
    counts = Counter(manifest.kernels[index].name for index in launches)
    work: Counter[str] = Counter()
    for index in launches:
        work[manifest.kernels[index].name] += manifest.kernels[index].flops
    most = work.most_common(SHOWN_KERNELS)
    unit, cells = flops_column([flops for _, flops in most])
    rows: list[tuple[object, ...]] = [
        (name, counts[name], cell) for (name, _), cell in zip(most, cells, strict=True)
    ]
    title = f"kernels of {manifest.entries[0].name}, most work first ({len(rows)} of {len(counts)})"
    return Section(title, ("kernel", "launches", unit), rows)


def stored_interface(kind: str, metadata: Mapping[str, Any]) -> Recognised | None:
    """Return the interface stored in an artifact; None for a plain model.

    Raises:
        ArtifactError: the interface is not valid.
    """
    if kind == "driving":
        return parse_interface(metadata.get("interface"))
    if kind == "monitoring":
        return parse_monitoring_interface(metadata.get("interface"))
    return None


def interface_facts(kind: str, metadata: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return name, reason and properties of an artifact's interface; None for a plain model."""
    found = stored_interface(kind, metadata)
    if found is None:
        return None
    return {"name": found.name, "reason": found.reason, "properties": plain_rows(found)}


def plain_rows(interface: Recognised) -> list[dict[str, str]]:
    """Return the properties for JSON."""
    return [
        {"property": name, "value": value, "source": source}
        for name, value, source in _rows(interface)
    ]


def interface_section(interface: Recognised) -> Section:
    """Return the properties as a table; its title gives the reason for this interface."""
    rows: list[tuple[object, ...]] = list(_rows(interface))
    title = f"interface: {interface.name}, {interface.reason}"
    return Section(title, ("property", "value", "source"), rows)


def _rows(interface: Recognised) -> Iterator[Row]:
    declared = f"declared for {interface.name}"
    if isinstance(interface, MonitoringInterface):
        yield from _part(interface.model)
        yield "image_mode", interface.image_mode, declared
        yield "stds", interface.stds, declared
        return
    # If a file next to the model replaces rules, `reason` ends with "; rules of FILE: a, b".
    file, _, replaced = interface.reason.partition("; rules of ")[2].partition(": ")
    for part in interface.models:
        yield from _part(part)
    for name, value in _derived(interface):
        yield name, value, DERIVED
    for name, value in _declared(interface):
        yield name, value, f"declared by {file}" if name in replaced.split(", ") else declared


def _derived(interface: Interface) -> Iterator[tuple[str, str]]:
    yield "image.gap", _gap(interface)
    for name in ("desire", "features", "curvature"):
        yield name, _history(getattr(interface, name))
    yield "states", ", ".join(interface.states) or "none"
    yield "host_inputs", ", ".join(interface.host_inputs) or "none"
    yield "meta", f"{interface.meta} values"


def _declared(interface: Interface) -> Iterator[tuple[str, str]]:
    """Yield the rules, with their names in TOML files."""
    yield "image_mode", interface.image.mode
    yield "drop_policy", interface.drop_policy
    yield "lane_change", interface.lane_change
    yield "big", _text(interface.big)
    if interface.curvature is not None:
        yield "curvature_scale", _text(interface.curvature.scale)
    for field in fields(interface.action):
        yield f"action.{field.name}", _text(getattr(interface.action, field.name))


def _part(part: ModelPart) -> Iterator[Row]:
    yield f"{part.role}: width", str(part.width), DERIVED
    for name, (shape, kind) in part.inputs.items():
        yield f"{part.role}: input {name}", f"{kind} ({', '.join(map(str, shape))})", DERIVED
    for name, (start, stop) in part.slices.items():
        yield f"{part.role}: head {name}", f"{stop - start} from {start}", DERIVED


def _gap(interface: Interface) -> str:
    if not interface.image.gap:
        return "the newest images only"
    return f"two images, {interface.image.gap} frames apart"


def _history(rule: HistoryRule | None) -> str:
    if rule is None:
        return "none"
    when = "including the current frame" if rule.current else "excluding the current frame"
    return f"{rule.length} samples, every {rule.step} frames, {when}"


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)
