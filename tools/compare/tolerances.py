"""Tolerances of fields: a reviewed table, and what a user adds to it.

The table of the package is ``tolerances.toml`` beside this file; its head says how to read it.
Called by ``tools.compare.compare`` and by what stores references in steps of a tolerance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.errors import UsageError
from tools.lib.given_data import GivenText

TABLE_PATH = Path(__file__).with_name("tolerances.toml")
MAX_BYTES = 1 << 20
_KEYS = frozenset({"fields", "absolute", "relative", "ignore", "reason"})


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What is allowed of one field."""

    absolute: float = 0.0  # in units of the field
    relative: float = 0.0  # as a share of the larger magnitude
    ignore: bool = False  # not compared at all
    reason: str = ""  # why

    @property
    def text(self) -> str:
        """The tolerance for people: ``abs 0.0001, rel 1e-05``, ``exact``."""
        parts = [
            f"{name} {value:g}"
            for name, value in (("abs", self.absolute), ("rel", self.relative))
            if value
        ]
        return ", ".join(parts) or "exact"


EXACT = Tolerance(reason="every bit is compared")


@dataclass(frozen=True, slots=True)
class _Row:
    patterns: tuple[re.Pattern[str], ...]
    tolerance: Tolerance


class Tolerances:
    """A table: for each field the first row that names it counts.

    `rows`: patterns and what they allow, in order. `bit_exact`: nothing but what is ignored may
    differ by a single bit.
    """

    def __init__(
        self, rows: Sequence[tuple[Sequence[str], Tolerance]], *, bit_exact: bool = False
    ) -> None:
        self._rows = [
            _Row(tuple(_compiled(pattern) for pattern in patterns), tolerance)
            for patterns, tolerance in rows
        ]
        self.bit_exact = bit_exact

    def of(self, service: str, field: str) -> Tolerance:
        """Return what is allowed; what no row names must be equal.

        `service`: e.g. ``modelV2``. `field`: ``laneLines[].y``; of the Event itself with a dot:
        ``.valid``.
        """
        name = f"{service}.{field}"
        for row in self._rows:
            if any(pattern.fullmatch(name) for pattern in row.patterns):
                exact = self.bit_exact and not row.tolerance.ignore
                return EXACT if exact else row.tolerance
        return EXACT


def read_tolerances(
    override: Path | None = None, ignore: Sequence[str] = (), *, bit_exact: bool = False
) -> Tolerances:
    """Return the table of the package behind what a user adds.

    `override`: a file of the same form, whose rows come first. `ignore`: patterns of fields that
    are not compared; without a service they name that field of every service. `bit_exact`: as in
    `Tolerances`.

    Raises:
        UsageError: the file cannot be read or is no such table.
    """
    ignored = [
        pattern
        for text in ignore
        for pattern in ((text, f"*.{text}") if not text.startswith("*") else (text,))
    ]
    rows = [(ignored, Tolerance(ignore=True, reason="asked for"))] if ignored else []
    paths = [override] if override is not None else []
    for path in (*paths, TABLE_PATH):
        rows += _read_rows(path)
    return Tolerances(rows, bit_exact=bit_exact)


def _read_rows(path: Path) -> list[tuple[list[str], Tolerance]]:
    content = GivenText(path, UsageError, MAX_BYTES, advice=f"see {TABLE_PATH.name}").toml()
    rows = content.get("row")
    if not isinstance(rows, list) or set(content) != {"row"}:
        raise UsageError(
            f"{path}: expected rows [[row]] and nothing else, found {', '.join(content) or 'none'}"
            f"; see {TABLE_PATH.name}"
        )
    return [_read_row(f"{path}: row {number}", row) for number, row in enumerate(rows, 1)]


def _read_row(where: str, row: Any) -> tuple[list[str], Tolerance]:
    if not isinstance(row, Mapping) or set(row) - _KEYS:
        unknown = sorted(set(row) - _KEYS) if isinstance(row, Mapping) else [type(row).__name__]
        raise UsageError(
            f"{where}: expected {', '.join(sorted(_KEYS))}, found {', '.join(unknown)}"
        )
    fields = row.get("fields")
    if not isinstance(fields, list) or not fields or not all(isinstance(f, str) for f in fields):
        raise UsageError(f"{where}: expected fields = [patterns], found {fields!r}")
    reason = row.get("reason")
    if not isinstance(reason, str) or not reason.strip():
        raise UsageError(f"{where}: expected a reason, found {reason!r}; say why it may differ")
    limits = {}
    for name in ("absolute", "relative"):
        value = row.get(name, 0.0)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not is_number or not (0.0 <= value < math.inf):
            raise UsageError(f"{where}: expected {name} of at least 0, found {value!r}")
        limits[name] = float(value)
    ignore = row.get("ignore", False)
    if not isinstance(ignore, bool):
        raise UsageError(f"{where}: expected ignore = true or false, found {ignore!r}")
    return fields, Tolerance(limits["absolute"], limits["relative"], ignore, reason)


def _compiled(pattern: str) -> re.Pattern[str]:
    """Return the expression of a pattern: ``*`` is any text, all else is itself."""
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
