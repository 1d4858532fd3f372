"""List the loops that a search measures for a kernel: register tiles, then changes of the best."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Final

from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, MAX_TILE, Choice
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.tile import ranked_tiles

# The best by the cost model are measured.
TILES: Final = 11
WINDOW_ROWS: Final = (2, 4, 7, 8, 14, 16)
WINDOW_VECTORS: Final = (1, 2)
MAX_WINDOW_ROWS: Final = 16
# Vectors of one step of a kernel that streams.
STREAM_VECTORS: Final = (1, 2, 4, 8)
# Of results of at least as many elements half a vector of 16 lanes is tried.
HALF_LANES: Final = 8
# Steps of a reduce loop's body, work-items, and blocks of rows.
UNROLLS: Final = (1, 2, 3, 4, 8)
ITEMS: Final = (2, 4, 8, 16, 32, 64, 128, 256)
BLOCKS: Final = (1, 2, 4, 8, 16)


def form_of(schedule: LoopSchedule) -> str:
    """Return the loops of a kernel as a short text: equal texts are equal loops.

    A table of tuned loops remembers the heuristic's text, to notice when it has changed.
    """
    tiles = ",".join(f"{t.atom.size}/{t.unroll}x{t.lanes}" for t in schedule.tiles)
    reduced = [r for order in schedule.reduce_order.values() for r in order]
    unrolls = [schedule.reduce_unroll.get(r, 1) for r in reduced]
    blocked = schedule.blocked[1] if schedule.blocked is not None else 0
    prefetched = int(schedule.prefetch is not None)
    rest = f"i{schedule.items} b{blocked} x{len(schedule.across)} a{prefetched}"
    grouped = f" g{schedule.group}" if schedule.group > 1 else ""
    local = schedule.local
    grouped += "" if local is None else f" t{local.rows}x{local.columns}"
    grouped += "" if schedule.weights_in_images else " m1"
    return f"{tiles} u{unrolls} {rest}{grouped}".replace(", ", ",")


def tile_choices(schedule: LoopSchedule, spec: DeviceSpec) -> list[Choice]:
    """Return register tiles to try: the heuristic, then others in the order of the cost model."""
    found = [HEURISTIC]
    vector = next((t for t in schedule.tiles if t.atom is schedule.vector), None)
    if vector is None:
        return found
    vectors = -(-vector.atom.size // vector.lanes)
    row = next((t for t in schedule.tiles if t.atom is schedule.row), None)
    now = (vector.unroll, row.unroll if row is not None else 0)
    if not schedule.reduce_order:
        tiles = [(v, 0) for v in STREAM_VECTORS if v <= vectors]
    elif schedule.contracts:
        rows = row.atom.size if row is not None else 1
        steps = max(prod(r.size for r in order) for order in schedule.reduce_order.values())
        ranked = ranked_tiles(vectors, rows, steps, vector.lanes, spec)[: TILES + 1]
        tiles = [(v, r if row is not None else 0) for _, v, r in ranked]
    else:
        rows = row.atom.size if row is not None else 0
        fitting = [r for r in (*WINDOW_ROWS, min(rows, MAX_WINDOW_ROWS)) if r <= rows] or [0]
        tiles = [(v, r) for v in WINDOW_VECTORS if v <= vectors for r in dict.fromkeys(fitting)]
    found += [Choice(v, r) for v, r in tiles if (v, r) != now and v * max(1, r) <= MAX_TILE]
    if schedule.reduce_order and vector.lanes == 2 * HALF_LANES <= 2 * vector.atom.size:
        found.append(Choice(lanes=HALF_LANES))
    return list(dict.fromkeys(found))


def variations(best: Choice, schedule: LoopSchedule) -> list[Choice]:
    """Return the heuristic, the best of `tile_choices`, and the latter in other loops."""
    varied = (_varied(best, change) for change in _changes(schedule))
    return list(dict.fromkeys([HEURISTIC, best, *(c for c in varied if c is not None)]))


def _varied(choice: Choice, change: dict[str, int]) -> Choice | None:
    try:
        return replace(choice, **change)
    except ValueError:
        return None


def _changes(schedule: LoopSchedule) -> Iterator[dict[str, int]]:
    unrolls = [
        (order[-1].size, schedule.reduce_unroll[order[-1]])
        for node, order in schedule.reduce_order.items()
        if order and order[-1] is not schedule.across.get(node)
    ]
    for u in UNROLLS:
        if any(size % u == 0 and now != u and size > 1 for size, now in unrolls):
            yield {"unroll": u}
    for items in ITEMS:
        if items <= schedule.steps and 2 * items > schedule.items / 4 and items != schedule.items:
            yield {"items": items}
    outer = schedule.tiles[: len(schedule.tiles) - schedule.inner]
    if sum(t.outer > 1 for t in outer) > 1 and schedule.reduce_order:
        yield {"outside": 1}
        for blocks in BLOCKS:
            yield {"blocks": blocks}
    if schedule.contracts:
        yield {"prefetch": 1 if schedule.prefetch is not None else 2}
