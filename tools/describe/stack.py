"""Differences between a stack's bus and our tables, as `modeld inspect --schema` prints them.

Fields are compared by their ordinals and enumerants by their numbers, as messages have them; names
are not on the wire. What either side declares without any field, as we do with structures out of
use and stacks with those that they keep for forks, is not looked into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

from cereal.schema import log
from cereal.schema_layout import FieldLayout, SchemaLayout, TypeLayout, layout_of
from cereal.services import SERVICES
from runtime.texts import count_text
from tools.describe.stack_checkout import StackService, read_checkout
from tools.lib.table import Section

NEW, CHANGED, INCOMPATIBLE, REMOVED, RENAMED = KINDS = (
    "new",
    "changed",
    "incompatible",
    "removed",
    "renamed",
)
# What our tables lack: the others cost nothing.
DIFFERENCES: Final = (NEW, CHANGED, INCOMPATIBLE)
_RETIRED: Final = re.compile(r"(?i)(deprecated|retired)$")


@dataclass(frozen=True, slots=True)
class Difference:
    """One difference, of a kind of `KINDS`, with our version and theirs; ours may be empty."""

    kind: str
    what: str
    ours: str
    theirs: str


def describe(directory: Path) -> tuple[dict[str, Any], list[Section]]:
    """Return the differences of a checkout, for machines and for people.

    Raises:
        FileKindError: it is no checkout, or cannot be read.
    """
    checkout = read_checkout(directory)
    walk = _Walk(layout_of(log.Event.schema), checkout.layout)
    found = [*_services(checkout.services), *walk.all()]
    found.sort(key=lambda one: (KINDS.index(one.kind), one.what))
    count = sum(one.kind in DIFFERENCES for one in found)
    facts = {
        "differences": count,
        "findings": [asdict(one) for one in found],
        "services": len(checkout.services),
        "structures": walk.structures,
        "empty": walk.empty,
    }
    title = (
        f"{count_text(count, 'difference')} from our tables in "
        f"{count_text(len(checkout.services), 'service')} and "
        f"{count_text(walk.structures, 'structure')}; {walk.empty} are empty on one side"
    )
    rows: list[tuple[object, ...]] = [
        (one.kind, one.what, one.ours or "-", one.theirs or "-") for one in found
    ]
    return facts, [Section(title, ("", "what", "ours", "theirs"), rows)]


def _services(theirs: dict[str, StackService]) -> Iterator[Difference]:
    for name, row in theirs.items():
        ours = SERVICES.get(name)
        if ours is None:
            yield Difference(NEW, name, "", _service_text(row))
            continue
        queue_bytes = None if row.queue_bytes is None else ours.queue_bytes
        mine = StackService(ours.logged, ours.frequency_hz, ours.decimation, queue_bytes)
        if _service_text(mine) != _service_text(row):
            yield Difference(CHANGED, name, _service_text(mine), _service_text(row))


def _service_text(row: StackService) -> str:
    parts = [f"{row.frequency_hz:.4g} Hz", "logged" if row.logged else "not logged"]
    parts.append("not in qlog" if row.decimation is None else f"qlog {row.decimation}")
    if row.queue_bytes is not None:
        parts.append(f"queue {row.queue_bytes}")
    return ", ".join(parts)


class _Walk:
    """Compares both schemas, each pair of structures once; `empty` pairs lack fields on a side."""

    def __init__(self, ours: SchemaLayout, theirs: SchemaLayout) -> None:
        self._ours, self._theirs = ours, theirs
        self._seen: set[tuple[str, str]] = set()
        self._waiting = [(ours["root"], theirs["root"])]
        self.structures = self.empty = 0

    def all(self) -> Iterator[Difference]:
        """Yield what is not the same."""
        while self._waiting:
            pair = self._waiting.pop(0)
            if pair not in self._seen:
                self._seen.add(pair)
                yield from self._structs(*pair)

    def _structs(self, ours: str, theirs: str) -> Iterator[Difference]:
        name = self._ours["names"][ours]
        mine, other = self._ours["structs"][ours], self._theirs["structs"][theirs]
        if not mine or not other:
            self.empty += 1
            return
        self.structures += 1
        for ordinal in sorted({*mine, *other}, key=int):
            one, two = mine.get(ordinal), other.get(ordinal)
            if one is None or two is None:
                yield self._alone(name, ordinal, one, two)
            else:
                yield from self._fields(f"{name}.{one['name']}", one, two)

    def _alone(
        self, name: str, ordinal: str, one: FieldLayout | None, two: FieldLayout | None
    ) -> Difference:
        if two is not None:
            text = f"@{ordinal} :{_type_text(two['type'], self._theirs)}"
            return Difference(NEW, f"{name}.{two['name']}", "", text)
        assert one is not None
        text = f"@{ordinal} :{_type_text(one['type'], self._ours)}"
        return Difference(REMOVED, f"{name}.{one['name']}", text, "")

    def _fields(self, what: str, one: FieldLayout, two: FieldLayout) -> Iterator[Difference]:
        texts = [
            f"{_type_text(field['type'], layout)}, place {field['offset']}"
            + ("" if field["member"] is None else f", member {field['member']}")
            for field, layout in ((one, self._ours), (two, self._theirs))
        ]
        places = [(field["offset"], field["member"]) for field in (one, two)]
        if places[0] != places[1] or not self._fit(one["type"], two["type"]):
            yield Difference(INCOMPATIBLE, what, *texts)
            return
        if _bare(one["name"]) != _bare(two["name"]):
            yield Difference(RENAMED, what, one["name"], two["name"])
        yield from self._enums(one["type"], two["type"])

    def _fit(self, one: TypeLayout, two: TypeLayout) -> bool:
        """Return whether types are the same on the wire; structures are compared later."""
        if one["kind"] != two["kind"]:
            return {one["kind"], two["kind"]} == {"enum", "uint16"}
        if one["kind"] == "list":
            return self._fit(one["element"], two["element"])
        if one["kind"] == "struct":
            self._waiting.append((one["id"], two["id"]))
        return True

    def _enums(self, one: TypeLayout, two: TypeLayout) -> Iterator[Difference]:
        while one["kind"] == "list":
            one, two = one["element"], two["element"]
        if not one["kind"] == two["kind"] == "enum" or (one["id"], two["id"]) in self._seen:
            return
        self._seen.add((one["id"], two["id"]))
        name = self._ours["names"][one["id"]]
        pairs = zip_longest(self._ours["enums"][one["id"]], self._theirs["enums"][two["id"]])
        for number, (mine, other) in enumerate(pairs):
            if mine is None:
                yield Difference(NEW, f"{name}.{other}", "", f"@{number}")
            elif other is None:
                yield Difference(REMOVED, f"{name}.{mine}", f"@{number}", "")
            elif _bare(mine) != _bare(other):
                yield Difference(RENAMED, f"{name} @{number}", mine, other)


def _type_text(kind: TypeLayout, layout: SchemaLayout) -> str:
    if kind["kind"] == "list":
        return f"list of {_type_text(kind['element'], layout)}"
    return layout["names"][kind["id"]] if "id" in kind else kind["kind"]


def _bare(name: str) -> str:
    """Return a field's name without its groups, and without what says that it is out of use."""
    return _RETIRED.sub("", name.rsplit(".", 1)[-1])
