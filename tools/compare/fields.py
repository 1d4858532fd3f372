"""Messages as flat lists of values, so that two of them are compared with a few array operations.

A message becomes three lists, always in the order of the schema: its numbers, its discrete values
(flags, enumerants, texts, bytes, 64-bit integers, which a double cannot hold) and its shape (the
lengths of its lists and the members of its unions). Messages of one shape have the same value at
the same index; what stands there is looked up once per shape (`Layout`).

Which fields exist comes from the schema, so a field that is declared tomorrow is compared tomorrow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Literal

import numpy as np

from cereal.schema import log

Kind = Literal["number", "wide", "flag", "enum", "text", "data", "floats", "struct", "list"]
Discrete = bool | int | str | bytes
Shape = tuple[int | str, ...]

_NUMBERS = frozenset({"int8", "int16", "int32", "uint8", "uint16", "uint32", "float32", "float64"})
_WIDE = frozenset({"int64", "uint64"})
# Bytes that are float32 values, little endian.
_FLOAT_BYTES = frozenset({"rawPredictions"})
_NO_UNION = 0xFFFF
# No schema of ours nests that deep; one that refers to itself would never end.
_MAX_DEPTH = 12


@dataclass(frozen=True, slots=True)
class Node:
    """What kind of value stands somewhere in a message.

    Attributes:
        kind: how it is read.
        members: of a structure: name -> node, those that are always there.
        choices: of a structure with a union: name -> node, of which one is there.
        element: of a list.
        names: of an enumeration.
    """

    kind: Kind
    members: tuple[tuple[str, Node], ...] = ()
    choices: tuple[tuple[str, Node | None], ...] = ()
    element: Node | None = None
    names: tuple[str, ...] = ()


@dataclass(slots=True)
class Flat:
    """The values of one message, in the order of the schema."""

    numbers: list[float] = field(default_factory=list)
    discrete: list[Discrete] = field(default_factory=list)
    shape: list[int | str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: ``laneLines[].y`` and ``laneLines[1].y[32]``."""

    pattern: str
    exact: str


@dataclass(slots=True)
class Layout:
    """What the values of all messages of one shape are.

    Attributes:
        numbers: of each number.
        discrete: of each discrete value.
        sizes: of each length or union member, with it.
    """

    numbers: list[Place] = field(default_factory=list)
    discrete: list[Place] = field(default_factory=list)
    sizes: list[tuple[Place, int | str]] = field(default_factory=list)


@cache
def member_node(member: str) -> Node | None:
    """Return what an Event member is; None where the schema does not say what is in it."""
    declared = log.Event.schema.fields[member]
    node = _node(declared.proto.slot.type, declared, member, 0)
    return None if node is None or _is_empty(node) else node


@cache
def has_frame_id(member: str) -> bool:
    """Whether messages of an Event member belong to a camera frame."""
    node = member_node(member)
    return node is not None and any(name == "frameId" for name, _ in node.members)


def _is_empty(node: Node) -> bool:
    if node.kind == "list":
        return node.element is None or _is_empty(node.element)
    return node.kind == "struct" and not node.members and not node.choices


def _node(slot_type: Any, declared: Any, name: str, depth: int) -> Node | None:
    """Return the node of a type; None for those without content (void, undeclared pointers)."""
    kind = str(slot_type.which())
    if kind in _NUMBERS:
        return Node("number")
    if kind in _WIDE:
        return Node("wide")
    if kind == "bool":
        return Node("flag")
    if kind == "data":
        return Node("floats" if name in _FLOAT_BYTES else "data")
    if kind == "text":
        return Node("text")
    if kind == "enum":
        names = sorted(declared.schema.enumerants.items(), key=lambda item: item[1])
        return Node("enum", names=tuple(str(text) for text, _ in names))
    if kind == "struct":
        return _struct_node(declared.schema, depth + 1)
    if kind == "list":
        element = _list_element(slot_type.list.elementType, declared.schema, name, depth + 1)
        return Node("list", element=element) if element is not None else None
    return None


def _struct_node(schema: Any, depth: int) -> Node:
    if depth > _MAX_DEPTH:
        return Node("struct")
    members: list[tuple[str, Node]] = []
    choices: list[tuple[str, Node | None]] = []
    for name, declared in schema.fields.items():
        proto = declared.proto
        if proto.which() == "group":
            node: Node | None = _struct_node(declared.schema, depth + 1)
        else:
            node = _node(proto.slot.type, declared, name, depth)
        if proto.discriminantValue != _NO_UNION:
            choices.append((name, node))
        elif node is not None and not _is_empty(node):
            members.append((name, node))
    return Node("struct", members=tuple(members), choices=tuple(choices))


