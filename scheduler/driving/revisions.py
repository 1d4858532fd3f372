"""The table of known revisions: one declarative file each in `interfaces/`, read once when asked.

A revision says which models it has, their inputs, heads and widths, and the rules that nobody can
read off a model. docs/interfaces.md describes the files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from scheduler.driving.declare import (
    MONITORING_RULES,
    Rules,
    Table,
    check_rules,
    make_rules,
    merged,
    read_table,
)

FOLDER: Final = Path(__file__).with_name("interfaces")
KINDS: Final = ("driving", "monitoring")
TOP_KEYS: Final = ("title", "since", "kind", "preferred", "base", "rules", "models")
OWN_KEYS: Final = ("title", "since", "preferred")  # those that no base gives
MODEL_KEYS: Final = ("role", "images", "inputs", "heads", "widths", "pad", "states", "slices")
IMAGE_TYPES: Final = ("uint8", "float32", "float16")
STATE_TYPES: Final = ("uint8", "float32", "float16")


@dataclass(frozen=True, slots=True)
class RevisionModel:
    """One model of a revision."""

    role: str  # as in `ModelPart`
    images: str  # element type of its images
    inputs: Mapping[str, tuple[int, ...]]  # "name|other name" -> shape; "?" ends optional keys
    heads: tuple[tuple[str, int], ...]  # (name, width) in the order of the output vector
    pad: int  # values after the last head; -1 where `pad` is the whole output under a second name
    states: Mapping[str, tuple[tuple[int, ...], str]]  # of outputs `next_<name>`: (shape, dtype)
    sliced: bool = True  # whether the ONNX says where its heads are; else `heads` does

    @property
    def width(self) -> int:
        """Values of the output vector."""
        return sum(width for _, width in self.heads) + max(self.pad, 0)

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Head -> (start, stop) of the output vector, without `pad`."""
        found, start = {}, 0
        for head, width in self.heads:
            found[head] = (start, start + width)
            start += width
        return found


@dataclass(frozen=True, slots=True)
class Revision:
    """One row of the table."""

    name: str  # of the file, without its ending
    title: str  # for people
    since: str  # day or month of the first model
    models: tuple[RevisionModel, ...]  # in the order in which they run in a frame
    rules: Rules  # what is declared
    preferred: bool = False  # taken before newer revisions of the same inputs and heads


@dataclass(frozen=True, slots=True)
class MonitoringRevision:
    """One kind of driver monitoring model."""

    name: str  # of the file, without its ending
    title: str  # for people
    since: str  # day or month of the first model
    model: RevisionModel  # its inputs and heads
    image_mode: str  # of IMAGE_MODES
    stds: str  # of STD_RULES, how deviations are written


def load_revisions(folder: Path = FOLDER) -> dict[str, Revision]:
    """Return all driving revisions by name, in order of days; a ModelError names a bad key."""
    found = [_revision(t, name) for name, t in _tables(folder, "driving").items()]
    return {r.name: r for r in sorted(found, key=lambda r: (r.since, r.name))}


def load_monitoring(folder: Path = FOLDER) -> dict[str, MonitoringRevision]:
    """Return all revisions of driver monitoring models as `load_revisions` does."""
    found = []
    for name, table in _tables(folder, "monitoring").items():
        models = [_model(t) for t in table.tables("models")]
        if len(models) != 1:
            raise table.error("models", f"expected one model, found {len(models)}")
        rules = table.table("rules")
        rules.only(list(MONITORING_RULES))
        said = {key: rules.choice(key, words) for key, words in MONITORING_RULES.items()}
        title, since = table.get("title", str), table.get("since", str)
        found.append(MonitoringRevision(name, title, since, models[0], **said))
    return {r.name: r for r in sorted(found, key=lambda r: (r.since, r.name))}


def _tables(folder: Path, kind: str) -> dict[str, Table]:
    """Return the files of a kind by name, what they take from others filled in."""
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
        what = "itself" if base in files else f"{base!r}, which is no file"
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
    """Return a model with its changes: `heads` and `widths` of the base never mix with ours."""
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
