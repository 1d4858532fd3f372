"""Damage to ONNX models, by a random generator: bytes of a file, and fields of a message."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import onnx
from google.protobuf.message import Message
from onnx import helper

from scheduler.onnx_import import TRANSLATORS

Rng = np.random.Generator
T = TypeVar("T")

INTS = (0, 1, -1, 2, 3, -2, 7, 64, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e30, 1e-42, float("nan"), float("inf"), float("-inf"))
LISTED: tuple[Sequence[float], ...] = (INTS, INTS[:6], FLOATS)
TEXTS = (b"", b"linear", b"SAME_UPPER", b"VALID", b"reflect", b"none", b"NOTSET", b"\xff", b"a\nb")
OPS = (*sorted(op for op in TRANSLATORS if ":" not in op), "NonZero", "Foo", "")


def damaged_bytes(data: bytes, other: bytes, rng: Rng) -> bytes:
    """Return a file with flipped, cut, repeated or foreign bytes."""
    kind = int(rng.integers(5))
    at, end = sorted(int(i) for i in rng.integers(0, len(data) + 1, 2))
    if kind == 0:
        return data[:at]
    if kind == 1:  # a part of another model
        start = int(rng.integers(len(other) + 1))
        return data[:at] + other[start : start + end - at] + data[end:]
    if kind == 2:
        return data[:at] + data[end:]
    changed = bytearray(data)
    # Most of a model of any size are weights: structure is at both ends.
    reach = len(changed) if kind == 3 else min(len(changed), 400)
    for _ in range(int(rng.integers(1, 5))):
        where = int(rng.integers(reach))
        changed[where if rng.random() < 0.5 else len(changed) - 1 - where] = int(rng.integers(256))
    return bytes(changed)


def damaged_model(model: onnx.ModelProto, rng: Rng) -> onnx.ModelProto:
    """Return a copy with one to three fields changed, also in graphs inside of its nodes."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(int(rng.integers(1, 4))):
        inner = [a.g for n in copy.graph.node for a in n.attribute if a.HasField("g")]
        graph = _one_of(inner, rng) if inner and rng.random() < 0.5 else copy.graph
        if graph.node and rng.random() < 0.2:
            _give_attribute(_one_of(graph.node, rng), rng)
        else:
            _damage(graph, _names(graph), rng)
    if rng.random() < 0.05 and copy.opset_import:
        copy.opset_import[0].version = _one_of(range(6, 30), rng)
    return copy


def _one_of(items: Sequence[T], rng: Rng) -> T:
    return items[int(rng.integers(len(items)))]


def _names(graph: onnx.GraphProto) -> list[str]:
    names = [v.name for v in (*graph.input, *graph.output)] + [t.name for t in graph.initializer]
    return ["", "nowhere", *names, *(o for n in graph.node for o in n.output)]


def _damage(message: Any, names: Sequence[str], rng: Rng) -> None:
    """Change a field of a message, or of one inside of it: drop, repeat, reorder, replace."""
    fields = [field for field, _ in message.ListFields()]
    if not fields:
        return
    field = _one_of(fields, rng)
    found = getattr(message, field.name)
    if isinstance(found, Message):
        _damage(found, names, rng)
    elif not isinstance(found, Sequence) or isinstance(found, str | bytes):
        _replace(message, field.name, _value(field.name, found, names, rng))
    else:
        items, at = list(found), int(rng.integers(len(found)))
        how = rng.random()
        if isinstance(items[at], Message) and how < 0.7:
            _damage(found[at], names, rng)
        elif how < 0.5:
            items[at] = _value(field.name, items[at], names, rng)
        elif how < 0.75:
            del items[at]
        elif how < 0.85:
            items.insert(int(rng.integers(len(items))), items[at])
        else:
            items = [items[i] for i in rng.permutation(len(items))]
        if not isinstance(found[at], Message) or how >= 0.7:
            kept = [_copied(item) for item in items]
            message.ClearField(field.name)
            getattr(message, field.name).extend(kept)


def _copied(item: Any) -> Any:
    if not isinstance(item, Message):
        return item
    copy = type(item)()
    copy.CopyFrom(item)
    return copy


def _replace(message: Any, name: str, value: object) -> None:
    with suppress(ValueError):  # of enumerations, which the library checks, and too large numbers
        setattr(message, name, value)


def _value(name: str, old: object, names: Sequence[str], rng: Rng) -> Any:
    """Return another value of a field's type; one that means something to that field, if any."""
    if name in ("data_type", "elem_type", "type"):
        return int(rng.integers(28))
    if name == "raw_data" and isinstance(old, bytes) and rng.random() < 0.5:
        return old[: int(rng.integers(len(old) + 1))]
    if name == "raw_data" and isinstance(old, bytes):
        values = np.frombuffer(old[: len(old) // 8 * 8], "<i8").copy()
        values[rng.integers(values.size) if values.size else ...] = _one_of(INTS, rng)
        return values.tobytes()
    if isinstance(old, bytes):
        return _one_of(TEXTS, rng)
    if isinstance(old, str):
        return _one_of(OPS if name == "op_type" else names, rng)
    return _one_of(FLOATS, rng) if isinstance(old, float) else _one_of(INTS, rng)


def _give_attribute(node: onnx.NodeProto, rng: Rng) -> None:
    """Add an attribute of any simple type; onnx's checker knows which it should have."""
    known = onnx.defs.get_schema(node.op_type).attributes if onnx.defs.has(node.op_type) else {}
    missing = sorted(set(known) - {a.name for a in node.attribute})
    values = [
        *(_one_of(kind, rng) for kind in (INTS, INTS[:8], FLOATS, TEXTS)),
        *([_one_of(kind, rng) for _ in range(int(rng.integers(1, 5)))] for kind in LISTED),
    ]
    if missing:
        node.attribute.append(helper.make_attribute(_one_of(missing, rng), _one_of(values, rng)))
