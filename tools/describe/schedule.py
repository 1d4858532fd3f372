"""Describes a schedule: the kernel table of an artifact or of an ONNX model.

An artifact is read as it is. An ONNX model is scheduled first, which needs no device; then lanes
and loop ranges are known too.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from runtime.format.artifact import read_artifact
from runtime.quantities import flops_column
from scheduler.debug.kernel_table import KernelTable, kernel_tables
from scheduler.debug.kernel_text import facts, header, rows
from tools.errors import UsageError
from tools.lib.table import Section, format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from scheduler.emit.schedule import Schedule


class Scheduled(NamedTuple):
    """A manifest, and the schedules it was made of where those are known."""

    manifest: Mapping[str, Any]
    plans: Mapping[str, Schedule]


def load(path: Path, kind: str, bind: Mapping[str, int] | None = None) -> Scheduled:
    """Return the manifest of an artifact, or of an ONNX model after scheduling it.

    Args:
        path: the file.
        kind: "artifact", "onnx" or "log", as `tools.lib.file_kind.kind_of` tells.
        bind: sizes of symbolic dimensions of an ONNX model.

    Raises:
        UsageError: a log has no schedule.
        ArtifactError: the artifact is not sound.
        SchedulerError: the model cannot be compiled.
    """
    if kind == "artifact":
        return Scheduled(read_artifact(path).manifest.raw, {})
    if kind == "onnx":
        # These import onnx, which artifacts do without.
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

    Args:
        scheduled: from `load`.
        entry: the one to show; None for all in the data, for the first one in the tables.

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
                format_size(t.bytes_moved),
                format_size(t.arena_peak),
                format_size(t.arena_live),
                format_size(t.arena_unplanned),
            )
        )
    header = ("entry", "kernels", "launches", unit, "moved", "arena", "alive", "without reuse")
    return Section("totals", header, lines)
