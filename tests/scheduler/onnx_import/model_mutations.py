"""Damage to ONNX models, by a random generator: bytes of a file, and fields of a message."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import numpy as np
import onnx
from onnx import AttributeProto, TensorProto, helper

from scheduler.onnx_import import TRANSLATORS

Rng = np.random.Generator
T = TypeVar("T")

INTS = (0, 1, -1, 2, 3, -2, 7, 64, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**62, -(2**63))
FLOATS = (0.0, -0.0, 1.0, -1.0, 0.5, 1e30, 1e-42, float("nan"), float("inf"), float("-inf"))
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
    """Return a copy with one to three fields changed."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for _ in range(int(rng.integers(1, 4))):
        graph = _graph(copy, rng)
        change = _CHANGES[int(rng.integers(len(_CHANGES)))]
        change(graph, rng)
    if rng.random() < 0.05 and copy.opset_import:
        copy.opset_import[0].version = _one_of(range(6, 30), rng)
    return copy


def _one_of(items: Sequence[T], rng: Rng) -> T:
    return items[int(rng.integers(len(items)))]


def _graph(model: onnx.ModelProto, rng: Rng) -> onnx.GraphProto:
    """Return the graph, or one inside of its nodes."""
    inner = [a.g for n in model.graph.node for a in n.attribute if a.HasField("g")]
    return _one_of(inner, rng) if inner and rng.random() < 0.5 else model.graph


def _node(graph: onnx.GraphProto, rng: Rng) -> onnx.NodeProto:
    return _one_of(graph.node, rng) if graph.node else onnx.NodeProto()


def _names(graph: onnx.GraphProto) -> list[str]:
    names = [v.name for v in (*graph.input, *graph.output)] + [t.name for t in graph.initializer]
    return ["", "nowhere", *names, *(o for n in graph.node for o in n.output)]


def _rewire(graph: onnx.GraphProto, rng: Rng) -> None:
    node = _node(graph, rng)
    names = node.input if rng.random() < 0.8 else node.output
    if names and rng.random() < 0.7:
        names[int(rng.integers(len(names)))] = _one_of(_names(graph), rng)
    elif names and rng.random() < 0.5:
        del names[int(rng.integers(len(names)))]
    else:
        names.append(_one_of(_names(graph), rng))


def _swap(graph: onnx.GraphProto, rng: Rng) -> None:
    node = _node(graph, rng)
    node.input[:] = [node.input[i] for i in rng.permutation(len(node.input))]


def _operator(graph: onnx.GraphProto, rng: Rng) -> None:
    _node(graph, rng).op_type = _one_of(OPS, rng)


def _drop(graph: onnx.GraphProto, rng: Rng) -> None:
    fields = (graph.node, graph.initializer, graph.input, graph.output)
    items = fields[min(3, int(rng.integers(6)))] if rng.random() < 0.5 else graph.node
    if items:
        del items[int(rng.integers(len(items)))]


def _repeat(graph: onnx.GraphProto, rng: Rng) -> None:
    if graph.node:
        graph.node.insert(int(rng.integers(len(graph.node))), _node(graph, rng))


def _attribute(graph: onnx.GraphProto, rng: Rng) -> None:
    node = _node(graph, rng)
    known = onnx.defs.get_schema(node.op_type).attributes if onnx.defs.has(node.op_type) else {}
    if rng.random() < 0.2 and node.attribute:
        del node.attribute[int(rng.integers(len(node.attribute)))]
    if known and rng.random() < 0.3:
        name = _one_of(sorted(known), rng)
        if name not in [a.name for a in node.attribute]:
            made = _made_up(name, rng)
            node.attribute.append(made)
            return
    if not node.attribute:
        return
    found = _one_of(node.attribute, rng)
    if found.type == AttributeProto.INT:
        found.i = _one_of(INTS, rng)
    elif found.type == AttributeProto.FLOAT:
        found.f = _one_of(FLOATS, rng)
    elif found.type == AttributeProto.STRING:
        found.s = _one_of(TEXTS, rng)
    elif found.type == AttributeProto.INTS:
        _change_ints(found.ints, rng)
    elif found.type == AttributeProto.TENSOR:
        _change_tensor(found.t, rng)
    else:
        found.type = int(rng.integers(15))


def _made_up(name: str, rng: Rng) -> AttributeProto:
    """Return an attribute of any simple type; onnx's checker knows which it should have."""
    values: tuple[object, ...] = (
        _one_of(INTS, rng),
        _one_of(INTS[:8], rng),
        _one_of(FLOATS, rng),
        _one_of(TEXTS, rng),
        [_one_of(INTS, rng) for _ in range(int(rng.integers(1, 5)))],
        [_one_of(INTS[:6], rng) for _ in range(int(rng.integers(1, 5)))],
        [_one_of(FLOATS, rng) for _ in range(int(rng.integers(1, 5)))],
    )
    return helper.make_attribute(name, _one_of(values, rng))


def _change_ints(values: Sequence[int], rng: Rng) -> None:
    new = list(values)
    if new and rng.random() < 0.7:
        new[int(rng.integers(len(new)))] = _one_of(INTS, rng)
    elif new and rng.random() < 0.5:
        new.pop()
    else:
        new.append(_one_of(INTS, rng))
    values[:] = new  # type: ignore[index]


def _change_tensor(tensor: TensorProto, rng: Rng) -> None:
    kind = int(rng.integers(4))
    if kind == 0:
        _change_ints(tensor.dims, rng)
    elif kind == 1:
        tensor.data_type = int(rng.integers(28))
    elif tensor.raw_data and kind == 2:
        tensor.raw_data = tensor.raw_data[: int(rng.integers(len(tensor.raw_data)))]
    elif tensor.data_type in (TensorProto.INT64, TensorProto.FLOAT) and tensor.raw_data:
        is_int = tensor.data_type == TensorProto.INT64
        whole = len(tensor.raw_data) // 8 * 8  # it may have been cut before
        values = np.frombuffer(tensor.raw_data[:whole], "<i8" if is_int else "<f4").copy()
        if values.size:
            values[int(rng.integers(values.size))] = _one_of(INTS if is_int else FLOATS, rng)
        tensor.raw_data = values.tobytes()
    elif tensor.int64_data:
        _change_ints(tensor.int64_data, rng)


def _initializer(graph: onnx.GraphProto, rng: Rng) -> None:
    if graph.initializer:
        _change_tensor(_one_of(graph.initializer, rng), rng)


def _port(graph: onnx.GraphProto, rng: Rng) -> None:
    ports = [*graph.input, *graph.output[: int(rng.integers(2))]]
    if not ports:
        return
    kind = _one_of(ports, rng).type.tensor_type
    if rng.random() < 0.3:
        kind.elem_type = int(rng.integers(28))
    elif kind.shape.dim and rng.random() < 0.8:
        _one_of(kind.shape.dim, rng).dim_value = _one_of(INTS, rng)
    else:
        kind.shape.dim.add().dim_value = int(rng.integers(4))


_CHANGES: tuple[Callable[[onnx.GraphProto, Rng], None], ...] = (
    _rewire,
    _swap,
    _operator,
    _drop,
    _repeat,
    _attribute,
    _attribute,
    _initializer,
    _initializer,
    _port,
)
