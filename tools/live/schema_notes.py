"""What the schema's own text says beside its fields: a unit, or a few words.

The text is that of the `.capnp` files; the schema as pycapnp knows it has no comments.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cereal.schema import SCHEMA_PATH

_OPENING: Final = re.compile(r"(?:(struct|enum|union)\s*(\w+)?|(\w+)\s*:group)\b[^{]*\{")
_FIELD: Final = re.compile(r"(\w+)\s*(?:@\d+\s*)?:(?:\w|\()[^;{]*[;{]\s*#\s*(.+)")
# Longer ones first. They begin the comment, and a space or a sign follows.
_UNITS: Final = (
    "degrees Celsius", "degrees/s", "degrees", "m/s^3", "m/s^2", "m/s", "rad/s", "N/rad", "1/m",
    "1/s", "rad", "kbit/s", "uWh", "mV", "mA", "uT", "mg", "dBHz", "dB", "Hz", "kg", "MB", "ms",
    "us", "ns", "Nm", "m", "s", "V", "W", "%", "bytes", "pixels", "cycles",
)  # fmt: skip
_UNIT: Final = re.compile(f"({'|'.join(map(re.escape, _UNITS))})(?=$|[\\s,;:.])")
_SHOWN: Final = {
    "degrees": "°", "degrees/s": "°/s", "degrees Celsius": "°C", "m/s^2": "m/s²", "m/s^3": "m/s³",
    "uT": "µT",
}  # fmt: skip
# Of names that say it themselves, as the schema's first lines have it.
_ENDINGS: Final = {"Deg": "°", "MonoTime": "ns", "Ms": "ms", "Nanos": "ns", "TempC": "°C"}


def schema_notes() -> Mapping[tuple[str, str, str], str]:
    """Return the comment of each field that has one, by file, structure (``A.B``) and field.

    One behind a structure's opening brace is of all its fields; its own name is "" there.
    """
    notes: dict[tuple[str, str, str], str] = {}
    for path in sorted(SCHEMA_PATH.parent.glob("*.capnp")):
        notes.update(_notes_in(path))
    return notes


def _notes_in(path: Path) -> dict[tuple[str, str, str], str]:
    found: dict[tuple[str, str, str], str] = {}
    inside: list[str] = []
    for line in path.read_text(encoding="utf-8").splitlines():
        field = _FIELD.search(line)
        if field:
            where = ".".join(filter(None, inside))
            found[path.name, where, field.group(1)] = field.group(2).strip()
        code = line.partition("#")[0]
        opening = _OPENING.search(code)
        if opening:
            inside.append(opening.group(2) or opening.group(3) or "")
            if "#" in line:
                where = ".".join(filter(None, inside))
                found[path.name, where, ""] = line.partition("#")[2].strip()
        if "}" in code:
            inside.pop()
    return found


def unit_of(name: str, note: str) -> str:
    """Return the unit of a field by its comment or its name; "" where neither says one."""
    found = _UNIT.match(note)
    if found:
        return _SHOWN.get(found.group(1), found.group(1))
    return next((unit for ending, unit in _ENDINGS.items() if name.endswith(ending)), "")
