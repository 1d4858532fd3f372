"""Events as plain columns: every leaf of a message under its path, and back again.

A message is a skeleton, which says what is where and how long lists are, and the values of its
leaves in the skeleton's order. Messages of one service nearly always share a skeleton.
"""

from __future__ import annotations

import zlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import capnp

from cereal.schema import log
from tools.lib.json_output import json_text
from tools.regress.errors import ReferenceFormatError

# Kinds of leaves, as skeletons name them.
FLOAT, INTEGER, BOOL, TEXT, DATA = "f", "i", "b", "s", "d"
KINDS: Final = (FLOAT, INTEGER, BOOL, TEXT, DATA)
_KIND_OF_TYPE: Final[dict[type, str]] = {
    float: FLOAT,
    int: INTEGER,
    bool: BOOL,
    str: TEXT,
    bytes: DATA,
}
_ZEROS: Final[dict[str, Any]] = {FLOAT: 0.0, INTEGER: 0, BOOL: False, TEXT: "", DATA: b""}

# (service, field) -> whether it is measured anew in each run, and not kept.
IsMeasured = Callable[[str, str], bool]


@dataclass(slots=True)
class Leaves:
    """One message taken apart.

    Attributes:
        service: the Event's member.
        skeleton: JSON text.
        values: leaf path -> its values in order, lists joined; measured ones are zero.
        kinds: leaf path -> one of ``KINDS``.
    """

    service: str
    skeleton: str
    values: dict[str, list[Any]] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)

    def digest(self) -> int:
        """Return the CRC-32 of the exact content: structure, and every bit of every value."""
        # Without spaces: how JSON is laid out is not what a message says. No name has any.
        crc = zlib.crc32(self.skeleton.replace(" ", "").encode())
        for path, values in self.values.items():
            kind = self.kinds[path]
            exact = array("d", values).tobytes() if kind == FLOAT else repr(values).encode()
            crc = zlib.crc32(exact, crc)
        return crc


def take_apart(event: Any, is_measured: IsMeasured) -> Leaves:
    """Return the leaves of an Event.

    Args:
        event: an Event reader.
        is_measured: leaves that become zero, by service and path below it (``.valid`` for the
            Event's own).
    """
    content = event.to_dict()
    service = str(event.which())
    leaves = Leaves(service, "")
    walk = _Walk(service, leaves, is_measured)
    leaves.skeleton = json_text(walk.skeleton(content, ""))
    return leaves


class _Walk:
    def __init__(self, service: str, leaves: Leaves, is_measured: IsMeasured) -> None:
        self._service = service
        self._leaves = leaves
        self._is_measured = is_measured

    def skeleton(self, value: Any, path: str) -> Any:
        """Return the structure of a value and collect its leaves."""
        if isinstance(value, dict):
            return {
                key: self.skeleton(item, f"{path}.{key}" if path else key)
                for key, item in value.items()
            }
        if isinstance(value, list):
            if value and isinstance(value[0], dict | list):
                return [self.skeleton(item, f"{path}[]") for item in value]
            kind = _KIND_OF_TYPE[type(value[0])] if value else INTEGER
            self._collect(path, kind, value)
            return [kind, len(value)]
        kind = _KIND_OF_TYPE.get(type(value), TEXT)
        self._collect(path, kind, [value])
        return kind

    def _collect(self, path: str, kind: str, values: list[Any]) -> None:
        if not values:
            return
        if self._is_measured(self._service, field_of(self._service, path)):
            values = [_ZEROS[kind]] * len(values)
        if self._leaves.kinds.setdefault(path, kind) != kind:
            raise ReferenceFormatError(
                f"{path}: expected values of one kind, found {kind} and {self._leaves.kinds[path]}"
            )
        self._leaves.values.setdefault(path, []).extend(values)


def field_of(service: str, path: str) -> str:
    """Return the name comparisons use: below the service, ``.valid`` for members of the Event."""
    if path == service:
        return ""
    if path.startswith(f"{service}."):
        return path[len(service) + 1 :]
    return f".{path}"


def leaf_places(skeleton: Any) -> Iterator[tuple[str, str, int]]:
    """Yield path, kind and number of values of each run of leaves, in a skeleton's order.

    Raises:
        ReferenceFormatError: it is no skeleton.
    """
    yield from _places(skeleton, "")


def _places(node: Any, path: str) -> Iterator[tuple[str, str, int]]:
    if isinstance(node, dict):
        for key, item in node.items():
            yield from _places(item, f"{path}.{key}" if path else key)
    elif _is_leaf_list(node):
        yield path, node[0], node[1]
    elif isinstance(node, list):
        for item in node:
            yield from _places(item, f"{path}[]")
    elif node in KINDS:
        yield path, node, 1
    else:
        raise ReferenceFormatError(f"skeleton: {path}: found {node!r}, which is no leaf")


def _is_leaf_list(node: Any) -> bool:
    return (
        isinstance(node, list)
        and len(node) == 2
        and node[0] in KINDS
        and isinstance(node[1], int)
        and 0 <= node[1] < 1 << 24
    )


def put_together(skeleton: Any, values: Mapping[str, Iterator[Any]]) -> bytes:
    """Return the Event's bytes.

    Args:
        skeleton: what `take_apart` found, as a Python value.
        values: leaf path -> its values; each is advanced by what the message takes.

    Raises:
        ReferenceFormatError: there are too few values, or no Event has such fields.
    """
    try:
        event = log.Event.new_message(**_filled(skeleton, "", values))
        return bytes(event.to_bytes())
    except (capnp.KjException, ValueError, TypeError, OverflowError) as error:
        raise ReferenceFormatError(f"message: cannot be put together: {error}") from error


def _filled(node: Any, path: str, values: Mapping[str, Iterator[Any]]) -> Any:
    if isinstance(node, dict):
        return {
            key: _filled(item, f"{path}.{key}" if path else key, values)
            for key, item in node.items()
        }
    if _is_leaf_list(node):
        return [_next(path, values) for _ in range(node[1])]
    if isinstance(node, list):
        return [_filled(item, f"{path}[]", values) for item in node]
    return _next(path, values)


def _next(path: str, values: Mapping[str, Iterator[Any]]) -> Any:
    try:
        return next(values[path])
    except (KeyError, StopIteration) as error:
        raise ReferenceFormatError(f"message: expected another value of {path}") from error