class _Element:
    """The element type of a list in the place of a field's declaration."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema


def _list_element(slot_type: Any, schema: Any, name: str, depth: int) -> Node | None:
    if depth > _MAX_DEPTH:
        return None
    kind = str(slot_type.which())
    # Only these have a schema of their own; asking for that of a number is an error.
    declared = _Element(schema.elementType if kind in ("struct", "enum", "list") else None)
    node = _node(slot_type, declared, name, depth)
    return None if node is None or _is_empty(node) else node


def flatten(node: Node, value: Any) -> Flat:
    """Return the values of one message.

    Args:
        node: from `member_node`.
        value: the Event's member, a reader.
    """
    flat = Flat()
    _flatten(node, value, flat)
    return flat


def _flatten(node: Node, value: Any, flat: Flat) -> None:
    kind = node.kind
    if kind == "struct":
        _flatten_struct(node, value, flat)
    elif kind == "number":
        flat.numbers.append(value)
    elif kind == "list":
        _flatten_list(node, value, flat)
    elif kind == "enum":
        flat.discrete.append(_enumerant(node, value.raw))
    elif kind == "floats":
        count = len(value) // 4
        flat.shape.append(count)
        flat.numbers.extend(np.frombuffer(value, "<f4", count).tolist())
        flat.discrete.append(bytes(value[4 * count :]))
    elif kind == "data":
        flat.discrete.append(bytes(value))
    else:
        flat.discrete.append(value)


def _flatten_struct(node: Node, value: Any, flat: Flat) -> None:
    for name, member in node.members:
        if member.kind == "number":  # by far the most: one call less
            flat.numbers.append(getattr(value, name))
        else:
            _flatten(member, getattr(value, name), flat)
    if node.choices:
        chosen = str(value.which())
        flat.shape.append(chosen)
        member_of_union = dict(node.choices)[chosen]
        if member_of_union is not None:
            _flatten(member_of_union, getattr(value, chosen), flat)


def _flatten_list(node: Node, value: Any, flat: Flat) -> None:
    element = node.element
    assert element is not None  # lists without one have no node
    flat.shape.append(len(value))
    if element.kind == "number":
        flat.numbers.extend(value)
    elif element.kind == "enum":
        # Elements of such lists are names already.
        flat.discrete.extend(str(item) for item in value)
    elif element.kind in ("wide", "flag", "text"):
        flat.discrete.extend(value)
    else:
        for item in value:
            _flatten(element, item, flat)


def _enumerant(node: Node, number: int) -> str:
    return node.names[number] if number < len(node.names) else f"#{number}"


def layout_of(node: Node, shape: Sequence[int | str]) -> Layout:
    """Return what stands where in messages of a shape, as `flatten` gave it."""
    layout = Layout()
    rest = list(reversed(shape))
    _lay_out(node, Place("", ""), rest, layout)
    return layout


def _lay_out(node: Node, place: Place, rest: list[int | str], layout: Layout) -> None:
    if node.kind == "struct":
        for name, member in node.members:
            _lay_out(member, _below(place, name), rest, layout)
        if node.choices:
            chosen = str(rest.pop())
            layout.sizes.append((place, chosen))
            member_of_union = dict(node.choices)[chosen]
            if member_of_union is not None:
                _lay_out(member_of_union, _below(place, chosen), rest, layout)
    elif node.kind in ("list", "floats"):
        _lay_out_elements(node, place, rest, layout)
    else:
        (layout.numbers if node.kind == "number" else layout.discrete).append(place)


def _lay_out_elements(node: Node, place: Place, rest: list[int | str], layout: Layout) -> None:
    count = rest.pop()
    assert isinstance(count, int)  # the shape is that of this node
    layout.sizes.append((place, count))
    element = node.element or Node("number")
    is_scalar = element.kind not in ("struct", "list")
    # Elements of a list of numbers go by the list's own name: position.x, laneLines[].y.
    pattern = place.pattern if is_scalar else f"{place.pattern}[]"
    for index in range(count):
        _lay_out(element, Place(pattern, f"{place.exact}[{index}]"), rest, layout)
    if node.kind == "floats":
        layout.discrete.append(place)


def _below(place: Place, name: str) -> Place:
    if not place.exact:
        return Place(name, name)
    return Place(f"{place.pattern}.{name}", f"{place.exact}.{name}")
