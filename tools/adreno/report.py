"""The cost of an artifact on an Adreno, for `modeld inspect` and `modeld compile`.

cost = cost_of(manifest, "run", find_toolchain(), 630, progress)
print(cost.floor_ms, plain(cost)["kernels"][0])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from runtime.texts import count_text, short_origin
from scheduler.debug.viz import PageTable
from scheduler.device.spec import SPECS
from tools.adreno.adreno_time import SLOTS
from tools.adreno.build import Progress, build, kernel_sources
from tools.adreno.cost import GPU_TABLE, EntryCost, KernelCost, entry_cost
from tools.adreno.statistics import Slots
from tools.adreno.toolchain import MESA, Toolchain
from tools.errors import ArtifactMismatchError, UsageError
from tools.lib.table import Section

_HEADER = (
    *("nodes", "launches", "items", "floor ms", "MACs ms", "instr", "KiB", "regs", "waves"),
    *("spills", "hot loop", "mac", "int", "conv", "tex", "load", "wait"),
)


def cost_of(
    manifest: Mapping[str, Any],
    entry: str | None,
    toolchain: Toolchain,
    gpu: int,
    progress: Progress,
) -> EntryCost:
    """Compile the kernels of an entry and return what they cost.

    Without an entry it is the first one; `progress` is called after each kernel that is built.

    Raises:
        ArtifactMismatchError: the artifact is for a CPU.
        UsageError: there is no such entry.
        ToolchainError: the compiler does not start.
    """
    target = manifest["target"]["name"]
    row = SPECS.get(target)
    if row is None or row.host_clang or not row.is_simt:
        raise ArtifactMismatchError(
            f"expected an artifact for a GPU, found one for {target}; compile it with "
            "--target adreno"
        )
    names = list(manifest["entries"])
    chosen = names[0] if entry is None else entry
    if chosen not in names:
        raise UsageError(f"--entry {entry}: expected one of {', '.join(names)}")
    launched = {manifest["kernels"][i]["name"] for i in manifest["entries"][chosen]["launches"]}
    sources = {n: s for n, s in kernel_sources(manifest).items() if n in launched}
    built = build(toolchain, sources.values(), gpu, progress)
    return entry_cost(manifest, chosen, sources, built, GPU_TABLE[gpu])


def plain(cost: EntryCost) -> dict[str, Any]:
    """Return it as a dictionary for JSON; times are missing where lanes or clock are not known."""
    timed = bool(cost.gpu.lanes)
    return {
        "gpu": cost.gpu.number,
        "compiler": f"mesa {MESA}",
        "entry": cost.entry,
        "launches": cost.launches,
        "floor_ms": round(cost.floor_ms, 4) if timed else None,
        "mac_ms": round(cost.mac_ms, 4) if timed else None,
        "estimate": SLOTS.plain(cost.floor_ms) if timed else None,
        "spills": cost.spills,
        "beyond_cache": sum(kernel.beyond_cache for kernel in cost.kernels),
        "kernels": [kernel.plain() for kernel in cost.kernels],
        "failures": [{"name": f.name, "problem": f.problem} for f in cost.failures],
    }


def sections(cost: EntryCost) -> list[Section]:
    """Return the table of kernels, those with the longest floor first, and the sums."""
    ordered = sorted(cost.kernels, key=lambda kernel: -kernel.floor_ms)
    rows = [_row(kernel) for kernel in ordered]
    title = f"{cost.entry} on an Adreno {cost.gpu.number}, compiled by Mesa {MESA}, not measured"
    found = [Section(title, _HEADER, rows)]
    if cost.failures:
        failed: list[tuple[object, ...]] = [(f.name, f.problem) for f in cost.failures]
        found.append(Section("not built", ("kernel", "why"), failed))
    return found


def lines(cost: EntryCost) -> Iterator[str]:
    """Yield the sums, and what the estimate takes for granted."""
    beyond = sum(kernel.beyond_cache for kernel in cost.kernels)
    yield (
        f"{count_text(cost.launches, 'launch')} of {count_text(len(cost.kernels), 'kernel')}; "
        f"with spills {cost.spills}, larger than the instruction cache {beyond}, "
        f"not built {len(cost.failures)}"
    )
    if cost.gpu.lanes:
        yield (
            f"no less than {cost.floor_ms:.2f} ms if no wave ever waits, of it multiply-adds "
            f"{cost.mac_ms:.2f}; {SLOTS.text(cost.floor_ms)}, by what published times were "
            "(docs/adreno.md)"
        )
    if not all(kernel.is_exact for kernel in cost.kernels):
        yield "values in memory decide how long some loops run: each such loop counts once"


def page_table(cost: EntryCost) -> PageTable:
    """Return the section of the schedule's page."""
    (table, *_) = sections(cost)
    rows = tuple(tuple(_text(cell) for cell in row) for row in table.rows)
    return PageTable(table.title, " ".join(lines(cost)), table.header, rows)


def _row(kernel: KernelCost) -> tuple[object, ...]:
    hot = kernel.hot or Slots()
    # What moves and computes floats besides is the rest; the classes that cost most are named.
    return (
        short_origin(kernel.origin),
        kernel.launches,
        kernel.items,
        kernel.floor_ms,
        kernel.mac_ms,
        kernel.instructions,
        kernel.code_bytes // 1024,
        kernel.registers,
        kernel.waves,
        kernel.spills,
        *(hot.total, hot.mac, hot.integer, hot.conversion),
        *(hot.texture, hot.load + hot.local, hot.wait),
    )


def _text(cell: object) -> str:
    return f"{cell:.3f}" if isinstance(cell, float) else str(cell)
