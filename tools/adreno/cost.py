"""Estimates the cost of kernels on an Adreno: waves, time without stalls, problems, milliseconds.

The *floor* is issue slots x work-items / (lanes x clock), the time if no wave ever stalls on memory
or another unit. Slots include the waits that the code contains. A real frame takes longer. The
ratio of real time to floor is estimated from four published times of comma.ai's own models on an
Adreno 630, as no device was available. These models are not published, so each time is compared
with a model of ours that has the same interface and a similar architecture. Unknown model sizes,
host time and temperature are part of the spread. Every estimate has a 90 % prediction interval: it
would contain a fifth time in 9 of 10 cases if the four were a random sample (Student's t with 3
degrees of freedom, on logarithms).

`cost_of` computes the cost of an artifact, for `modeld inspect` and `modeld compile`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import prod
from statistics import mean, stdev
from typing import Any, Final

from runtime.texts import count_text, short_origin
from scheduler.debug.viz import PageTable
from scheduler.device.spec import SPECS
from tools.adreno.build import Failure, Progress, Source, build, kernel_sources
from tools.adreno.statistics import KernelCode, Slots
from tools.adreno.toolchain import MESA, Toolchain
from tools.adreno.walk import executed, slots_of_counts
from tools.errors import ArtifactMismatchError, UsageError
from tools.lib.terminal import Section

Built = KernelCode | Failure
# Quantile 0.95 of Student's t with 3 degrees of freedom.
_T: Final = 2.353
_HEADER = (
    *("nodes", "launches", "items", "floor ms", "MACs ms", "instr", "KiB", "regs", "waves"),
    *("spills", "hot loop", "mac", "int", "conv", "tex", "load", "wait"),
)


@dataclass(frozen=True, slots=True)
class Gpu:
    """Known properties of a GPU (Mesa's table of devices; lanes and clock as published)."""

    number: int
    lanes: int  # float32 multiply-adds per clock on all processors; 0 if unknown
    mhz: int  # clock in MHz; 0 if unknown
    file: int  # maximum number of vector registers, if a processor held one pair of waves
    cache_bytes: int  # bytes of one processor's instruction cache

    def waves(self, registers: int) -> int:
        """Return the number of waves per processor, for a kernel with this many registers."""
        # A processor holds waves in pairs, and `file` counts the registers of one pair.
        return min(_MOST_WAVES, self.file // max(1, registers) * 2)

    def ms(self, slots: float) -> float:
        """Return the time in ms to issue this many slots, the total of all work-items.

        0 if the lanes are unknown.
        """
        return slots / (self.lanes * self.mhz * 1e3) if self.lanes else 0.0


_MOST_WAVES: Final = 16
# Work-items that are issued together.
_WAVE: Final = 64
# Lanes and clock of the 740 have no single published source, so it has counts only.
GPU_TABLE: Final = {
    630: Gpu(630, 512, 710, 96, 64 * 128),
    660: Gpu(660, 1024, 792, 64, 127 * 128),
    740: Gpu(740, 0, 0, 96, 127 * 128),
}


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of an entry, with all of its launches of one size.

    Attributes:
        origin: its ONNX nodes.
        launches: number of launches in a run.
        items: work-items per launch.
        registers: number of registers, each a vector of four.
        waves: number of waves that a processor holds.
        spills: number of instructions that save or load spilled registers.
        beyond_cache: whether the code is larger than the instruction cache.
        slots: mean slots of a work-item, by class.
        hot: slots of the hot loop, each instruction once; None without loops.
        is_exact: whether no branch depends on values in memory.
        floor_ms, mac_ms: time of all launches without stalls, and the multiply-adds' part of it.
    """

    name: str
    origin: tuple[str, ...]
    launches: int
    items: int
    instructions: int
    registers: int
    waves: int
    spills: int
    code_bytes: int
    beyond_cache: bool
    slots: dict[str, float]
    hot: Slots | None
    is_exact: bool
    floor_ms: float
    mac_ms: float

    def plain(self) -> dict[str, Any]:
        """Return the cost as a dictionary for JSON, without zero slots."""
        slots = {name: round(count, 2) for name, count in self.slots.items() if count}
        hot = None
        if self.hot is not None:
            hot = {name: count for name, count in self.hot.plain().items() if count}
        return {
            **asdict(self),
            "origin": list(self.origin),
            "slots": slots,
            "hot": hot,
            "floor_ms": round(self.floor_ms, 5),
            "mac_ms": round(self.mac_ms, 5),
        }


@dataclass(frozen=True, slots=True)
class EntryCost:
    """An entry of an artifact on a GPU."""

    gpu: Gpu
    entry: str
    kernels: tuple[KernelCost, ...]  # kernels in the order of their first launch
    failures: tuple[Failure, ...]  # kernels that could not be built
    launches: int  # number of launches in a run, including those of failures

    @property
    def floor_ms(self) -> float:
        """Time of all kernels without stalls."""
        return sum(kernel.floor_ms for kernel in self.kernels)

    @property
    def mac_ms(self) -> float:
        """The multiply-adds' part of the floor."""
        return sum(kernel.mac_ms for kernel in self.kernels)

    @property
    def spills(self) -> int:
        """Number of kernels with spilled registers."""
        return sum(kernel.spills > 0 for kernel in self.kernels)


def entry_cost(
    manifest: Mapping[str, Any],
    entry: str,
    sources: Mapping[str, Source],
    built: Mapping[Source, Built],
    gpu: Gpu,
) -> EntryCost:
    """Return the cost of an entry, with one `KernelCost` per kernel and launch size."""
    counts: dict[tuple[str, int], int] = {}
    records: dict[tuple[str, int], Mapping[str, Any]] = {}
    launched = [manifest["kernels"][i] for i in manifest["entries"][entry]["launches"]]
    for record in launched:
        key = record["name"], prod(record["global"])
        counts[key] = counts.get(key, 0) + 1
        records.setdefault(key, record)
    kernels: list[KernelCost] = []
    failures: dict[str, Failure] = {}
    for (name, _), record in records.items():
        code = built[sources[name]]
        if isinstance(code, Failure):
            failures[name] = code
        else:
            kernels.append(_kernel_cost(record, code, counts[name, prod(record["global"])], gpu))
    return EntryCost(gpu, entry, tuple(kernels), tuple(failures.values()), len(launched))


def _kernel_cost(
    record: Mapping[str, Any], code: KernelCode, launches: int, gpu: Gpu
) -> KernelCost:
    items, group = prod(record["global"]), prod(record["local"])
    # A wave is always issued completely, even if its work-group does not fill it.
    lanes = items // group * -(-group // _WAVE) * _WAVE
    walked = executed(code, items, group)
    slots = slots_of_counts(code.code, walked.counts)
    return KernelCost(
        name=record["name"],
        origin=tuple(record["origin"]),
        launches=launches,
        items=items,
        instructions=code.instructions,
        registers=code.full,
        waves=gpu.waves(code.full),
        spills=code.spills,
        code_bytes=code.code_bytes,
        beyond_cache=code.code_bytes > gpu.cache_bytes,
        slots=slots,
        hot=code.hot_loop,
        is_exact=walked.is_exact,
        floor_ms=gpu.ms(sum(slots.values()) * lanes * launches),
        mac_ms=gpu.ms(slots["mac"] * lanes * launches),
    )


@dataclass(frozen=True, slots=True)
class Anchor:
    """A published time of a comma.ai model, and two estimates for our model that represents it.

    Attributes:
        what: description of the time.
        ms: the published time.
        analytic_ms: estimate of `tools.describe.compilation` for our model in fp16.
        slots_ms: floor of our model's kernels, computed by `tools.adreno`. tinygrad generated them,
            as it generated the kernels of the published time.
    """

    what: str
    ms: float
    analytic_ms: float
    slots_ms: float


# Counted on 2026-11-28 with example models and a model of interface dmonitoring-2025, tinygrad
# 0.14.0 and tinymesa 25.2.7.2. The first two times are limits for the fastest of 20 runs, so they
# are too long. The last two include the warp, host time and other work of the device.
ANCHORS: Final = (
    Anchor("vision alone, limit of tinygrad's CI", 17.0, 2.93, 3.85),
    Anchor("policy alone, limit of tinygrad's CI", 3.2, 0.74, 1.19),
    Anchor("modelV2.modelExecutionTime, mean, Mesa's compiler", 24.8, 4.13, 5.04),
    Anchor("the same of driverStateV2", 14.7, 1.85, 3.03),
)


@dataclass(frozen=True, slots=True)
class Factor:
    """Ratio of time to count: the geometric mean of the anchors, and its interval."""

    low: float
    mean: float
    high: float

    def text(self, counted_ms: float) -> str:
        """Return the estimate for people: "about 12 ms (7.1 to 21)"."""
        low, middle, high = (_digits(factor * counted_ms) for factor in self.bounds)
        return f"about {middle} ms ({low} to {high})"

    def plain(self, counted_ms: float) -> dict[str, float]:
        """Return the estimate for machines."""
        low, middle, high = (round(factor * counted_ms, 3) for factor in self.bounds)
        return {"ms": middle, "low_ms": low, "high_ms": high}

    @property
    def bounds(self) -> tuple[float, float, float]:
        """The three factors, smallest first."""
        return self.low, self.mean, self.high


def factor_of(ratios: Sequence[float]) -> Factor:
    """Return the factor of published times over counts, from four ratios, one per anchor."""
    logarithms = [math.log(ratio) for ratio in ratios]
    middle = mean(logarithms)
    width = _T * stdev(logarithms) * math.sqrt(1 + 1 / len(logarithms))
    return Factor(math.exp(middle - width), math.exp(middle), math.exp(middle + width))


# Factors on the two estimates. `tools/describe/compilation.py` uses the first.
ANALYTIC: Final = factor_of([anchor.ms / anchor.analytic_ms for anchor in ANCHORS])
SLOTS: Final = factor_of([anchor.ms / anchor.slots_ms for anchor in ANCHORS])


def _digits(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def cost_of(
    manifest: Mapping[str, Any],
    entry: str | None,
    toolchain: Toolchain,
    gpu: int,
    progress: Progress,
) -> EntryCost:
    """Compile the kernels of an entry and return their cost.

    `entry` defaults to the first one; `progress` is called after each kernel.

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
    """Return the cost as a dictionary for JSON; times are None if lanes or clock are unknown."""
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
    """Return the table of kernels, those with the longest floor first, and failures."""
    ordered = sorted(cost.kernels, key=lambda kernel: -kernel.floor_ms)
    rows = [_row(kernel) for kernel in ordered]
    title = f"{cost.entry} on an Adreno {cost.gpu.number}, compiled by Mesa {MESA}, not measured"
    found = [Section(title, _HEADER, rows)]
    if cost.failures:
        failed: list[tuple[object, ...]] = [(f.name, f.problem) for f in cost.failures]
        found.append(Section("not built", ("kernel", "why"), failed))
    return found


def lines(cost: EntryCost) -> Iterator[str]:
    """Yield the totals, and the assumptions of the estimate."""
    beyond = sum(kernel.beyond_cache for kernel in cost.kernels)
    yield (
        f"{count_text(cost.launches, 'launch')} of {count_text(len(cost.kernels), 'kernel')}; "
        f"with spills {cost.spills}, larger than the instruction cache {beyond}, "
        f"not built {len(cost.failures)}"
    )
    if cost.gpu.lanes:
        yield (
            f"no less than {cost.floor_ms:.2f} ms if no wave ever waits, of it multiply-adds "
            f"{cost.mac_ms:.2f}; {SLOTS.text(cost.floor_ms)}, estimated from published "
            "times (docs/adreno.md)"
        )
    if not all(kernel.is_exact for kernel in cost.kernels):
        yield "values in memory decide how long some loops run: each such loop counts once"


def page_table(cost: EntryCost) -> PageTable:
    """Return the section for the schedule's page."""
    (table, *_) = sections(cost)
    rows = tuple(tuple(_text(cell) for cell in row) for row in table.rows)
    return PageTable(table.title, " ".join(lines(cost)), table.header, rows)


def _row(kernel: KernelCost) -> tuple[object, ...]:
    hot = kernel.hot or Slots()
    # Only the classes that cost most have a column.
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
