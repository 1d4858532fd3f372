"""The table of known revisions: one declarative file each in `interfaces/`, read once when asked.

A revision says which models it has, their inputs, heads and widths, and the rules that nobody can
read off a model. docs/interfaces.md describes the files.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.driving_interface import ActionRule

FOLDER: Final = Path(__file__).with_name("interfaces")


@dataclass(frozen=True, slots=True)
class Rules:
    """What cannot be read off names, shapes and slices; the meaning is that of `Interface`."""

    image_mode: str
    drop_policy: str
    lane_change: str
    action: ActionRule
    curvature_scale: float = 1.0
    big: bool = False


@dataclass(frozen=True, slots=True)
class RevisionModel:
    """One model of a revision.

    Attributes:
        role: as in `ModelPart`.
        images: element type of its images.
        inputs: "name|other name" -> shape; "?" at the end of a key: may be missing.
        heads: (name, width) in the order of the output vector.
        pad: values after the last head; -1 where `pad` is the whole output under a second name.
        states: ONNX inputs with an output `next_<name>`: name -> (shape, dtype).
    """

    role: str
    images: str
    inputs: Mapping[str, tuple[int, ...]]
    heads: tuple[tuple[str, int], ...]
    pad: int
    states: Mapping[str, tuple[tuple[int, ...], str]]

    @property
    def width(self) -> int:
        """Values of the output vector."""
        return sum(width for _, width in self.heads) + max(self.pad, 0)


@dataclass(frozen=True, slots=True)
class Revision:
    """One row of the table.

    Attributes:
        name: of the file, without its ending.
        title: for people.
        since: day or month of the first model.
        models: in the order in which they run in a frame.
        rules: what is declared.
    """

    name: str
    title: str
    since: str
    models: tuple[RevisionModel, ...]
    rules: Rules


def load_revisions(folder: Path = FOLDER) -> dict[str, Revision]:
    """Return all revisions by name, in the order of their days.

    Raises:
        ModelError: a file is no revision; it is named with the key that is wrong.
    """
    found = [_revision(path) for path in sorted(folder.glob("*.toml"))]
    return {r.name: r for r in sorted(found, key=lambda r: (r.since, r.name))}


def _revision(path: Path) -> Revision:
    content = tomllib.loads(path.read_text(encoding="utf-8"))
    models = tuple(_model(table) for table in content["models"])
    rules = dict(content["rules"])
    action = ActionRule(**rules.pop("action"))
    return Revision(
        path.stem, content["title"], content["since"], models, Rules(**rules, action=action)
    )


def _model(table: Mapping[str, Any]) -> RevisionModel:
    pad = table.get("pad", 0)
    return RevisionModel(
        role=table["role"],
        images=table.get("images", "uint8"),
        inputs={name: tuple(shape) for name, shape in table["inputs"].items()},
        heads=tuple((name, width) for name, width in table["heads"]),
        pad=-1 if pad == "whole" else pad,
        states={n: (tuple(shape), kind) for n, (shape, kind) in table.get("states", {}).items()},
    )
