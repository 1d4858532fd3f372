"""Converts messages to plain values: flat columns by path, or nested dictionaries for JSON.

``flatten`` returns one value per path, such as ``laneLines[1].y``. Lists of numbers become arrays
of the schema's type. ``to_plain`` returns dictionaries and lists. Both return every field of the
schema, with defaults for unset ones, and the active member of each union. Names are those of the
schema, and enumerants are texts (``#7`` if the schema has no number 7). Pointers of unknown type
are omitted by ``flatten`` and None in ``to_plain``.

Any damage in a message raises MessageError. Pointers of a damaged message can overlap, so a small
message can expand to a huge value; more than ``MAX_BYTES`` is also a MessageError.
"""

from __future__ import annotations

import base64
import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from cereal.errors import MessageError
from cereal.schema import DAMAGED, log

Value = bool | int | float | str | bytes | list[str] | list[bytes] | NDArray[Any]
"""The value of one path in one message. Lists of numbers are (n,) arrays of the schema's type."""

DataAs = Literal["length", "base64"]
"""Representation of a Data field in JSON: ``{"bytes": 12}``, or its bytes as base64 text."""

# Largest expanded size of a message. An uncompressed camera image of 1928x1208 takes 3.5 MB.
MAX_BYTES = 64 << 20

DTYPES: Mapping[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: np.dtype(name) for name in ("float32", "float64")},
}
"""Type in the schema -> dtype of array elements."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type in the schema."""

    kind: str  # number, enum, text, data, struct, list, void or other
    dtype: np.dtype[Any] | None = None  # of a number
    enumerants: tuple[str, ...] = ()  # of an enum
    schema: Any = None  # pycapnp's schema of a struct
    element: Type | None = None  # element type of a list


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a structure."""

    name: str
    key: Any  # pycapnp's handle to read the field
    type: Type
    in_union: bool  # a union's member, which exists only if it is the active one


class Selection:
    """A selection of a message's fields.

    Args:
        paths: Paths as in `flatten`. A path selects everything below it, and a path without indices
            selects all elements of lists: ``laneLines.y``, ``laneLines[1]``, ``action``.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._tree: dict[str, Any] = {}
        for path in self.paths:
            node = self._tree
            for name in _without_indices(path).split("."):
                node = node.setdefault(name, {})
            node[""] = {}
        # Paths with indices must match exactly, the others in any element of a list.
        self._exact = [path for path in self.paths if "[" in path]
        self._loose = [path for path in self.paths if "[" not in path]

    @property
    def tree(self) -> dict[str, Any]:
        """Nested names; an empty name selects everything below."""
        return self._tree

    def filter(self, values: dict[str, Value]) -> dict[str, Value]:
        """Return the selected values, taking indices into account."""
        if not self._exact:
            return values
        return {path: value for path, value in values.items() if self._has(path)}

    def _has(self, path: str) -> bool:
        loose = _without_indices(path)
        return any(_is_below(path, wanted) for wanted in self._exact) or any(
            _is_below(loose, wanted) for wanted in self._loose
        )


def flatten(reader: Any, selection: Selection | None = None) -> dict[str, Value]:
    """Return the fields of a structure by path.

    `reader` is pycapnp's reader or builder of a structure, such as ``content(event)``. Only fields
    in the selection are read.

    Raises:
        MessageError: The message is damaged or expands beyond ``MAX_BYTES``.
    """
    values: dict[str, Value] = {}
    walk = _Flattening(values)
    _guarded(lambda: walk.struct(reader, fields_of(reader.schema), "", _tree_of(selection)))
    return selection.filter(values) if selection else values


def flatten_message(event: Any, selection: Selection | None = None) -> dict[str, Value]:
    """Return the content of an Event by path. If it is a list, paths begin with an index, ``[0]``.

    Raises:
        MessageError: As in `flatten`, or the message is newer than the schema.
    """
    values: dict[str, Value] = {}
    walk = _Flattening(values)

    def flatten_member() -> None:
        member = _member(event)
        walk.value(event._get_by_field(member.key), member.type, "", _tree_of(selection))

    _guarded(flatten_member)
    return selection.filter(values) if selection else values


