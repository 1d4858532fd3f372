"""Interning tables map a structure to its one object and forget it with its last user."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar
from weakref import ref

Value = TypeVar("Value")


class _Entry(ref[Value]):
    """A weak reference to an object, with the key it is found by."""

    __slots__ = ("key",)

    key: Hashable


class Interned(Generic[Value]):
    """A table from structure to the one object of that structure."""

    __slots__ = ("_entries", "_forget")

    def __init__(self) -> None:
        entries: dict[Hashable, _Entry[Value]] = {}

        def forget(entry: ref[Value]) -> None:
            assert isinstance(entry, _Entry)
            if entries.get(entry.key) is entry:  # else it has been made again meanwhile
                del entries[entry.key]

        self._entries = entries
        self._forget = forget

    def get(self, key: Hashable) -> Value | None:
        """Return the object of a structure, None if there is none now."""
        entry = self._entries.get(key)
        return None if entry is None else entry()

    def __setitem__(self, key: Hashable, value: Value) -> None:
        entry = _Entry(value, self._forget)
        entry.key = key
        self._entries[key] = entry

    def __len__(self) -> int:
        return len(self._entries)
