"""Tolerances of message fields: a reviewed table, and the rows that a user adds.

The package's table is ``tolerances.toml`` in this directory; its header explains the format.
Comparisons of logs use the tolerances, and so do references that store values in steps of them.
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
    """The permitted difference of one field: the larger of the absolute and the relative one."""

    absolute: float = 0.0  # in units of the field
    relative: float = 0.0  # relative to the larger magnitude
    ignore: bool = False  # True: the field is not compared
    reason: str = ""  # why the field may differ

    @property
    def text(self) -> str:
        """The tolerance as text: ``abs 0.0001, rel 1e-05``, or ``exact``."""
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
    """A table of tolerances. The first row with a matching pattern applies to a field.

    `rows` are patterns and their tolerance, in order. With `bit_exact`, all fields that are not
    ignored must be equal in every bit.
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
        """Return the tolerance of a field; fields without a row must be equal.

        `service` is for example ``modelV2``. `field` is a path such as ``laneLines[].y``; fields of
        the Event itself begin with a dot: ``.valid``.
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
    """Return the package's table, preceded by the user's rows.

    Args:
        override: a file in the same format, whose rows take precedence.
        ignore: patterns of fields to ignore, which take precedence over all rows. A pattern without
            a service matches that field of every service.
        bit_exact: as in `Tolerances`.

    Raises:
        UsageError: the file cannot be read or has another format.
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
    """Return the regular expression of a pattern, in which ``*`` matches any text."""
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)
