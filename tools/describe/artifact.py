"""Describes an artifact, as `modeld inspect` prints it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from runtime.format.artifact import Artifact, read_artifact
from runtime.format.driving_interface import Interface
from runtime.quantities import count_text, flops_column, size_text
from tools.describe.interface import interface_facts, interface_section, stored_interface
from tools.lib.table import Section, printable

if TYPE_CHECKING:
    from pathlib import Path

    from runtime.format.manifest import BufferSpec, EntrySpec, Manifest

SHOWN_KERNELS = 20


def describe(path: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return the manifest without sources and binaries, and it as tables.

    Raises:
        ArtifactError: the file is not a sound artifact.
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
    """Return how many commands of a driver launch the kernels of a run, by device."""
    one = "where the driver records them (modeld devices)"
    if manifest.megakernel is not None:
        one = f"on PoCL's CPU devices, and {one}"
    return f"one command for its launches {one}, else one for each"


def _self_test(manifest: Manifest) -> str:
    runs = Counter(vector.entry for vector in manifest.self_test)
    seeds = (f"{count_text(count, 'seed')} of {entry}" for entry, count in runs.items())
    return ", ".join(seeds) or "none"


def _interface(manifest: Manifest) -> list[Section]:
    found = stored_interface(manifest.kind, manifest.metadata)
    return [] if found is None else [interface_section(found)]


def _problem(manifest: Manifest) -> str | None:
    """Return why the daemon would refuse the heads of a driving model; None if it would not."""
    found = stored_interface(manifest.kind, manifest.metadata)
    if not isinstance(found, Interface):
        return None
    from scheduler.driving.derive import head_problems  # half a second that few artifacts need

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
