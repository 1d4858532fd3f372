"""Stores weights and intermediates as float16 but computes with float32.

    w (float32), conv(x, w)      ->   conv(x, cast(w', float32))       w' = half(w), on the host
    y = relu(conv), stored       ->   y' = cast(relu(conv), half), stored
    z = f(y)                     ->   z = f(cast(y', float32))

Only stored values are rounded. The casts are nodes of the graph, so the interpreter computes the
same results.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np

from scheduler.device.spec import DeviceSpec
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type
from scheduler.ir.node import Buffer, Node, consumers, is_weight, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.origin import Origins
from scheduler.ir.rewrite import with_sources
from scheduler.passes.eight_bits.byte_products import eight_bit_weight
from scheduler.passes.halves.keep_float import BIAS, reasons

FP32: Final = "fp32"
FP16: Final = "fp16"
PRECISIONS: Final = (FP32, FP16)


@dataclass(frozen=True, slots=True)
class Kept:
    """A value or weight that remains float32."""

    name: str  # the weight's name, or the ONNX nodes that compute the value or read the weight
    is_weight: bool
    shape: tuple[int, ...]
    reason: str  # a short phrase

    @property
    def bytes(self) -> int:
        """Size in float32, in bytes."""
        return dt.float32.itemsize * prod(self.shape)


@dataclass(frozen=True, slots=True)
class PrecisionReport:
    """The effects of half-precision storage."""

    weight_bytes: tuple[int, int]  # bytes of all unpacked float32 weights, before and after
    # bytes of all intermediates without memory reuse, before and after
    value_bytes: tuple[int, int]
    halves: tuple[int, int]  # numbers of weights and intermediates stored as fp16
    kept: tuple[Kept, ...]  # values and weights that remain float32, in graph order
    eight_bits: int = 0  # number of fp16 weights that are stored as 8-bit integers instead

    def plain(self) -> dict[str, Any]:
        """Return plain data for an artifact's metadata; biases are counted, not listed."""
        listed = [k for k in self.kept if k.reason != BIAS]
        return {
            "storage": dt.float16.name,
            "arithmetic": dt.float32.name,
            "weight_bytes": list(self.weight_bytes),
            "value_bytes": list(self.value_bytes),
            "halves": list(self.halves),
            **({"eight_bits": self.eight_bits} if self.eight_bits else {}),
            "biases": len(self.kept) - len(listed),
            "kept": [
                {
                    "what": "weight" if k.is_weight else "value",
                    "name": k.name,
                    "shape": list(k.shape),
                    "bytes": k.bytes,
                    "reason": k.reason,
                }
                for k in listed
            ],
        }


@dataclass(frozen=True, slots=True)
class Halved:
    """A graph with half-precision storage."""

    roots: list[Node]  # the new roots, in the order of the old ones
    new: Mapping[Node, Node]  # old node -> new node
    pins: frozenset[Node]  # the fp16 nodes, which must be stored
    report: PrecisionReport


def check_precision(name: str) -> str:
    """Return the name of a precision; raise SchedulerError if it is unknown."""
    if name not in PRECISIONS:
        raise SchedulerError(f"precision {name!r}: expected one of {', '.join(PRECISIONS)}")
    return name


def store_halves(
    roots: Sequence[Node],
    stored: Collection[Node],
    spec: DeviceSpec,
    origins: Origins | None = None,
) -> Halved:
    """Return the graph with stored nodes as fp16 where that does no harm.

    `roots` are outputs and ASSIGN nodes, after the other passes, and keep their types. `stored` are
    all nodes that kernels store, including the roots.
    """
    order, fixed = toposort(roots), set(roots)
    values = [n for n in order if n in stored and n not in fixed and _is_candidate(n)]
    weights = [n for n in order if is_weight(n) and n not in fixed and n.dtype is dt.float32]
    return _halved(roots, weights, values, spec, origins or Origins())


def store_exact_halves(roots: Sequence[Node], spec: DeviceSpec) -> Halved:
    """Return the graph with float32 weights that are exact in fp16 stored as fp16, if it pays."""
    fixed = set(roots)
    weights = [n for n in toposort(roots) if is_weight(n) and n not in fixed and _is_exact(n)]
    return _halved(roots, weights, [], spec, Origins())


