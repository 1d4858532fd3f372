"""Messages as plain values: flat named columns, or nested dictionaries for JSON.

``flatten`` gives one value for each path, as in ``laneLines[1].y``: lists of numbers are arrays of
the schema's own type. ``to_plain`` gives dictionaries and lists. Both give every field of the
schema, unset ones with their defaults; of a union the member that is set. Names are the schema's,
enumerants are text (``#7`` where the schema does not know number 7), pointers of unknown type are
left out, in JSON null.

A damaged message is one error, whatever is wrong with it; and since pointers may overlap, so that a
small damaged message could stand for a huge one, it may not expand beyond ``MAX_BYTES``.
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
"""One column of one message: lists of numbers as (n,) arrays of the schema's type."""

DataAs = Literal["length", "base64"]
"""What stands for a Data field in JSON: ``{"bytes": 12}``, or its bytes as base64 text."""

# A whole message of a camera, 1928x1208 and uncompressed, takes 3.5 MB.
MAX_BYTES = 64 << 20

DTYPES: Mapping[str, np.dtype[Any]] = {
    "bool": np.dtype(np.bool_),
    **{name: np.dtype(name) for name in ("int8", "int16", "int32", "int64")},
    **{name: np.dtype(name) for name in ("uint8", "uint16", "uint32", "uint64")},
    **{name: np.dtype(name) for name in ("float32", "float64")},
}
"""Type of the schema -> type of the array's elements."""


@dataclass(frozen=True, slots=True)
class Type:
    """A type of the schema.

    `kind` is ``number``, ``enum``, ``text``, ``data``, ``struct``, ``list``, ``void`` or ``other``;
    `dtype` is that of a number, `schema` pycapnp's of a structure.
    """

    kind: str
    dtype: np.dtype[Any] | None = None
    enumerants: tuple[str, ...] = ()
    schema: Any = None
    element: Type | None = None


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a structure; pycapnp reads it by `key`.

    A field `in_union` exists only while it is the member that is set.
    """

    name: str
    key: Any
    type: Type
    in_union: bool


class Selection:
    """The wanted fields of a message.

    Args:
        paths: as `flatten` names them; a path stands for all below it, and one without indices for
            all elements: ``laneLines.y``, ``laneLines[1]``, ``action``.
    """

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._tree: dict[str, Any] = {}
        for path in self.paths:
            node = self._tree
            for name in _without_indices(path).split("."):
                node = node.setdefault(name, {})
            node[""] = {}
        # A list's own elements have no name: paths of such messages begin with an index.
        self._exact = [path for path in self.paths if "[" in path]
        self._loose = [path for path in self.paths if "[" not in path]

    @property
    def tree(self) -> dict[str, Any]:
        """Nested names; an empty name selects everything below."""
        return self._tree

    def filter(self, values: dict[str, Value]) -> dict[str, Value]:
        """Return those of the values that are wanted, looking at indices too."""
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

    `reader` is a reader or builder of a structure, such as ``content(event)``. Fields outside the
    selection are not read.

    Raises:
        MessageError: a pointer inside is damaged, or the message expands beyond ``MAX_BYTES``.
    """
    values: dict[str, Value] = {}
    walk = _Flattening(values)
    _guarded(lambda: walk.struct(reader, fields_of(reader.schema), "", _tree_of(selection)))
    return selection.filter(values) if selection else values


def flatten_message(event: Any, selection: Selection | None = None) -> dict[str, Value]:
    """Return the content of an Event by path; the paths of lists begin with ``[0]``.

    Raises:
        MessageError: as `flatten`, or the message is newer than the schema.
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

    `data` chooses what represents Data fields.

    Raises:
        MessageError: as `flatten`.
    """
    walk = _Plain(data)
    plain = _guarded(lambda: walk.struct(reader, fields_of(reader.schema)))
    return cast("dict[str, Any]", plain)


def message_to_plain(event: Any, data: DataAs = "length") -> Any:
    """Return the content of an Event for JSON: a dictionary, of list messages a list.

    Raises:
        MessageError: as `flatten_message`.
    """
    walk = _Plain(data)

    def convert() -> Any:
        member = _member(event)
        return walk.value(event._get_by_field(member.key), member.type)

    return _guarded(convert)


def has_field(service: str, path: str) -> bool:
    """Return whether messages of a service may have values at a path, whatever its indices."""
    kind: Type | None = next(f.type for f in fields_of(log.Event.schema) if f.name == service)
    for name in filter(None, _without_indices(path).split(".")):
        while kind is not None and kind.kind == "list":
            kind = kind.element
        if kind is None or kind.kind != "struct":
            return False
        kind = next((f.type for f in fields_of(kind.schema) if f.name == name), None)
    return kind is not None


class _Budget:
    """Counts what has been expanded."""

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
        elif isinstance(value, str | bytes):  # a parameter of a generic structure
            self.spend(len(value))
            self._values[path] = value

    def _list(self, items: Any, element: Type, path: str, tree: dict[str, Any] | None) -> None:
        count = len(items)
        # Elements without any bits cost nothing on the wire, so that their number may be anything.
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
        # By what it is: a parameter of a generic structure may be either.
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
    # pycapnp says RuntimeError where a message is newer than the schema in ways it did not foresee.
    except (*DAMAGED, RuntimeError) as error:
        lines = str(error).strip().splitlines()
        raise MessageError(
            "message: expected values of the schema's types, got "
            f"{lines[0] if lines else type(error).__name__}; it is damaged: skip it"
        ) from error


def _tree_of(selection: Selection | None) -> dict[str, Any] | None:
    return None if selection is None or "" in selection.tree else selection.tree


def _member(event: Any) -> Field:
    """Return the field of Event that is set."""
    name = _active(event)
    for field in fields_of(log.Event.schema):
        if field.in_union and field.name == name:
            return field
    raise MessageError("event: expected a member of our schema, got a newer one; skip the message")


def _active(reader: Any) -> str | None:
    """Return the member of the union that is set; None without a union, or if it is newer."""
    try:
        return cast("str", reader._which_str())
    except (*DAMAGED, RuntimeError):
        return None


def _enumerant(value: Any, kind: Type) -> str:
    number = value.raw
    return kind.enumerants[number] if number < len(kind.enumerants) else f"#{number}"


def fields_of(schema: Any) -> tuple[Field, ...]:
    """Return the fields of a structure's schema, those of its union among them."""
    node = schema.node
    if node.isGeneric:  # its number does not say of what; only initData has such
        return _list_fields(schema)
    return _fields_of(_Schema(node.id, schema))


class _Schema:
    """A structure's schema that compares by its number, as pycapnp's own do not."""

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
    # Only these have a schema of their own.
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
