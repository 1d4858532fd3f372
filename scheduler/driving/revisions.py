"""Reads the table of known model revisions, one declarative file each in `interfaces/`.

A revision lists its models, their inputs, heads and widths, and the rules that cannot be derived
from a model. docs/interfaces.md describes the files. The same checks apply to a TOML next to an
ONNX file (see `recognise`). A mistake raises a ModelError that names file and key:

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

# Key -> its possible words, or its type; a float in 0..10 may also be written as an int.
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
    """Properties not visible in names, shapes and slices; see `Interface` for their meaning."""

    image_mode: str
    drop_policy: str
    lane_change: str
    action: ActionRule
    curvature_scale: float = 1.0
    big: bool = False


class Table:
    """One table of a TOML file. Every mistake raises a ModelError that names file and key."""

    def __init__(self, value: Mapping[str, Any], file: str, at: str = "") -> None:
        self.value = value
        self.file = file
        self.at = at

    def error(self, key: str, what: str) -> ModelError:
        """Return the error for a key."""
        return ModelError(f"{self.file}: {self._path(key)}: {what}")

    def only(self, known: Sequence[str]) -> None:
        """Raise ModelError for the first key that is not in `known`."""
        for key in self.value:
            if key not in known:
                close = get_close_matches(key, known, n=1)
                advice = (
                    f"did you mean {close[0]}?" if close else f"expected one of {', '.join(known)}"
                )
                raise self.error(key, f"unknown key, {advice}")

    def get(self, key: str, kind: type, default: Any = None) -> Any:
        """Return the value of a key with type `kind`, or the default; else raise ModelError."""
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
        """Return the value of a key, which must be one of `words`."""
        item: str = self.get(key, str)
        if item not in words:
            raise self.error(key, f"expected one of {', '.join(words)}, found {item[:40]!r}")
        return item

    def table(self, key: str) -> Table:
        """Return the table under a key; an empty one if the key is missing."""
        return Table(self.get(key, dict, {}), self.file, self._path(key))

    def tables(self, key: str) -> list[Table]:
        """Return the list of tables under a key; an empty one if the key is missing."""
        items = self.get(key, list, [])
        if any(type(item) is not dict for item in items):
            raise self.error(key, f"expected [[{key}]] tables")
        return [Table(item, self.file, f"{self._path(key)}[{i}]") for i, item in enumerate(items)]

    def shape(self, key: str) -> tuple[int, ...]:
        """Return the value of a key, a list of axis sizes."""
        item = self.get(key, list)
        if any(type(size) is not int or size < 1 for size in item):
            raise self.error(key, f"expected a shape such as [1, 25, 8], found {str(item)[:40]}")
        return tuple(item)

    def _path(self, key: str) -> str:
        return f"{self.at}.{key}" if self.at else key


def read_table(path: Path) -> Table:
    """Return the content of a TOML file; raise ModelError if it is unreadable or invalid."""
    try:
        return Table(tomllib.loads(path.read_text(encoding="utf-8")), path.name)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ModelError(f"{path.name}: cannot be read as TOML: {reason}") from None


def check_rules(table: Table, known: RuleTable = RULES) -> dict[str, Any]:
    """Return the content of a `[rules]` table, which may set any part of the rules.

    `action` is a nested dict. `known` is RULES or MONITORING_RULES. Raises ModelError for an
    unknown key, a wrong type or an unknown word.
    """
    rules = _checked(table, known)
    if "action" in table.value:
        rules["action"] = _checked(table.table("action"), ACTION_RULES)
    return rules


def make_rules(given: Mapping[str, Any], table: Table) -> Rules:
    """Return complete rules; raise a ModelError worded for `table` if a rule is missing."""
    complete = {**OPTIONAL_RULES, **given}
    action = complete.get("action", {})
    for key in RULES:
        if key not in complete:
            raise table.error(key, "is missing")
    for key in ACTION_RULES:
        if key not in action:
            raise table.error(f"action.{key}", "is missing")
    return Rules(**{**complete, "action": ActionRule(**action)})


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` with the values of `over`; tables are merged key by key."""
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


FOLDER: Final = Path(__file__).with_name("interfaces")
KINDS: Final = ("driving", "monitoring")
TOP_KEYS: Final = ("title", "since", "kind", "preferred", "base", "rules", "models")
OWN_KEYS: Final = ("title", "since", "preferred")  # keys that are not inherited from a base
MODEL_KEYS: Final = ("role", "images", "inputs", "heads", "widths", "pad", "states", "slices")
IMAGE_TYPES: Final = ("uint8", "float32", "float16")
STATE_TYPES: Final = ("uint8", "float32", "float16")


