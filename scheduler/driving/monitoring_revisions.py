"""The table of known driver monitoring models: a declarative file each, read when asked.

Files lie in `interfaces/monitoring/`; docs/formats/monitoring-models.md describes them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from runtime.driving_interface import IMAGE_MODES
from runtime.monitoring_interface import STD_RULES
from scheduler.errors import ModelError

FOLDER: Final = Path(__file__).with_name("interfaces") / "monitoring"
UNUSED: Final = "-"
_TYPES: Final[Mapping[str, type]] = {
    "title": str,
    "since": str,
    "image_mode": str,
    "stds": str,
    "sliced": bool,
    "heads": list,
}


@dataclass(frozen=True, slots=True)
class MonitoringRevision:
    """One row of the table.

    Attributes:
        name: of the file, without its ending.
        title: for people.
        since: day or month of the first model.
        image_mode, stds: as in `MonitoringInterface`.
        sliced: whether the model's metadata says where its heads are; else they are at the places
            of `heads`.
        heads: (name, width) in the order of the output vector; UNUSED for what nobody reads.
    """

    name: str
    title: str
    since: str
    image_mode: str
    stds: str
    sliced: bool
    heads: tuple[tuple[str, int], ...]

    @property
    def width(self) -> int:
        """Values of the output vector."""
        return sum(width for _, width in self.heads)

    @property
    def slices(self) -> dict[str, tuple[int, int]]:
        """Head -> (start, stop), without those that nobody reads."""
        found, start = {}, 0
        for name, width in self.heads:
            if name != UNUSED:
                found[name] = (start, start + width)
            start += width
        return found


def load_monitoring_revisions(folder: Path = FOLDER) -> dict[str, MonitoringRevision]:
    """Return all revisions by name, in the order of their days.

    Raises:
        ModelError: a file is no revision; it is named with the key that is wrong.
    """
    found = [_revision(path) for path in sorted(folder.glob("*.toml"))]
    return {r.name: r for r in sorted(found, key=lambda r: (r.since, r.name))}


def _revision(path: Path) -> MonitoringRevision:
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: expected TOML: {error}") from error
    wrong = sorted(set(content) ^ set(_TYPES))
    if wrong:
        raise ModelError(
            f"{path}: expected the keys {', '.join(_TYPES)}; missing or unknown: {', '.join(wrong)}"
        )
    for key, kind in _TYPES.items():
        if type(content[key]) is not kind:
            raise ModelError(
                f"{path}: {key}: expected {kind.__name__}, found {type(content[key]).__name__}"
            )
    for key, allowed in (("image_mode", IMAGE_MODES), ("stds", STD_RULES)):
        if content[key] not in allowed:
            raise ModelError(
                f"{path}: {key}: expected one of {', '.join(allowed)}, found {content[key]!r}"
            )
    heads = tuple(_head(path, item) for item in content.pop("heads"))
    return MonitoringRevision(path.stem, **content, heads=heads)


def _head(path: Path, item: Any) -> tuple[str, int]:
    if (
        type(item) is not list
        or len(item) != 2
        or type(item[0]) is not str
        or type(item[1]) is not int
        or item[1] < 1
    ):
        raise ModelError(f"{path}: heads: expected [name, width], found {item!r}")
    return item[0], item[1]
