"""Lists the loops to measure for a kernel: first tiles, then variations of the fastest.

    a CPU's tiles:     "", "v2 r8", "v1 r14", ...       then, of the best:  "v2 r8 u4", "v2 r8 i32"
    a GPU's tiles:     "", "v2", ..., "t2 g256", "l1"   then, of the best:  "v2 u8", "v2 g128"

Each text is a `Choice` as the tuned table writes it. On a GPU many choices lead to the same loops,
because `simt.choose_schedule` reduces them to divisors. The search measures equal loops once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod
from typing import Final

from scheduler.device.spec import DeviceSpec
from scheduler.device.tuned_table import HEURISTIC, MAX_BODY, MAX_TILE, Choice
from scheduler.loops import loop_schedule as local
from scheduler.loops.loop_schedule import LoopSchedule
from scheduler.loops.tile import ranked_tiles

# Number of tiles to measure, best first by the cost model.
TILES: Final = 11
WINDOW_ROWS: Final = (2, 4, 7, 8, 14, 16)
WINDOW_VECTORS: Final = (1, 2)
MAX_WINDOW_ROWS: Final = 16
# Vectors per step of a kernel without reductions.
STREAM_VECTORS: Final = (1, 2, 4, 8)
# Narrower lanes, tried on 16-lane results that have at least this many elements.
HALF_LANES: Final = 8
# Steps per reduce loop body, numbers of work-items, and numbers of row blocks.
UNROLLS: Final = (1, 2, 3, 4, 8)
ITEMS: Final = (2, 4, 8, 16, 32, 64, 128, 256)
BLOCKS: Final = (1, 2, 4, 8, 16)

# On a GPU, vectors and rows per work-item: 16 accumulator vectors take 64 registers, and their
# operands as many again.
GPU_TILES: Final = tuple((v, r) for v in (1, 2, 4) for r in (1, 2, 3, 4, 7, 8) if v * r <= 16)
# Narrower lanes let neighboring work-items read neighboring elements.
NARROW_LANES: Final = (1, 2)
NARROW_ROWS: Final = (0, 4, 8)
GPU_UNROLLS: Final = (*UNROLLS, 16)
GROUPS: Final = (16, 32, 64, 128, 256, 512, 1024)


def form_of(schedule: LoopSchedule) -> str:
    """Return the loops of a kernel as a short text; equal texts mean equal loops.

    The tuned table keeps the text of the heuristic's loops to detect that the heuristic has
    changed.
    """
    tiles = ",".join(f"{t.atom.size}/{t.unroll}x{t.lanes}" for t in schedule.tiles)
    reduced = [r for order in schedule.reduce_order.values() for r in order]
    unrolls = [schedule.reduce_unroll.get(r, 1) for r in reduced]
    blocked = schedule.blocked[1] if schedule.blocked is not None else 0
    prefetched = int(schedule.prefetch is not None)
    rest = f"i{schedule.items} b{blocked} x{len(schedule.across)} a{prefetched}"
    grouped = f" g{schedule.group}" if schedule.group > 1 else ""
    tile = schedule.local
    grouped += "" if tile is None else f" t{tile.rows}x{tile.columns}"
    grouped += "" if schedule.weights_in_images else " m1"
    return f"{tiles} u{unrolls} {rest}{grouped}".replace(", ", ",")


def tile_choices(schedule: LoopSchedule, spec: DeviceSpec) -> list[Choice]:
    """Return the tiles to try, the heuristic's first."""
    return [HEURISTIC, *(_gpu_tiles if spec.is_simt else _register_tiles)(schedule, spec)]


def variations(best: Choice, schedule: LoopSchedule, spec: DeviceSpec) -> list[Choice]:
    """Return the heuristic, the best of `tile_choices`, and variations of the latter.

    `schedule` has the loops of the best choice.
    """
    changes = _gpu_changes(best, spec) if spec.is_simt else _changes(schedule)
    varied = (_varied(best, change) for change in changes)
    return list(dict.fromkeys([HEURISTIC, best, *(c for c in varied if c is not None)]))


def _varied(choice: Choice, change: dict[str, int]) -> Choice | None:
    try:
        return replace(choice, **change)
    except ValueError:
        return None


def _register_tiles(schedule: LoopSchedule, spec: DeviceSpec) -> Iterator[Choice]:
    """Yield register tiles in the order of the cost model, then narrower lanes."""
    vector = next((t for t in schedule.tiles if t.atom is schedule.vector), None)
    if vector is None:
        return
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
    fits = ((v, r) for v, r in dict.fromkeys(tiles) if v * max(1, r) <= MAX_TILE)
    yield from (Choice(*tile) for tile in fits if tile != now)
    if schedule.reduce_order and vector.lanes == 2 * HALF_LANES <= 2 * vector.atom.size:
        yield Choice(lanes=HALF_LANES)


def _gpu_tiles(schedule: LoopSchedule, spec: DeviceSpec) -> Iterator[Choice]:
    """Yield tiles by increasing size, then tiles of work-groups, then narrower lanes."""
    apart = local.APART if schedule.local is not None else 0
    tiles = sorted(GPU_TILES, key=lambda tile: (tile[0] * tile[1], tile))
    yield from (Choice(v, r, local=apart) for v, r in tiles)
    if spec.local_bytes:
        numbers = range(local.APART + 1, local.APART + 1 + len(local.TILES))
        groups = [g for g in local.GROUPS if g <= spec.max_group]
        yield from (Choice(local=n, group=g) for g, n in product(groups, numbers))
    if spec.images is None:
        narrow = [n for n in NARROW_LANES if n < spec.lanes]
        yield from (Choice(rows=r, lanes=n, local=apart) for n in narrow for r in NARROW_ROWS)


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


def _gpu_changes(best: Choice, spec: DeviceSpec) -> Iterator[dict[str, int]]:
    tile = max(1, best.vectors) * max(1, best.rows)
    yield from ({"unroll": u} for u in GPU_UNROLLS if tile * u <= MAX_BODY)
    yield from ({"group": g} for g in GROUPS if g <= spec.max_group)
    if spec.images is not None:
        yield {"weights": 1}
