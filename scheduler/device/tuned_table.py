"""Defines choices of loops that were measured to be faster than the heuristic's, and their tables.

A `Choice` is a few plain numbers that override heuristics of `scheduler.loops.schedule`. It can
make a kernel slow but never wrong, because numbers that do not fit a kernel are reduced until they
do.

    Choice(vectors=2, rows=8, items=32)     <->     "v2 r8 i32"

A table has one choice for each kernel:

    {"format": 1, "target": "cpu", "device": "...", "driver": "...",
     "kernels": {"3f0c...": {"was": "128/2x16,32/8x1 u[4] ...", "choice": "v3 r8 u2",
                             "heuristic_us": 812.4, "us": 745.1, "tried": 23}}}

Tables of measured targets ship in `scheduler/device/tuned/`. Others are in the cache directory, one
per device and driver. An entry is ignored if the heuristic's loops have changed since they were
measured.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final

from runtime.files.cache import cache_dir, write_whole

# Letter of each field in the text form, and its largest value. `lanes` is one of _WIDTHS.
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
_WIDTHS: Final = (0, 1, 2, 4, 8, 16)  # possible lanes; 0 leaves the choice to the heuristic
# Maximum number of accumulators in a register tile, and multiply-adds in an unrolled loop: more
# only enlarge the code.
MAX_TILE: Final = 64
MAX_BODY: Final = 512
_WORD: Final = re.compile(r"([a-z])([1-9][0-9]{0,3})")


@dataclass(frozen=True, slots=True)
class Choice:
    """Loops that deviate from the heuristic's; 0 keeps the heuristic. ValueError if impossible."""

    vectors: int = 0  # vectors of the register tile, or per step of a kernel without reductions
    rows: int = 0  # rows of the register tile
    unroll: int = 0  # steps of the innermost reduce loop per body
    items: int = 0  # most work-items
    blocks: int = 0  # blocks of rows outside the loop over weights; 1 for no blocks
    lanes: int = 0  # vector width
    outside: int = 0  # 1 runs the loop over rows outside the loop over weights
    prefetch: int = 0  # 1 disables prefetching of the next weights, 2 enables it
    group: int = 0  # on GPUs, work-items per work-group
    # On GPUs, 1 computes a matrix product by independent work-items, 2 to 4 select a tile in local
    # memory, largest first.
    local: int = 0
    weights: int = 0  # 1 keeps packed weights in buffers on devices that read images

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
        """Whether all fields keep the heuristic."""
        return self == HEURISTIC


HEURISTIC: Final = Choice()


def parse_choice(text: str) -> Choice:
    """Return the choice of a text form; raise ValueError if it is invalid or out of range."""
    names = {letter: name for name, (letter, _) in _FIELDS.items()}
    found: dict[str, int] = {}
    for word in text.split():
        match = _WORD.fullmatch(word)
        if match is None or match[1] not in names or names[match[1]] in found:
            raise ValueError(f"choice {text!r}: expected words such as v2 r8 u4, found {word!r}")
        found[names[match[1]]] = int(match[2])
    return Choice(**found)


logger = logging.getLogger(__name__)

FORMAT: Final = 1  # version of the file format; others are not read
# Hexadecimal digits of a kernel's key, see `scheduler.loops.choose`.
KEY_LENGTH: Final = 24
SHIPPED: Final = Path(__file__).parent / "tuned"
# Limits on corrupt or foreign files; tables of example models are far smaller.
MAX_BYTES: Final = 8 << 20
MAX_ENTRIES: Final = 20_000
MAX_TEXT: Final = 400
MAX_NUMBER: Final = 1e9
_KEY: Final = re.compile(f"[0-9a-f]{{{KEY_LENGTH}}}")


class TableError(ValueError):
    """A file is not a valid table; the message names the location."""


@dataclass(frozen=True, slots=True)
class Entry:
    """The measurements of one kernel."""

    was: str  # the heuristic's loops, written by `variations.form_of`
    choice: Choice  # the fastest loops; HEURISTIC if those are the fastest
    heuristic_us: float  # smallest time with the heuristic, and with `choice` (us), in microseconds
    us: float
    tried: int  # number of choices measured

    def plain(self) -> dict[str, Any]:
        """Return the entry as plain data for JSON."""
        return {
            "was": self.was,
            "choice": str(self.choice),
            "heuristic_us": round(self.heuristic_us, 2),
            "us": round(self.us, 2),
            "tried": self.tried,
        }


