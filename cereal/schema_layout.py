"""The parts of a Cap'n Proto schema that determine the bytes of its messages, as plain values.

`python -m cereal.schema_layout FILE` prints the layout of a foreign schema as JSON. It runs as a
separate process for two reasons: a foreign schema uses the same type IDs as ours, which one process
cannot load twice, and a malformed file must not use unbounded time or memory.
"""

import functools
import json
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NotRequired, TypedDict

import capnp

MAX_CPU_S: Final = 20
MAX_MEMORY_BYTES: Final = 2 << 30
_NO_MEMBER: Final = 0xFFFF
_NAMED: Final = ("struct", "enum")


class TypeLayout(TypedDict):
    """A type."""

    kind: str  # Cap'n Proto's name, such as "struct" or "uint8"
    id: NotRequired[str]  # ID of a struct or enum
    element: NotRequired["TypeLayout"]  # type of a list's elements


class FieldLayout(TypedDict):
    """A field of a struct."""

    name: str  # with the names of its groups, separated by dots
    type: TypeLayout
    offset: int  # in units of the field's size
    member: int | None  # its number in a union; None outside of unions


class SchemaLayout(TypedDict):
    """A schema: its structs, their fields and its enums."""

    root: str  # ID of the struct at the root of each message
    names: dict[str, str]  # struct or enum ID -> name
    # Struct ID -> field ordinal, as text -> field. The fields of groups are included.
    structs: dict[str, dict[str, FieldLayout]]
    enums: dict[str, list[str]]  # enum ID -> names of the enumerants, in order


def layout_of(schema: Any) -> SchemaLayout:
    """Return the layout of a struct schema and of all types that it uses."""
    layout = SchemaLayout(root=_number(schema), names={}, structs={}, enums={})
    _add_struct(schema, layout)
    return layout


def _number(schema: Any) -> str:
    return f"{schema.node.id:#x}"


def _name(schema: Any) -> str:
    return str(schema.node.displayName).rsplit(":", 1)[-1]


def _add_struct(schema: Any, layout: SchemaLayout) -> None:
    number = _number(schema)
    if number not in layout["structs"]:
        layout["names"][number] = _name(schema)
        fields = layout["structs"][number] = {}
        _add_fields(schema, "", fields, layout)


def _add_fields(
    schema: Any, prefix: str, fields: dict[str, FieldLayout], layout: SchemaLayout
) -> None:
    for name, field in schema.fields.items():
        proto = field.proto
        if proto.which() == "group":
            _add_fields(field.schema, f"{prefix}{name}.", fields, layout)
            continue
        member = int(proto.discriminantValue)
        fields[str(proto.ordinal.explicit)] = FieldLayout(
            name=f"{prefix}{name}",
            type=_type(proto.slot.type, functools.partial(getattr, field, "schema"), layout),
            offset=int(proto.slot.offset),
            member=None if member == _NO_MEMBER else member,
        )


def _type(kind: Any, schema_of: Callable[[], Any], layout: SchemaLayout) -> TypeLayout:
    """Return the layout of a type; `schema_of` returns the schema of a list, struct or enum."""
    which = str(kind.which())
    if which == "list":
        inner = kind.list.elementType
        return TypeLayout(kind=which, element=_type(inner, lambda: schema_of().elementType, layout))
    return _named(which, schema_of(), layout) if which in _NAMED else TypeLayout(kind=which)


def _named(which: str, schema: Any, layout: SchemaLayout) -> TypeLayout:
    if which == "struct":
        _add_struct(schema, layout)
    else:
        layout["names"][_number(schema)] = _name(schema)
        by_number = sorted(schema.enumerants.items(), key=lambda item: int(item[1]))
        layout["enums"][_number(schema)] = [str(name) for name, _ in by_number]
    return TypeLayout(kind=which, id=_number(schema))


def main(path: str) -> int:
    """Print the layout of struct Event in a schema file, or the reason that it is unreadable."""
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    capnp.remove_import_hook()
    try:
        loaded = capnp.load(str(Path(path)))
        print(json.dumps(layout_of(loaded.Event.schema)))  # noqa: T201 - a program's result
    except AttributeError:
        print("expected a structure Event, found none", file=sys.stderr)  # noqa: T201
        return 1
    except Exception as error:  # noqa: BLE001 - whatever a foreign file makes of the library
        lines = str(error).strip().splitlines() or [type(error).__name__]
        print(lines[0], file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1]))