def _is_exact(weight: Node) -> bool:
    if weight.dtype is not dt.float32:
        return False
    data = np.asarray(weight.arg.data)
    with np.errstate(over="ignore"):
        half = data.astype(np.float16)
    return bool(np.array_equal(half.astype(np.float32), data, equal_nan=True))


def _halved(
    roots: Sequence[Node],
    weights: Sequence[Node],
    values: Sequence[Node],
    spec: DeviceSpec,
    origins: Origins,
) -> Halved:
    """Return the graph with the given weights and values as fp16, except those that must not be."""
    order = toposort(roots)
    reason = reasons(roots, [*weights, *values], spec)
    half_values = {n for n in values if n not in reason}
    half_weights = {n for n in weights if n not in reason}
    eight_bits = {
        n: w for n in weights if n in half_weights and (w := eight_bit_weight(n)) is not None
    }
    new: dict[Node, Node] = {}
    pins: dict[Node, None] = {}
    for node in order:
        if node in half_weights:
            new[node] = eight_bits.get(node) or as_type(_half_weight(node), dt.float32)
            continue
        made = with_sources(node, new)
        if node in half_values:
            half = _half_value(made)
            if half.op is not Op.BUFFER:
                pins[half] = None
            made = as_type(half, dt.float32)
        new[node] = made
    report = PrecisionReport(
        _bytes(weights, half_weights, eight_bits),
        _bytes(values, half_values),
        (len(half_weights), len(half_values)),
        _kept(order, reason, origins),
        len(eight_bits),
    )
    return Halved([new[r] for r in roots], new, frozenset(pins), report)


def _is_candidate(node: Node) -> bool:
    writes = node.op in (Op.ASSIGN, Op.RESULT, Op.BUFFER)
    return node.dtype is dt.float32 and not writes


def _rounded(node: Node) -> Node:
    """Return a value as fp16; a value just widened from fp16 becomes the original again."""
    if node.op is Op.CAST and node.src[0].dtype is dt.float16:
        return node.src[0]
    return make(Op.CAST, dt.float16, (node,))


def _half_value(node: Node) -> Node:
    """Return the fp16 node to store for a float32 value; parts of a concat round separately."""
    if node.op in (Op.CAT, Op.CONTIGUOUS):
        return make(node.op, dt.float16, tuple(_rounded(s) for s in node.src), node.arg)
    return _rounded(node)


def _half_weight(node: Node) -> Node:
    """Return a weight rounded to fp16; an artifact stores equal values of its entries once."""
    buffer: Buffer = node.arg
    if buffer.data is None:
        raise SchedulerError(f"{buffer}: a weight without values (an internal error)")
    rounded = np.asarray(buffer.data).astype(np.float16)
    half = Buffer("weight", buffer.name, buffer.shape, dt.float16, rounded)
    return make(Op.BUFFER, dt.float16, (), half)


def _bytes(
    nodes: Sequence[Node], halves: Collection[Node], eight_bits: Collection[Node] = ()
) -> tuple[int, int]:
    """Return the bytes before and after, without the scales of 8-bit weights."""
    before = [n.dtype.itemsize * prod(n.shape) for n in nodes]
    parts = [4 if n in eight_bits else 2 if n in halves else 1 for n in nodes]
    return sum(before), sum(b // part for b, part in zip(before, parts, strict=True))


def _kept(order: Sequence[Node], reason: dict[Node, str], origins: Origins) -> tuple[Kept, ...]:
    """Return the values that remain float32, in graph order."""
    users = consumers(order)
    found = []
    for node in order:
        if node not in reason:
            continue
        # A weight without a name is named after the first reader above it that has a name.
        at = [node]
        while not origins.of(at[-1]) and users[at[-1]]:
            at.append(users[at[-1]][0])
        name = node.arg.name if is_weight(node) else ""
        name = name or ", ".join(origins.of(at[-1]))
        found.append(Kept(name, is_weight(node), node.shape, reason[node]))
    return tuple(found)