@dataclass(frozen=True)
class TunedTable:
    """Entries by the key of a kernel's body, with the device on which they were measured."""

    target: str = ""
    device: str = ""
    driver: str = ""
    entries: Mapping[str, Entry] = field(default_factory=dict)

    @functools.cached_property
    def digest(self) -> str:
        """A digest of the choices, without the times, for the keys of caches."""
        lines = [f"{k} {e.was} {e.choice}" for k, e in sorted(self.entries.items())]
        return hashlib.sha256("\n".join(lines).encode()).hexdigest() if lines else ""

    def with_entries(self, more: Mapping[str, Entry]) -> TunedTable:
        """Return the table with more entries, which replace existing ones."""
        return TunedTable(self.target, self.device, self.driver, {**self.entries, **more})

    def text(self) -> str:
        """Return the file's text, sorted, one line per entry; equal tables have equal texts."""
        head = {"target": self.target, "device": self.device, "driver": self.driver}
        lines = [f'"format": {FORMAT}']
        lines += [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        rows = [f' "{k}": {json.dumps(self.entries[k].plain())}' for k in sorted(self.entries)]
        return "{" + ",\n ".join(lines) + ',\n "kernels": {\n' + ",\n".join(rows) + "\n}}\n"


EMPTY: Final = TunedTable()


def parse_table(text: str) -> TunedTable:
    """Return the table in a file's text; a TableError names the first mistake."""
    if len(text) > MAX_BYTES:
        raise TableError(f"expected at most {MAX_BYTES} characters")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise TableError(f"invalid JSON: {error}") from error
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise TableError(f"expected an object with format {FORMAT}")
    kernels = found.get("kernels")
    if not isinstance(kernels, dict) or len(kernels) > MAX_ENTRIES:
        raise TableError(f"kernels: expected an object of at most {MAX_ENTRIES}")
    target, device, driver = (_text(found, name) for name in ("target", "device", "driver"))
    entries = {key: _entry(key, value) for key, value in kernels.items()}
    return TunedTable(target, device, driver, entries)


def _entry(key: str, value: object) -> Entry:
    if not _KEY.fullmatch(key) or not isinstance(value, dict):
        raise TableError(f"kernel {key[:40]!r}: expected {KEY_LENGTH} hexadecimal digits: object")
    try:
        choice = parse_choice(_text(value, "choice"))
    except ValueError as error:
        raise TableError(f"kernel {key}: {error}") from error
    heuristic_us, us, tried = (_number(value, n) for n in ("heuristic_us", "us", "tried"))
    return Entry(_text(value, "was"), choice, heuristic_us, us, int(tried))


def _number(fields: Mapping[str, object], name: str) -> float:
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < MAX_NUMBER:
        raise TableError(f"{name}: expected a number from 0 to {MAX_NUMBER:g}, found {value!r:.40}")
    return float(value)


def _text(fields: Mapping[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str) or len(value) > MAX_TEXT:
        raise TableError(f"{name}: expected a text of at most {MAX_TEXT} characters")
    return value


# --- Files ------------------------------------------------------------------------------------


def read_table(path: Path) -> TunedTable:
    """Return the table in a file; if it is unusable, log a warning and return an empty one."""
    try:
        with path.open(encoding="utf-8") as file:
            return parse_table(file.read(MAX_BYTES + 1))
    except FileNotFoundError:
        return EMPTY
    except (OSError, UnicodeDecodeError, TableError) as error:
        logger.warning("%s: ignored, not a valid table of measured loops: %s", path, error)
        return EMPTY


def write_table(path: Path, table: TunedTable) -> None:
    """Write a table atomically, in a private directory created if missing. Raises OSError."""
    write_whole(path, table.text().encode())


def table_path(target: str, device: str, driver: str) -> Path:
    """Return the path of a device's table."""
    digest = hashlib.sha256(f"{device}\n{driver}".encode()).hexdigest()[:12]
    return cache_dir() / "tuned" / f"{target}-{digest}.json"


@functools.lru_cache(maxsize=8)
def shipped_table(target: str) -> TunedTable:
    """Return the table that ships with the package for a target; an empty one if none does."""
    found = read_table(SHIPPED / f"{target}.json")
    return found if found.target in ("", target) else EMPTY


def table_for(target: str, device: str, driver: str) -> TunedTable:
    """Return all entries for a device: the shipped ones, overridden by its own."""
    whole = TunedTable(target, device, driver, shipped_table(target).entries)
    return whole.with_entries(own_table(target, device, driver).entries)


def own_table(target: str, device: str, driver: str) -> TunedTable:
    """Return the entries measured on a device; none if the file belongs to another device."""
    own = read_table(table_path(target, device, driver))
    same = (own.target, own.device, own.driver) == (target, device, driver)
    return own if same else TunedTable(target, device, driver, {})