@dataclass(frozen=True, slots=True)
class RevisionModel:
    """One model of a revision."""

    role: str  # role, as in `ModelPart`
    images: str  # element type of its image inputs
    inputs: Mapping[str, tuple[int, ...]]  # "name|other name" -> shape; "?" ends optional keys
    heads: tuple[tuple[str, int], ...]  # (name, width) in the order of the output vector
    pad: int  # values after the last head; -1 if `pad` is another name for the whole output
    # (shape, dtype) of each state, updated by an output `next_<name>`
    states: Mapping[str, tuple[tuple[int, ...], str]]
    # whether the ONNX file has the slices of its heads; else `heads` defines them
    sliced: bool = True

    @property
    def width(self) -> int:
        """Number of values in the output vector."""
        return sum(width for _, width in self.heads) + max(self.pad, 0)

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Head -> (start, stop) in the output vector, without `pad`."""
        found, start = {}, 0
        for head, width in self.heads:
            found[head] = (start, start + width)
            start += width
        return found


@dataclass(frozen=True, slots=True)
class Revision:
    """One row of the table."""

    name: str  # name of the file, without its extension
    title: str  # title for messages
    since: str  # day or month of the first model
    models: tuple[RevisionModel, ...]  # in the order in which they run in a frame
    rules: Rules  # the declared rules
    preferred: bool = False  # chosen before newer revisions with the same inputs and heads


@dataclass(frozen=True, slots=True)
class MonitoringRevision:
    """One kind of driver monitoring model."""

    name: str  # name of the file, without its extension
    title: str  # title for messages
    since: str  # day or month of the first model
    model: RevisionModel  # its inputs and heads
    image_mode: str  # one of IMAGE_MODES
    stds: str  # one of STD_RULES: the encoding of standard deviations


def load_revisions(folder: Path = FOLDER) -> dict[str, Revision]:
    """Return all driving revisions by name, sorted by date; a ModelError names a bad key."""
    found = [_revision(t, name) for name, t in _tables(folder, "driving").items()]
    return {r.name: r for r in sorted(found, key=lambda r: (r.since, r.name))}


def load_monitoring(folder: Path = FOLDER) -> dict[str, MonitoringRevision]:
    """Return all driver monitoring revisions, as `load_revisions` does."""
    found = []
    for name, table in _tables(folder, "monitoring").items():
        models = [_model(t) for t in table.tables("models")]
        if len(models) != 1:
            raise table.error("models", f"expected one model, found {len(models)}")
        rules = table.table("rules")
        rules.only(list(MONITORING_RULES))
        values = {key: rules.choice(key, words) for key, words in MONITORING_RULES.items()}
        title, since = table.get("title", str), table.get("since", str)
        found.append(MonitoringRevision(name, title, since, models[0], **values))
    return {r.name: r for r in sorted(found, key=lambda r: (r.since, r.name))}


def _tables(folder: Path, kind: str) -> dict[str, Table]:
    """Return the files of a kind by name, with the values of their bases filled in."""
    files = {path.stem: read_table(path) for path in sorted(folder.glob("*.toml"))}
    complete = {name: _completed(name, files, ()) for name in files}
    return {
        name: table
        for name, table in complete.items()
        if (table.choice("kind", KINDS) if "kind" in table.value else "driving") == kind
    }


def _completed(name: str, files: Mapping[str, Table], users: tuple[str, ...]) -> Table:
    table = files[name]
    table.only(TOP_KEYS)
    for model in table.tables("models"):
        model.only(MODEL_KEYS)
        model.get("role", str)
    base = table.get("base", str, "")
    if not base:
        return table
    if base not in files or base in (*users, name):
        what = "itself" if base in files else f"{base!r}, which is not a file"
        raise table.error("base", f"expected another revision, found {what}")
    below = _completed(base, files, (*users, name)).value
    models = {model["role"]: model for model in below.get("models", [])}
    for model in table.value.get("models", []):
        models[model["role"]] = _changed(models.get(model["role"], {}), model)
    rules = merged(below.get("rules", {}), table.value.get("rules", {}))
    below = {key: value for key, value in below.items() if key not in OWN_KEYS}
    value = {**below, **table.value, "rules": rules, "models": list(models.values())}
    return Table(value, table.file)


def _changed(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """Return a model with its changes; new `heads` also discard the `widths` of the base."""
    if "heads" in new:
        old = {key: value for key, value in old.items() if key != "widths"}
    return merged(old, new)


def _revision(table: Table, name: str) -> Revision:
    models = tuple(_model(t) for t in table.tables("models"))
    if not models:
        raise table.error("models", "expected at least one model, found none")
    rules = table.table("rules")
    return Revision(
        name=name,
        title=table.get("title", str),
        since=table.get("since", str),
        models=models,
        rules=make_rules(check_rules(rules), rules),
        preferred=table.get("preferred", bool, False),
    )


def _model(table: Table) -> RevisionModel:
    inputs, states = table.table("inputs"), table.table("states")
    whole = table.value.get("pad") == "whole"
    declared = "slices" in table.value and table.choice("slices", ["declared"])
    return RevisionModel(
        role=table.get("role", str),
        images=table.choice("images", IMAGE_TYPES) if "images" in table.value else "uint8",
        inputs={n: shape for n in inputs.value if (shape := inputs.shape(n))},
        heads=_heads(table),
        pad=-1 if whole else table.get("pad", int, 0),
        states={name: _state(states, name) for name in states.value},
        sliced=not declared,
    )


def _heads(table: Table) -> tuple[tuple[str, int], ...]:
    widths = table.table("widths")
    found: dict[str, int] = {}
    for item in table.get("heads", list):
        fits = type(item) is list and [type(i) for i in item] == [str, int] and item[1] > 0
        if not fits or item[0] in found:
            raise table.error("heads", f'expected ["name", width] once, found {str(item)[:40]}')
        found[item[0]] = item[1]
    widths.only(list(found))
    found |= {name: widths.get(name, int) for name in widths.value}
    return tuple((name, width) for name, width in found.items() if width > 0)


def _state(states: Table, name: str) -> tuple[tuple[int, ...], str]:
    item = states.get(name, list)
    if len(item) != 2 or item[1] not in STATE_TYPES:
        raise states.error(name, f'expected [shape, "dtype"], found {str(item)[:40]}')
    return Table({name: item[0]}, states.file, states.at).shape(name), item[1]