def to_plain(reader: Any, data: DataAs = "length") -> dict[str, Any]:
    """Return a structure as nested dictionaries and lists for JSON.

    `data` selects the representation of Data fields.

    Raises:
        MessageError: As in `flatten`.
    """
    walk = _Plain(data)
    plain = _guarded(lambda: walk.struct(reader, fields_of(reader.schema)))
    return cast("dict[str, Any]", plain)


def message_to_plain(event: Any, data: DataAs = "length") -> Any:
    """Return the content of an Event for JSON: a dictionary, or a list if the message is one.

    Raises:
        MessageError: As in `flatten_message`.
    """
    walk = _Plain(data)

    def convert() -> Any:
        member = _member(event)
        return walk.value(event._get_by_field(member.key), member.type)

    return _guarded(convert)


def has_field(service: str, path: str) -> bool:
    """Return whether messages of a service can have values at a path, ignoring its indices."""
    kind: Type | None = next(f.type for f in fields_of(log.Event.schema) if f.name == service)
    for name in filter(None, _without_indices(path).split(".")):
        while kind is not None and kind.kind == "list":
            kind = kind.element
        if kind is None or kind.kind != "struct":
            return False
        kind = next((f.type for f in fields_of(kind.schema) if f.name == name), None)
    return kind is not None


class _Budget:
    """Limits the size of the expanded values."""

    def __init__(self) -> None:
        self._left = MAX_BYTES

    def spend(self, count: int) -> None:
        self._left -= count
        if self._left < 0:
            raise MessageError(
                f"message: expected at most {MAX_BYTES} bytes of values, found more; its pointers "
                "overlap, which is damage: skip it"
            )


class _Flattening(_Budget):
    def __init__(self, values: dict[str, Value]) -> None:
        super().__init__()
        self._values = values

    def struct(
        self, reader: Any, fields: Iterable[Field], prefix: str, tree: dict[str, Any] | None
    ) -> None:
        active = _active(reader)
        for field in fields:
            if field.in_union and field.name != active:
                continue
            below = tree
            if tree is not None:
                below = tree.get(field.name)
                if below is None:
                    continue
                below = None if "" in below else below
            path = f"{prefix}.{field.name}" if prefix else field.name
            self.value(reader._get_by_field(field.key), field.type, path, below)

    def value(self, value: Any, kind: Type, path: str, tree: dict[str, Any] | None) -> None:
        self.spend(8)
        if kind.kind == "struct":
            self.struct(value, fields_of(kind.schema), path, tree)
        elif kind.kind == "list" and kind.element is not None:
            self._list(value, kind.element, path, tree)
        elif kind.kind in ("text", "data"):
            self.spend(len(value))
            self._values[path] = value
        elif kind.kind == "enum":
            self._values[path] = _enumerant(value, kind)
        elif kind.kind == "number":
            self._values[path] = value
        elif isinstance(value, str | bytes):  # a field whose type is a generic parameter
            self.spend(len(value))
            self._values[path] = value

    def _list(self, items: Any, element: Type, path: str, tree: dict[str, Any] | None) -> None:
        count = len(items)
        # Count at least 8 bytes each: elements without data take no space in the message, so a
        # damaged one can claim any number of them.
        self.spend(count * (element.dtype.itemsize if element.dtype is not None else 8))
        if element.dtype is not None:
            self._values[path] = np.fromiter(items, element.dtype, count)
        elif element.kind in ("struct", "list"):
            for index, item in enumerate(items):
                self.value(item, element, f"{path}[{index}]", tree)
        elif element.kind == "enum":
            self._values[path] = [_enumerant(item, element) for item in items]
        elif element.kind in ("text", "data"):
            blobs = []
            for blob in items:
                self.spend(len(blob))
                blobs.append(blob)
            self._values[path] = blobs


