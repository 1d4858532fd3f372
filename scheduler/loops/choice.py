"""What may be chosen otherwise than by the heuristics of `schedule.py`, as plain numbers.

    Choice(vectors=2, rows=8, items=32)     <->     "v2 r8 i32"

A field that is 0 leaves the heuristic as it is; the empty choice, "", is the heuristic. A choice
can make a kernel slow and never wrong: what does not fit a kernel is cut to what does, and the last
block of a range overlaps the one before, as with any tile.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from math import prod
from typing import TYPE_CHECKING, Final

from scheduler.loops.tile import ranked_tiles

if TYPE_CHECKING:
    from scheduler.loops.schedule import Schedule

# Letter of each field in the text form, and its largest value. `lanes` is one of the vector widths.
_FIELDS: Final = {
    "vectors": ("v", 16),
    "rows": ("r", 64),
    "unroll": ("u", 64),
    "items": ("i", 4096),
    "blocks": ("b", 64),
    "lanes": ("l", 16),
    "outside": ("o", 1),
    "ahead": ("a", 2),
}
_WIDTHS: Final = (0, 4, 8, 16)
# Accumulators of a register tile, and multiply-adds of an unrolled loop: beyond, code only grows.
MAX_TILE: Final = 64
MAX_BODY: Final = 512
# Tiles that are measured, the best by the cost model; and rows and vectors of a window's tile.
TILES: Final = 11
WINDOW_ROWS: Final = (2, 4, 7, 8, 14, 16)
WINDOW_VECTORS: Final = (1, 2)
# Vectors of one step of a kernel that streams.
STREAM_VECTORS: Final = (1, 2, 4, 8)
_WORD: Final = re.compile(r"([a-z])([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run the loops of a kernel; 0 is what the heuristic takes.

    Attributes:
        vectors: vectors of the register tile; of a step of a kernel that streams.
        rows: its rows.
        unroll: steps of the innermost reduce loop that its body holds.
        items: work-items at most.
        blocks: parts into which rows are cut outside the loop over weights; 1 for none.
        lanes: vector width.
        outside: 1 runs rows outside weights.
        ahead: 1 leaves the next weights where they are, 2 fetches them early.

    Raises:
        ValueError: a field is out of range, or the code would be too large.
    """

    vectors: int = 0
    rows: int = 0
    unroll: int = 0
    items: int = 0
    blocks: int = 0
    lanes: int = 0
    outside: int = 0
    ahead: int = 0

    def __post_init__(self) -> None:
        for name, (_, most) in _FIELDS.items():
            value = getattr(self, name)
            if not 0 <= value <= most:
                raise ValueError(f"{name}: expected 0 to {most}, found {value}")
        if self.lanes not in _WIDTHS:
            raise ValueError(f"lanes: expected one of {_WIDTHS}, found {self.lanes}")
        tile = max(1, self.vectors) * max(1, self.rows)
        if tile > MAX_TILE or tile * max(1, self.unroll) > MAX_BODY:
            raise ValueError(f"{self}: a tile of {tile}, expected at most {MAX_TILE}")

    def __str__(self) -> str:
        shown = [(_FIELDS[f.name][0], getattr(self, f.name)) for f in fields(self)]
        return " ".join(f"{letter}{value}" for letter, value in shown if value)

    @property
    def is_heuristic(self) -> bool:
        """Whether nothing is chosen otherwise."""
        return self == HEURISTIC


HEURISTIC: Final = Choice()


def parse_choice(text: str) -> Choice:
    """Return the choice of a text form.

    Raises:
        ValueError: it is none, or out of range.
    """
    names = {letter: name for name, (letter, _) in _FIELDS.items()}
    found: dict[str, int] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None or match[1] not in names or names[match[1]] in found:
            raise ValueError(f"choice {text!r}: expected words such as v2 r8 u4, found {word!r}")
        found[names[match[1]]] = int(match[2])
    return Choice(**found)


def form_of(schedule: Schedule) -> str:
    """Return the loops of a kernel as a short text: equal texts are equal loops.

    A table remembers it of the heuristic's loops, so that it can tell when these have changed.
    """
    tiles = ",".join(f"{t.atom.size}/{t.unroll}x{t.lanes}" for t in schedule.tiles)
    reduced = [r for order in schedule.reduce_order.values() for r in order]
    unrolls = [schedule.reduce_unroll.get(r, 1) for r in reduced]
    blocked = schedule.blocked[1] if schedule.blocked is not None else 0
    ahead = int(schedule.ahead is not None)
    rest = f"i{schedule.items} b{blocked} x{len(schedule.across)} a{ahead}"
    return f"{tiles} u{unrolls} {rest}".replace(", ", ",")


def tile_choices(schedule: Schedule) -> list[Choice]:
    """Return register tiles to try, the heuristic first; the others by what the model says of them.

    Args:
        schedule: the heuristic's.
    """
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
        ranked = ranked_tiles(vectors, rows, steps, vector.lanes)[: TILES + 1]
        tiles = [(v, r if row is not None else 0) for _, v, r in ranked]
    else:
        rows = row.atom.size if row is not None else 0
        fitting = [r for r in (*WINDOW_ROWS, min(rows, 16)) if r <= rows] or [0]
        tiles = [(v, r) for v in WINDOW_VECTORS if v <= vectors for r in dict.fromkeys(fitting)]
    found += [Choice(v, r) for v, r in tiles if (v, r) != now and v * max(1, r) <= MAX_TILE]
    if schedule.reduce_order and vector.lanes == 16 and vector.atom.size >= 8:
        found.append(Choice(lanes=8))
    return list(dict.fromkeys(found))


def variations(best: Choice, schedule: Schedule) -> list[Choice]:
    """Return the heuristic, the best choice so far, and the latter with other loops around it.

    Args:
        best: from those of `tile_choices`.
        schedule: its loops.
    """
    varied = (_varied(best, change) for change in _changes(schedule))
    return list(dict.fromkeys([HEURISTIC, best, *(c for c in varied if c is not None)]))


def _varied(choice: Choice, change: dict[str, int]) -> Choice | None:
    try:
        return replace(choice, **change)
    except ValueError:
        return None


def _changes(schedule: Schedule) -> Iterator[dict[str, int]]:
    unrolls = [
        (order[-1].size, schedule.reduce_unroll[order[-1]])
        for node, order in schedule.reduce_order.items()
        if order and order[-1] is not schedule.across.get(node)
    ]
    for u in (1, 2, 3, 4, 8):
        if any(size % u == 0 and now != u and size > 1 for size, now in unrolls):
            yield {"unroll": u}
    for items in (2, 4, 8, 16, 32, 64, 128, 256):
        if items <= schedule.steps and 2 * items > schedule.items / 4 and items != schedule.items:
            yield {"items": items}
    outer = schedule.tiles[: len(schedule.tiles) - schedule.inner]
    if sum(t.outer > 1 for t in outer) > 1 and schedule.reduce_order:
        yield {"outside": 1}
        for blocks in (1, 2, 4, 8, 16):
            yield {"blocks": blocks}
    if schedule.contracts:
        yield {"ahead": 1 if schedule.ahead is not None else 2}
