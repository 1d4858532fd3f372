"""Gives every intermediate an offset in one arena; values alive at the same time do not overlap.

A value is alive from the launch that writes it to the last one that reads it. Values are placed one
by one in the lowest gap that fits. Several placement orders are tried; the smallest arena wins.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

# In bytes. Sub-buffers start at the device's base alignment: 128 on CPUs, up to 256 on known GPUs.
ALIGNMENT = 256


@dataclass(frozen=True, slots=True)
class Lifetime:
    """An intermediate: size in bytes, and first and last launch (inclusive) that touch it."""

    size: int
    first: int
    last: int

    @property
    def launches(self) -> int:
        """Number of launches from the first to the last."""
        return self.last - self.first + 1


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Offsets in bytes, one per lifetime, and the arena size in bytes."""

    offsets: tuple[int, ...]
    arena_size: int


# Sort keys of the placement orders, largest first: by size, by length of life, by their product, by
# start.
SEQUENCES: tuple[Callable[[Lifetime], tuple[int, int]], ...] = (
    lambda life: (life.size, life.launches),
    lambda life: (life.launches, life.size),
    lambda life: (life.size * life.launches, life.size),
    lambda life: (-life.first, life.size),
)


def aligned(size: int) -> int:
    """Return a size rounded up to the alignment, at least one unit."""
    return max(1, -(-size // ALIGNMENT)) * ALIGNMENT


def live_bytes(lifetimes: Sequence[Lifetime]) -> int:
    """Return the most bytes alive during one launch, a lower bound for any plan."""
    changes: dict[int, int] = {}
    for life in lifetimes:
        changes[life.first] = changes.get(life.first, 0) + aligned(life.size)
        changes[life.last + 1] = changes.get(life.last + 1, 0) - aligned(life.size)
    live = most = 0
    for launch in sorted(changes):
        live += changes[launch]
        most = max(most, live)
    return most


def plan_memory(lifetimes: Sequence[Lifetime]) -> MemoryPlan:
    """Return a plan in which values with overlapping lives have disjoint bytes."""
    sizes = [aligned(life.size) for life in lifetimes]
    together = _alive_together(lifetimes)
    least = live_bytes(lifetimes)
    best: tuple[int, list[int]] | None = None
    for key in SEQUENCES:
        offsets = _place(lifetimes, sizes, together, key)
        arena = max((o + s for o, s in zip(offsets, sizes, strict=True)), default=0)
        if best is None or arena < best[0]:
            best = arena, offsets
        if best[0] == least:
            break
    assert best is not None  # SEQUENCES is not empty
    return MemoryPlan(tuple(best[1]), best[0])


def _alive_together(lifetimes: Sequence[Lifetime]) -> list[list[int]]:
    """Return, for each lifetime, those that overlap it, by one sweep over the launches."""
    together: list[list[int]] = [[] for _ in lifetimes]
    alive: set[int] = set()
    ends: list[tuple[int, int]] = []
    for i in sorted(range(len(lifetimes)), key=lambda i: (lifetimes[i].first, i)):
        while ends and ends[0][0] < lifetimes[i].first:
            alive.remove(heapq.heappop(ends)[1])
        for j in alive:
            together[i].append(j)
            together[j].append(i)
        alive.add(i)
        heapq.heappush(ends, (lifetimes[i].last, i))
    return together


def _place(
    lifetimes: Sequence[Lifetime],
    sizes: Sequence[int],
    together: Sequence[Sequence[int]],
    key: Callable[[Lifetime], tuple[int, int]],
) -> list[int]:
    """Return first-fit offsets, placing values in descending order of their keys."""

    def rank(i: int) -> tuple[int, int, int, int]:
        first, second = key(lifetimes[i])
        return -first, -second, lifetimes[i].first, i

    offsets = [-1] * len(lifetimes)
    for i in sorted(range(len(lifetimes)), key=rank):
        placed = sorted((offsets[j], offsets[j] + sizes[j]) for j in together[i] if offsets[j] >= 0)
        at = 0
        for start, end in placed:
            if start - at >= sizes[i]:
                break
            at = max(at, end)
        offsets[i] = at
    return offsets
