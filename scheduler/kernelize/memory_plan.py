"""Give every intermediate an offset in one arena: those alive together do not overlap.

A value lives from the launch that writes it to the last launch that reads it. Largest first, each
takes the lowest gap that fits among those whose lives overlap its own. Offsets are multiples of
ALIGNMENT.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# Bytes; sub-buffers start at the device's base alignment: 128 on CPUs, up to 256 on known GPUs.
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An intermediate: bytes, first and last launch (inclusive) that touch it."""

    size: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets in bytes, one per lifetime, the arena size they need, and the sum without reuse."""

    offsets: tuple[int, ...]
    arena_size: int
    unplanned_size: int


def aligned(size: int) -> int:
    """Return a size rounded up to the alignment; nothing is smaller than one unit."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Return a plan in which values with overlapping lives have disjoint bytes."""
    order = sorted(range(len(lifetimes)), key=lambda i: (-lifetimes[i].size, lifetimes[i].first, i))
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for i in order:
        mine, need = lifetimes[i], aligned(lifetimes[i].size)
        taken = sorted(
            (offsets[j], offsets[j] + aligned(lifetimes[j].size))
            for j in placed
            if lifetimes[j].first <= mine.last and mine.first <= lifetimes[j].last
        )
        at = 0
        for start, end in taken:
            if start - at >= need:
                break
            at = max(at, end)
        offsets[i] = at
        placed.append(i)
    sizes = [aligned(lt.size) for lt in lifetimes]
    arena = max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)
    return MemoryPlan(tuple(offsets), arena, sum(sizes))
