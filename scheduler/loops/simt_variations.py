"""List the loops that a search measures for a kernel of a GPU: tiles, then changes of the best.

    tiles:       "", "v2", "r2", "v2 r4", ..., "t2 g256", ..., "l1"
    then, of the best of them ("r4"):   "r4 u8", "r4 g128", "r4 m1", ...

Many of these are the same loops for a kernel, as `simt.choose_schedule` cuts them; the search tries
equal ones once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Final

from scheduler.device.choice import HEURISTIC, MAX_BODY, Choice
from scheduler.device.spec import DeviceSpec
from scheduler.loops import loop_schedule
from scheduler.loops.loop_schedule import LoopSchedule

# Vectors and rows of a work-item: 16 vectors of accumulators take 64 registers, and operands as
# many again.
VECTORS: Final = (1, 2, 4)
ROWS: Final = (1, 2, 3, 4, 7, 8)
MAX_TILE: Final = 16
# Narrower lanes let neighbours read neighbouring elements.
LANES: Final = (1, 2)
NARROW_ROWS: Final = (4, 8)
UNROLLS: Final = (1, 2, 3, 4, 8, 16)
GROUPS: Final = (16, 32, 64, 128, 256, 512, 1024)


def tile_choices(schedule: LoopSchedule, spec: DeviceSpec) -> list[Choice]:
    """Return tiles to try: the heuristic's, then larger and larger ones, then work-groups'."""
    apart = loop_schedule.APART if schedule.local is not None else 0
    tiles = sorted(product(VECTORS, ROWS), key=lambda tile: (tile[0] * tile[1], tile))
    found = [HEURISTIC, *(Choice(v, r, local=apart) for v, r in tiles if v * r <= MAX_TILE)]
    if spec.local_bytes:
        numbers = range(loop_schedule.APART + 1, loop_schedule.APART + 1 + len(loop_schedule.TILES))
        groups = [g for g in loop_schedule.GROUPS if g <= spec.max_group]
        found += [Choice(local=n, group=g) for g, n in product(groups, numbers)]
    if spec.images is None:
        narrow = [n for n in LANES if n < spec.lanes]
        found += [Choice(rows=r, lanes=n, local=apart) for n in narrow for r in (0, *NARROW_ROWS)]
    return found


def variations(best: Choice, spec: DeviceSpec) -> list[Choice]:
    """Return the heuristic, the best choice so far, and the latter with other loops around it."""
    changed = (replace(best, **change) for change in _changes(best, spec))
    return list(dict.fromkeys([HEURISTIC, best, *changed]))


def _changes(best: Choice, spec: DeviceSpec) -> Iterator[dict[str, int]]:
    tile = max(1, best.vectors) * max(1, best.rows)
    yield from ({"unroll": u} for u in UNROLLS if tile * u <= MAX_BODY)
    yield from ({"group": g} for g in GROUPS if g <= spec.max_group)
    if spec.images is not None:
        yield {"weights": 1}
