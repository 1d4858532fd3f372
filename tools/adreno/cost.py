"""The cost of a kernel on an Adreno: waves, time without stalls, and problems.

*Floor*: issue slots x work-items / (lanes x clock), as if no wave ever waited. A frame takes more,
and `tools.adreno.adreno_time` has by how much.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import prod
from typing import Any, Final

from tools.adreno.build import Failure, Source
from tools.adreno.statistics import KernelCode, Slots
from tools.adreno.walk import executed, slots_of_counts

Built = KernelCode | Failure


@dataclass(frozen=True, slots=True)
class Gpu:
    """The known properties of a GPU (Mesa's table of devices; lanes and clock as published).

    Attributes:
        lanes: multiply-adds of float32 that all processors issue in a clock; 0 if not known.
        file: vectors of registers for the work-items of a wave.
        cache_bytes: of the instruction cache of a processor.
    """

    number: int
    lanes: int
    mhz: int
    file: int
    cache_bytes: int

    def waves(self, registers: int) -> int:
        """Return how many waves a processor holds of a kernel that takes so many registers."""
        return min(_MOST_WAVES, self.file // max(1, registers) * 2)

    def ms(self, slots: float) -> float:
        """Return how long issuing slots takes, of all work-items together, in milliseconds."""
        return slots / (self.lanes * self.mhz * 1e3) if self.lanes else 0.0


_MOST_WAVES: Final = 16
# Work-items that are issued together.
_WAVE: Final = 64
# Of the 740, neither lanes nor clock are published in one place, so it has counts only.
GPU_TABLE: Final = {
    630: Gpu(630, 512, 710, 96, 64 * 128),
    660: Gpu(660, 1024, 792, 64, 127 * 128),
    740: Gpu(740, 0, 0, 96, 127 * 128),
}


@dataclass(frozen=True, slots=True)
class KernelCost:
    """One kernel of an entry, with all of its launches.

    Attributes:
        origin: its ONNX nodes.
        items: work-items of one launch.
        registers: vectors of four.
        waves: that a processor holds.
        spills: instructions that save or load what did not fit into registers.
        beyond_cache: whether the code is larger than the instruction cache.
        slots: that a work-item takes, in the mean, by class.
        hot: slots of the hot loop, each instruction once; None without loops.
        is_exact: whether values in memory decide nothing.
        floor_ms, mac_ms: all launches without stalls, and of it the multiply-adds.
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
        """Return it as a dictionary for JSON, without what is zero among the slots."""
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
    """An entry of an artifact on a GPU; kernels are in the order of their first launch.

    `failures` are kernels that were not built; `launches` of one run include theirs.
    """

    gpu: Gpu
    entry: str
    kernels: tuple[KernelCost, ...]
    failures: tuple[Failure, ...]
    launches: int

    @property
    def floor_ms(self) -> float:
        """All kernels without stalls."""
        return sum(kernel.floor_ms for kernel in self.kernels)

    @property
    def mac_ms(self) -> float:
        """Of it the multiply-adds."""
        return sum(kernel.mac_ms for kernel in self.kernels)

    @property
    def spills(self) -> int:
        """Kernels with spilled registers."""
        return sum(kernel.spills > 0 for kernel in self.kernels)


def entry_cost(
    manifest: Mapping[str, Any],
    entry: str,
    sources: Mapping[str, Source],
    built: Mapping[Source, Built],
    gpu: Gpu,
) -> EntryCost:
    """Return what an entry costs."""
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
    # A wave is issued whole, also where its work-group does not fill it.
    lanes = items // group * -(-group // _WAVE) * _WAVE
    way = executed(code, items, group)
    slots = slots_of_counts(code.code, way.counts)
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
        is_exact=way.is_exact,
        floor_ms=gpu.ms(sum(slots.values()) * lanes * launches),
        mac_ms=gpu.ms(slots["mac"] * lanes * launches),
    )
