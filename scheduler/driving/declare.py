"""What people declare of a model, in TOML: files of revisions and files beside an ONNX, checked.

A mistake is one ModelError that names file and key:

    tr2.toml: rules.image_mod: unknown key, did you mean image_mode?
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from runtime.format.interfaces import (
    DROP_POLICIES,
    IMAGE_MODES,
    LANE_CHANGE_MACHINES,
    LATERAL_DELAYS,
    LATERAL_RULES,
    LONGITUDINAL_RULES,
    STD_RULES,
    STOP_RULES,
    ActionRule,
)
from scheduler.errors import ModelError

# Key -> the words it may have, or its type; a float in 0..10 may also be written as an int.
RuleTable = Mapping[str, tuple[str, ...] | type]
ACTION_RULES: Final[RuleTable] = {
    "lateral": LATERAL_RULES,
    "longitudinal": LONGITUDINAL_RULES,
    "lateral_delay": LATERAL_DELAYS,
    "lateral_delay_extra_s": float,
    "frame_delay_s": float,
    "lat_smooth_s": float,
    "long_smooth_s": float,
    "hold_below_mps": float,
    "stop": STOP_RULES,
    "clip_speed": bool,
}
RULES: Final[RuleTable] = {
    "image_mode": IMAGE_MODES,
    "drop_policy": DROP_POLICIES,
    "lane_change": LANE_CHANGE_MACHINES,
    "curvature_scale": float,
    "big": bool,
    "action": dict,
}
MONITORING_RULES: Final[Mapping[str, tuple[str, ...]]] = {
    "image_mode": IMAGE_MODES,
    "stds": STD_RULES,
}
OPTIONAL_RULES: Final[Mapping[str, Any]] = {"curvature_scale": 1.0, "big": False}
LARGEST = 10.0  # seconds, m/s


@dataclass(frozen=True, slots=True)
class Rules:
    """What cannot be read off names, shapes and slices; the meaning is that of `Interface`."""

    image_mode: str
    drop_policy: str
    lane_change: str
    action: ActionRule
    curvature_scale: float = 1.0
    big: bool = False


class Table:
    """One table of a TOML file; every mistake is a ModelError that names file and key."""

    def __init__(self, value: Mapping[str, Any], file: str, at: str = "") -> None:
        self.value = value
        self.file = file
        self.at = at

    def error(self, key: str, what: str) -> ModelError:
        """Return the error about a key."""
        return ModelError(f"{self.file}: {self._path(key)}: {what}")

    def only(self, known: Sequence[str]) -> None:
        """Raise ModelError for the first key that is none of `known`."""
        for key in self.value:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                advice = (
                    f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
                )
                raise self.error(key, f"unknown key, {advice}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Return the value of a key, of type `kind`, or the default, or raise ModelError."""
        if key not in self.value:
            if default is None:
                raise self.error(key, "is missing")
            return default
        item = self.value[key]
        if kind is float and type(item) is int:
            item = float(item)
        if type(item) is not kind:
            found = f"{type(item).__name__} {str(item)[:40]}"
            raise self.error(key, f"expected {kind.__name__}, found {found}")
        return item

    def choice(self, key: str, words: Sequence[str]) -> str:
        """Return the value of a key, one of `words`."""
        item: str = self.get(key, str)
        if item not in words:
            raise self.error(key, f"expected one of {', '.join(words)}, found {item[:40]!r}")
        return item

    def table(self, key: str) -> Table:
        """Return the table under a key; an empty one where it is missing."""
        return Table(self.get(key, dict, {}), self.file, self._path(key))

    def tables(self, key: str) -> list[Table]:
        """Return the list of tables under a key; an empty one where it is missing."""
        items = self.get(key, list, [])
        if any(type(item) is not dict for item in items):
            raise self.error(key, f"expected [[{key}]] tables")
        return [Table(item, self.file, f"{self._path(key)}[{i}]") for i, item in enumerate(items)]

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the value of a key, a list of counts."""
        item = self.get(key, list)
        if any(type(size) is not int or size < 1 for size in item):
            raise self.error(key, f"expected a shape such as [1, 25, 8], found {str(item)[:40]}")
        return tuple(item)

    def _path(self, key: str) -> str:
        return f"{self.at}.{key}" if self.at else key


def read_table(path: Path) -> Table:
    """Return the content of a TOML file; raise ModelError if it cannot be read or is no TOML."""
    try:
        return Table(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{path.name}: cannot be read as TOML: {reason}") from None


def check_rules(table: Table, known: RuleTable = RULES) -> dict[str, Any]:
    """Return what a table `[rules]` says, a part of all rules; `action` is a dict again.

    `known` is RULES or MONITORING_RULES. Raises ModelError for an unknown key, a wrong type or an
    unknown word.
    """
    said = _checked(table, known)
    if "action" in table.value:
        said["action"] = _checked(table.table("action"), ACTION_RULES)
    return said


def make_rules(said: Mapping[str, Any], table: Table) -> Rules:
    """Return complete rules, or raise a ModelError worded for `table`."""
    complete = {**OPTIONAL_RULES, **said}
    action = complete.get("action", {})
    for key in RULES:
        if key not in complete:
            raise table.error(key, "is missing")
    for key in ACTION_RULES:
        if key not in action:
            raise table.error(f"action.{key}", "is missing")
    return Rules(**{**complete, "action": ActionRule(**action)})


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`, tables merged key by key."""
    found = dict(base)
    for key, value in over.items():
        old = found.get(key)
        both = isinstance(value, Mapping) and isinstance(old, Mapping)
        found[key] = merged(old, value) if both else value  # type: ignore[arg-type]
    return found


def _checked(table: Table, known: RuleTable) -> dict[str, Any]:
    table.only(list(known))
    found: dict[str, Any] = {}
    for key, kind in known.items():
        if key not in table.value:
            continue
        found[key] = table.choice(key, kind) if isinstance(kind, tuple) else table.get(key, kind)
        if kind is float and not 0.0 <= found[key] <= LARGEST:
            raise table.error(key, f"{found[key]} is outside 0..{LARGEST:g}")
    return found
