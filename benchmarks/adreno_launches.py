"""Launches of kernels whose code is known, and what they add up to: ours and a peer's alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import ClassVar, Final

from tools.adreno.cost import GPU_TABLE
from tools.adreno.statistics import SLOT_NAMES, KernelCode
from tools.adreno.walk import Executed, Ids, executed_waves, slots_of_counts

GPU: Final = GPU_TABLE[630]
# Neighbours that run together, and which of them are followed; waves that are followed.
WAVE: Final = 64
FOLLOWED: Final = (0, 31, 63)
WAVES: Final = 12
FEW_WAVES: Final = 12


@dataclass(frozen=True)
class Launch:
    """One launch.

    Attributes:
        name: of its kernel.
        code: of its kernel.
        groups, group: work-groups, and work-items of each, along three axes.
        origin: ONNX nodes; of a peer none.
    """

    name: str
    code: KernelCode
    groups: Ids
    group: Ids
    origin: tuple[str, ...] = ()

    @property
    def items(self) -> int:
        """Work-items."""
        return prod(self.groups) * prod(self.group)

    @cached_property
    def executed(self) -> Executed:
        """How often its instructions are issued for a wave, in the mean of some."""
        last = self.items - 1
        starts = sorted({(2 * k + 1) * self.items // (2 * WAVES) // WAVE for k in range(WAVES)})
        waves = [
            [self._ids(min(start * WAVE + place, last)) for place in FOLLOWED] for start in starts
        ]
        return executed_waves(self.code, waves)

    @cached_property
    def slots(self) -> dict[str, float]:
        """Issue slots of a work-item, by class."""
        return slots_of_counts(self.code.code, self.executed.counts)

    @property
    def floor_ms(self) -> float:
        """Milliseconds that issuing its slots takes, if no wave ever waits."""
        return GPU.ms(sum(self.slots.values()) * self.items)

    @property
    def waves(self) -> int:
        """Waves that a processor holds of it."""
        return GPU.waves(self.registers)

    @property
    def registers(self) -> int:
        """Vectors of registers; halves count where they have a file of their own."""
        return self.code.full + (self.code.half + 1) // 2

    def _ids(self, number: int) -> tuple[Ids, Ids]:
        """Return where the work-item of a number is; neighbours lie along the first axis."""
        within, number = number % prod(self.group), number // prod(self.group)
        return _place(number, self.groups), _place(within, self.group)


def _place(number: int, sizes: Ids) -> Ids:
    x, rest = number % sizes[0], number // sizes[0]
    return x, rest % sizes[1], rest // sizes[1]


@dataclass(frozen=True, slots=True)
class Totals:
    """A frame's launches together.

    Attributes:
        launches: how many.
        slots_ms: milliseconds by class of slot.
        texture, loads: reads of images, and of buffers, by all work-items.
        few_waves: launches of kernels that leave a processor fewer than `FEW_WAVES` waves.
        spills: kernels that spill registers.
    """

    # Columns of the comparison: title, and how it is printed; fewer is better in all of them.
    COLUMNS: ClassVar[Mapping[str, tuple[str, str]]] = {
        "launches": ("launches", ".0f"),
        "floor": ("issue floor, ms", ".3f"),
        "texture": ("texture reads, 10^6", ".2f"),
        "loads": ("buffer loads, 10^6", ".2f"),
        "mac": ("of the floor: multiply-adds", ".3f"),
        "conversion": ("conversions", ".3f"),
        "integer": ("integers", ".3f"),
        "move": ("moves", ".3f"),
        "wait": ("waits", ".3f"),
        "few_waves": (f"fewer than {FEW_WAVES} waves", ".0f"),
        "spills": ("kernels that spill", ".0f"),
    }

    launches: int
    slots_ms: dict[str, float]
    texture: float
    loads: float
    few_waves: int
    spills: int

    def column(self, name: str) -> float:
        """Return the value of a column."""
        if name == "floor":
            return sum(self.slots_ms.values())
        if name in ("texture", "loads"):
            return float(getattr(self, name)) / 1e6
        found: float = getattr(self, name) if name in self.__slots__ else self.slots_ms[name]
        return found


def totals(launches: Sequence[Launch]) -> Totals:
    """Add up the launches of a frame."""
    slots = dict.fromkeys(SLOT_NAMES, 0.0)
    for launch in launches:
        for name, count in launch.slots.items():
            slots[name] += count * launch.items
    return Totals(
        launches=len(launches),
        slots_ms={name: GPU.ms(count) for name, count in slots.items()},
        texture=slots["texture"],
        loads=slots["load"],
        few_waves=sum(launch.waves < FEW_WAVES for launch in launches),
        spills=len({launch.code.name for launch in launches if launch.code.spills}),
    )
