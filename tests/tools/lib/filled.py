"""Messages with a value in every field of the schema, and what has which value.

Knows nothing of `tools.messages.message_values`, which is tested with it: what a leaf is called is
said as a tuple of names and indices.
"""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from cereal.schema import log, new_event

MEMBERS: Final = sorted(log.Event.schema.union_fields)
Leaf = tuple[str | int, ...]
# Elements of each list.
COUNT: Final = 2
# Without a new member of any union, until there is none: one union may lie in another.
ROUNDS: Final = 6
_INTEGERS: Final = {
    f"{sign}int{bits}": (-(2 ** (bits - 1)) if not sign else 0, 2 ** (bits - (not sign)) - 1)
    for sign in ("", "u")
    for bits in (8, 16, 32, 64)
}
_FINITE: Final = (0.5, -1.0, 2.0**20)


class _Filler:
    """Gives every field a value; of each union the member that had fewest turns.

    Args:
        floats: values of numbers with a point, in turn.
        is_short: lists are empty.
    """

    def __init__(self, floats: tuple[float, ...], *, is_short: bool) -> None:
        self.leaves: dict[Leaf, Any] = {}
        self.turns: Counter[tuple[int, str]] = Counter()
        self._floats = itertools.cycle(floats)
        self._number = itertools.count(1)
        self._count = 0 if is_short else COUNT

    def struct(self, builder: Any, path: Leaf) -> None:
        schema = builder.schema
        union = set(schema.union_fields)
        chosen = None
        if union:
            chosen = min(sorted(union), key=lambda name: self.turns[schema.node.id, name])
            self.turns[schema.node.id, chosen] += 1
        for name, field in schema.fields.items():
            if name not in union or name == chosen:
                self.field(builder, name, field, (*path, name))

    def field(self, builder: Any, name: str, field: Any, path: Leaf) -> None:
        if field.proto.which() == "group":
            self.struct(builder.init(name), path)
            return
        kind = field.proto.slot.type
        which = str(kind.which())
        if which == "struct":
            self.struct(builder.init(name), path)
        elif which == "list":
            items = builder.init(name, self._count)
            self.items(items, kind.list.elementType, field.schema, path)
        elif which == "void":
            setattr(builder, name, None)
        else:
            self.leaf(builder, name, which, field, path)

    def leaf(self, builder: Any, name: str, which: str, field: Any, path: Leaf) -> None:
        value = self.value(which, field.schema if which == "enum" else None)
        setattr(builder, name, value)
        if which == "anyPointer":  # a parameter of Map, which is Text or Data
            try:
                getattr(builder, name)
            except UnicodeDecodeError:
                value = self.value("text")
                setattr(builder, name, value)
        self.leaves[path] = value

    def items(self, items: Any, kind: Any, schema: Any, path: Leaf) -> None:
        which = str(kind.which())
        if which not in ("struct", "list"):
            enum = schema.elementType if which == "enum" else None
            self.leaves[path] = [self.value(which, enum) for _ in range(self._count)]
            for index, value in enumerate(self.leaves[path]):
                items[index] = value
        for index in range(self._count):
            if which == "struct":
                self.struct(items[index], (*path, index))
            elif which == "list":
                inner = items.init(index, self._count)
                self.items(inner, kind.list.elementType, schema.elementType, (*path, index))

    def value(self, kind: str, enum: Any = None) -> Any:
        number = next(self._number)
        if kind == "bool":
            return bool(number % 2)
        if kind in _INTEGERS:
            low, high = _INTEGERS[kind]
            return (low, high)[number % 2] + number % 100 * (1, -1)[number % 2]
        if kind in ("float32", "float64"):
            return next(self._floats)
        if kind == "text":
            return f"text {number}, ä"
        if kind in ("data", "anyPointer"):
            return b"\xff" + str(number).encode()
        names = list(enum.enumerants)
        return names[number % len(names)]


def filled(
    member: str, floats: tuple[float, ...] = _FINITE, *, is_short: bool = False
) -> Iterator[tuple[bytes, dict[Leaf, Any]]]:
    """Yield Events of a member, and the values of their leaves, until every union had every member.

    Args:
        member: of Event.
        floats: values of numbers with a point, in turn.
        is_short: lists are empty.
    """
    filler = _Filler(floats, is_short=is_short)
    field = log.Event.schema.fields[member]
    stale = 0
    while stale <= (ROUNDS if filler.turns else 0):
        known = len(filler.turns)
        event = new_event(member, mono_time_ns=7, valid=True)
        filler.leaves = {}
        filler.field(event, member, field, ())
        stale = 0 if len(filler.turns) > known else stale + 1
        yield bytes(event.to_bytes()), filler.leaves


def name_of(member: str, leaf: Leaf) -> str:
    return "".join(
        [member, *(f"[{step}]" if isinstance(step, int) else f".{step}" for step in leaf)]
    )
