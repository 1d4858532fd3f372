"""Describes a schedule: the kernel table of an artifact or of an ONNX model.

An artifact is read as stored. An ONNX model is scheduled first, which needs no device and also
shows lanes and loop ranges.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from runtime.format.artifact import read_artifact
from runtime.texts import flops_column, size_text
from scheduler.debug.kernel_table import KernelTable, facts, header, kernel_tables, rows
from scheduler.debug.viz import LaunchTimes
from tools.errors import FileKindError, UsageError
from tools.lib.given_data import GivenText
from tools.lib.terminal import Section

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.emit.schedule import Schedule


class Scheduled(NamedTuple):
    """A manifest, and the schedules that it was made from, if known."""

    manifest: Mapping[str, Any]
    plans: Mapping[str, Schedule]


def load(path: Path, kind: str, bind: Mapping[str, int] | None = None) -> Scheduled:
    """Return the manifest of an artifact, or of an ONNX model after scheduling it.

    `kind` comes from `tools.lib.named_file.kind_of`; `bind` has sizes of symbolic dimensions.

    Raises:
        UsageError: the file is of another kind, such as a log.
        ArtifactError: the artifact is not valid.
        SchedulerError: the model cannot be compiled.
    """
    if kind == "artifact":
        return Scheduled(read_artifact(path).manifest.raw, {})
    if kind == "onnx":
        # These import onnx, which is not needed for artifacts.
        from scheduler.compile import emitted_plain
        from scheduler.context import Stages, context_for
        from scheduler.device.targets import AUTO, target_for
        from scheduler.onnx_import import import_model, load_model

        imported = import_model(load_model(path), bind=bind)
        context = replace(context_for(target_for(AUTO, None)), stages=Stages())
        emitted = emitted_plain(imported, context)
        return Scheduled(emitted.manifest, emitted.plans)
    raise UsageError(f"--schedule {path}: expected an artifact or an ONNX model, found a {kind}")


def describe(
    scheduled: Scheduled, entry: str | None = None
) -> tuple[dict[str, Any], list[Section]]:
    """Return the tables for machines (all entries) and for people.

    If `entry` is None, the data has all entries and the tables show the first.

    Raises:
        UsageError: there is no such entry.
    """
    names = list(scheduled.manifest["entries"])
    tables = kernel_tables(scheduled.manifest, scheduled.plans)
    if entry is not None:
        tables = [table for table in tables if table.entry == entry]
        if not tables:
            raise UsageError(f"--entry {entry}: expected one of {', '.join(names)}")
    data = {"entries": {table.entry: facts(table) for table in tables}}
    shown = Section(f"kernels of {tables[0].entry}", header(tables[0]), rows(tables[0]))
    return data, [shown, _totals(tables)]


def _totals(tables: Sequence[KernelTable]) -> Section:
    lines: list[tuple[object, ...]] = []
    totals = [table.totals for table in tables]
    unit, work = flops_column([t.flops for t in totals])
    for table, t, flops in zip(tables, totals, work, strict=True):
        lines.append(
            (
                table.entry,
                t.kernels,
                t.launches,
                flops,
                size_text(t.bytes_moved),
                size_text(t.arena_peak),
                size_text(t.arena_live),
                size_text(t.arena_unplanned),
            )
        )
    header = ("entry", "kernels", "launches", unit, "moved", "arena", "alive", "without reuse")
    return Section("totals", header, lines)


# A launch takes about 300 bytes; no entry has more than a few thousand launches.
MAX_BYTES: Final = 64 << 20
_ADVICE: Final = "make it with: modeld bench ARTIFACT --profile --json > FILE"


def load_times(path: Path, manifest: Mapping[str, Any]) -> dict[str, LaunchTimes]:
    """Return the times of the measured entry by its name; its kernels must match the artifact.

    Raises:
        FileKindError: the file cannot be read, has no times, or has those of other kernels.
    """
    found = _read(path)
    entry, rows = found.get("entry"), found.get("per_kernel")
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise FileKindError(f"--times {path}: expected times by kernel, found none; {_ADVICE}")
    if entry not in manifest["entries"]:
        names = ", ".join(manifest["entries"])
        raise FileKindError(f"--times {path}: expected an entry of {names}, found {entry!r}")
    kernels = [manifest["kernels"][at]["name"] for at in manifest["entries"][entry]["launches"]]
    measured = [row.get("name") for row in rows]
    if measured != kernels:
        raise FileKindError(
            f"--times {path}: expected the {len(kernels)} launches of {manifest['name']}, found "
            f"{len(measured)} of other kernels; measure this artifact"
        )
    times = [row.get("median_ms") for row in rows]
    if not all(isinstance(ms, int | float) and math.isfinite(ms) and ms >= 0 for ms in times):
        raise FileKindError(f"--times {path}: expected median_ms of each launch; {_ADVICE}")
    device = found.get("device")
    where = device if isinstance(device, str) and device else "a device without a name"
    return {str(entry): LaunchTimes(tuple(map(float, times)), where)}


def _read(path: Path) -> dict[str, Any]:
    found = GivenText(path, FileKindError, MAX_BYTES, "--times", _ADVICE).json()
    if not isinstance(found, dict):
        raise FileKindError(f"--times {path}: expected one JSON object; {_ADVICE}")
    return found
