"""A Choice overrides heuristics of `scheduler.loops.schedule` by a few plain numbers.

    Choice(vectors=2, rows=8, items=32)     <->     "v2 r8 i32"

A field that is 0 leaves the heuristic as it is. A choice can make a kernel slow and never wrong:
what does not fit a kernel is cut to what does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Final

# Letter of each field in the text form, and its largest value. `lanes` is one of the vector widths.
_FIELDS: Final = {
    "vectors": ("v", 16),
    "rows": ("r", 64),
    "unroll": ("u", 64),
    "items": ("i", 4096),
    "blocks": ("b", 64),
    "lanes": ("l", 16),
    "outside": ("o", 1),
    "prefetch": ("a", 2),
    "group": ("g", 1024),
    "local": ("t", 4),
    "weights": ("m", 1),
}
_WIDTHS: Final = (0, 1, 2, 4, 8, 16)  # lanes that may be chosen; 0 leaves them to the heuristic
# Accumulators of a register tile, and multiply-adds of an unrolled loop: beyond, code only grows.
MAX_TILE: Final = 64
MAX_BODY: Final = 512
_WORD: Final = re.compile(r"([a-z])([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class Choice:
    """One way to run loops; 0 leaves the heuristic. Raises ValueError for impossible fields."""

    vectors: int = 0  # vectors of the register tile; of a step of a kernel that streams
    rows: int = 0  # its rows
    unroll: int = 0  # steps of the innermost reduce loop that its body holds
    items: int = 0  # work-items at most
    blocks: int = 0  # parts into which rows are cut outside the loop over weights; 1 for none
    lanes: int = 0  # vector width
    outside: int = 0  # 1 runs rows outside weights
    prefetch: int = 0  # 1 leaves the next weights where they are, 2 fetches them early
    group: int = 0  # work-items of a work-group, on GPUs
    # 1 keeps work-items of a matrix product apart, 2 to 4 are the tiles in local memory from the
    # largest on, on GPUs.
    local: int = 0
    weights: int = 0  # 1 leaves packed weights in buffers where the device reads images

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
    """Return the choice of a text form; raise ValueError if it is none, or out of range."""
    names = {letter: name for name, (letter, _) in _FIELDS.items()}
    found: dict[str, int] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None or match[1] not in names or names[match[1]] in found:
            raise ValueError(f"choice {text!r}: expected words such as v2 r8 u4, found {word!r}")
        found[names[match[1]]] = int(match[2])
    return Choice(**found)