class _Plain(_Budget):
    def __init__(self, data: DataAs) -> None:
        super().__init__()
        self._data = data

    def struct(self, reader: Any, fields: Iterable[Field]) -> dict[str, Any]:
        active = _active(reader)
        return {
            field.name: self.value(reader._get_by_field(field.key), field.type)
            for field in fields
            if not field.in_union or field.name == active
        }

    def value(self, value: Any, kind: Type) -> Any:
        self.spend(8)
        if kind.kind == "struct":
            return self.struct(value, fields_of(kind.schema))
        if kind.kind == "list" and kind.element is not None:
            self.spend(8 * len(value))
            if kind.element.dtype is not None:
                return list(value)
            return [self.value(item, kind.element) for item in value]
        if kind.kind == "enum":
            return _enumerant(value, kind)
        if kind.kind == "number":
            return value
        # Check the value's own type, because a generic parameter can be text or data.
        if isinstance(value, bytes):
            self.spend(len(value))
            if self._data == "length":
                return {"bytes": len(value)}
            return base64.b64encode(value).decode("ascii")
        if isinstance(value, str):
            self.spend(len(value))
            return value
        return None  # void, or a pointer of unknown type


def _guarded(walk: Callable[[], Any]) -> Any:
    try:
        return walk()
    # pycapnp raises RuntimeError for some messages that are newer than the schema.
    except (*DAMAGED, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        raise MessageError(
            "message: expected values of the schema's types, got "
            f"{lines[0] if lines else type(error).__name__}; it is damaged: skip it"
        ) from error


def _tree_of(selection: Selection | None) -> dict[str, Any] | None:
    return None if selection is None or "" in selection.tree else selection.tree


def _member(event: Any) -> Field:
    """Return the active member of an Event."""
    name = _active(event)
    for field in fields_of(log.Event.schema):
        if field.in_union and field.name == name:
            return field
    raise MessageError("event: expected a member of our schema, got a newer one; skip the message")


def _active(reader: Any) -> str | None:
    """Return the active member of the union; None if there is no union or the member is newer."""
    try:
        return cast("str", reader._which_str())
    except (*DAMAGED, RuntimeError):
        return None


def _enumerant(value: Any, kind: Type) -> str:
    number = value.raw
    return kind.enumerants[number] if number < len(kind.enumerants) else f"#{number}"


def fields_of(schema: Any) -> tuple[Field, ...]:
    """Return the fields of a structure's schema, including those of its union."""
    node = schema.node
    if node.isGeneric:  # its id does not include the parameters; only initData has such types
        return _list_fields(schema)
    return _fields_of(_Schema(node.id, schema))


class _Schema:
    """A structure's schema that is compared by its id, unlike pycapnp's."""

    def __init__(self, number: int, schema: Any) -> None:
        self.number = number
        self.schema = schema

    def __hash__(self) -> int:
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Schema) and other.number == self.number


@functools.lru_cache(maxsize=4096)
def _fields_of(schema: _Schema) -> tuple[Field, ...]:
    return _list_fields(schema.schema)


def _list_fields(schema: Any) -> tuple[Field, ...]:
    in_union = set(schema.union_fields)
    return tuple(
        Field(name, key, _type_of_field(key), name in in_union)
        for name, key in schema.fields.items()
    )


def _type_of_field(key: Any) -> Type:
    if key.proto.which() == "group":
        return Type("struct", schema=key.schema)
    kind = key.proto.slot.type
    # Only these types have a schema.
    schema = key.schema if str(kind.which()) in ("list", "enum", "struct") else None
    return _type_of(kind, schema)


def _type_of(kind: Any, schema: Any) -> Type:
    name = str(kind.which())
    if name in DTYPES:
        return Type("number", dtype=DTYPES[name])
    if name == "enum":
        by_number = sorted(schema.enumerants.items(), key=lambda item: cast("int", item[1]))
        return Type("enum", enumerants=tuple(str(text) for text, _ in by_number))
    if name == "struct":
        return Type("struct", schema=schema)
    if name == "list":
        element = kind.list.elementType
        has_schema = str(element.which()) in ("list", "enum", "struct")
        inner = schema.elementType if has_schema else None
        return Type("list", element=_type_of(element, inner))
    return Type(name if name in ("text", "data", "void") else "other")


def _without_indices(path: str) -> str:
    return re.sub(r"\[\d+\]", "", path).lstrip(".")


def _is_below(path: str, wanted: str) -> bool:
    return path.startswith(wanted) and path[len(wanted) : len(wanted) + 1] in ("", ".", "[")
