"""Computes the digest of a graph's structure, equal in every process and on every machine.

digest(conv(x, w) + b)  ==  digest of the same graph built again, w and b with equal values
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import SchedulerError
from scheduler.ir.dtype import DType
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins


def graph_digest(roots: Mapping[str, Node] | Iterable[Node], origins: Origins | None = None) -> str:
    """Return the sha256 of a graph's structure and of the values of its weights, in hexadecimal.

    The digest includes names of roots, if `roots` has them, and `origins`, if given: kernels have
    them in comments. Raises SchedulerError if an argument has no canonical text (an internal
    error).
    """
    named = list(roots.items()) if isinstance(roots, Mapping) else [("", r) for r in roots]
    order = toposort([node for _, node in named])
    position = {node: i for i, node in enumerate(order)}
    digest = hashlib.sha256()
    for node in order:
        sources = ",".join(str(position[s]) for s in node.src)
        line = f"{node.op.name} {node.dtype.name} ({sources}) {_argument(node)}"
        if origins is not None:
            line += f" {canonical(origins.of(node))}"
        digest.update(line.encode())
        digest.update(b"\n")
    for name, node in named:
        digest.update(f"root {name!r} {position[node]}\n".encode())
    return digest.hexdigest()


def _argument(node: Node) -> str:
    if node.op is not Op.BUFFER:
        return canonical(node.arg)
    buffer: Buffer = node.arg
    # Values of inputs and states are given at run time; the compiler does not see them.
    content = ""
    if buffer.kind == "weight" and buffer.data is not None:
        content = _content(buffer, buffer.data)
    which = (buffer.kind, buffer.name, buffer.shape, buffer.dtype, buffer.partial)
    return canonical((*which, content))


def canonical(value: object) -> str:
    """Return a text that is equal for equal values only: 1, 1.0 and True differ.

    Values are None, bool, int, float, str, bytes, numpy scalars, DType, and Enum members, or
    tuples, mappings and dataclasses of these. Raises SchedulerError for any other type.
    """
    if isinstance(value, tuple):
        # Arguments are nested at most three levels deep, so recursion is safe.
        return "(" + " ".join(canonical(v) for v in value) + ")"
    if isinstance(value, Mapping):
        return "{" + " ".join(f"{canonical(k)}:{canonical(v)}" for k, v in value.items()) + "}"
    if isinstance(value, DType):
        return value.name
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, float):
        return value.hex()  # includes numpy's float64, a subclass of float
    if value is None or isinstance(value, bool | int | str | bytes):
        return repr(value)
    if isinstance(value, np.generic):
        return f"{value.dtype.str}{value.tobytes().hex()}"
    if is_dataclass(value) and not isinstance(value, type):
        # excludes a custom kernel's reference, which has no text
        shown = [f for f in fields(value) if f.repr]
        parts = " ".join(f"{f.name}={canonical(getattr(value, f.name))}" for f in shown)
        return f"{type(value).__name__}({parts})"
    raise SchedulerError(
        f"digest of a graph: an argument of type {type(value).__name__} has no canonical text; "
        "write one in scheduler/ir/digest.py"
    )


def content_digest(data: NDArray[Any]) -> str:
    """Return the sha256 of an array's type, shape and values."""
    values = np.asarray(data, order="C")
    digest = hashlib.sha256(f"{data.dtype}{data.shape}".encode())
    digest.update(values.reshape(-1).view(np.uint8).data)
    return digest.hexdigest()


def _content(weight: Buffer, data: NDArray[Any]) -> str:
    """Return the digest of a weight; it is cached if the values are read-only."""
    known = weight.content or content_digest(data)
    if not weight.content and _is_frozen(data):
        weight.content = known
    return known


def _is_frozen(data: NDArray[Any]) -> bool:
    """Whether values are read-only, in this array and in all arrays that it is a view of."""
    array: object = data
    while isinstance(array, np.ndarray):
        if array.flags.writeable:
            return False
        array = array.base
    return array is None or isinstance(array, bytes)
