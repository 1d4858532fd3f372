"""Optimizes sums of products of quantized numbers.

`byte_products` computes them as dot products of four bytes:

    sum((x - z) * s * w)          x uint8 at run time, w known: whole numbers times scales, or w
                                  quantized like x
    ->  (sum(dot4(x', w')) - z * sum(w8)) * s * scales

x' has four bytes of a summed axis in one word, and w' has the 8-bit integers w8 of the weight.

On processors without instructions for byte products, `byte_floats` stores dequantized factors as
floats:

    sum((x - z) * s * w), x uint8, stored     ->     sum(contiguous((x - z) * s) * w)

Otherwise a sum would convert each byte once for every result, which takes longer than the products.

`eight_bit_weight` finds float weights that are 8-bit integers times scales. It accepts a weight
only if every value is reproduced bit by bit, whatever form the exporter wrote:

    w (float32)    ->    cast(q, float32) * expand(s)     q int8, s one for each index of an axis
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.device.spec import DeviceSpec
from scheduler.errors import SchedulerError
from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, expanded, like, new_weight, number, reshaped
from scheduler.ir.interp import evaluate
from scheduler.ir.node import Buffer, Node, alu, make, toposort
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.passes.eight_bits.byte_words import (
    BYTES,
    Operand,
    Packed,
    Quantised,
    is_real,
    moved_back,
    operand_of,
    pack_point,
    packed_bytes,
    packed_weight,
    read_where_stored,
)
from scheduler.passes.splat import value_of

Singles = NDArray[np.float32]
# The largest magnitude of an int8 weight.
LARGEST = 127
# The minimum number of values per scale; with fewer, scales take more memory than bytes save.
LEAST_SHARED = 16
# From this many rows of the first factor, the second factor's words are stored a second time, with
# its own axis innermost.
MANY_ROWS = 8


def byte_products(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node with sums of products of bytes as dot products of words."""
    order = toposort(roots)
    new = unchanged(order)
    if not spec.dot4:
        return new
    known = known_nodes(order)
    packed = Packed()
    for node in order:
        found = _sum_of_bytes(node, known, packed) if factors(node) else None
        new[node] = with_sources(node, new) if found is None else _over(found, new)
    stored = {new[v]: new[c] for v, c in packed.stored.items() if v in new and c in new}
    read = read_where_stored([new[r] for r in order], stored)
    return {node: read[new[node]] for node in order}


def _over(found: Node, new: dict[Node, Node]) -> Node:
    """Return the new form of a node that was built from old nodes."""
    for node in toposort([found]):
        if node not in new:
            new[node] = with_sources(node, new)
    return new[found]


def known_nodes(order: Sequence[Node]) -> set[Node]:
    """Return the nodes whose values depend on no input and no state."""
    found: set[Node] = set()
    for node in order:
        is_leaf = node.op in (Op.CONST, Op.IOTA) or (
            node.op is Op.BUFFER and node.arg.kind == "weight"
        )
        if is_leaf or (node.src and node.op is not Op.ASSIGN and found.issuperset(node.src)):
            found.add(node)
    return found


def factors(node: Node) -> tuple[Node, ...]:
    """Return the two factors of a sum of 32-bit products, or () for any other node."""
    if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD or node.src[0].op is not Op.MUL:
        return ()
    return node.src[0].src if node.dtype in (dt.float32, dt.int32) else ()


def _sum_of_bytes(node: Node, known: set[Node], packed: Packed) -> Node | None:
    """Return a sum of products as dot products of bytes, or None if its factors do not fit."""
    axes: tuple[int, ...] = node.arg[1]
    left, right = node.src[0].src
    if left in known:
        left, right = right, left
    if left in known:
        return None
    a, b = operand_of(left), operand_of(right)
    value = quantised(a)
    if value is None:
        return None
    other = _weight(right, axes, node.dtype) if right in known else quantised(b)
    if other is None:
        return None
    for axis in axes:
        point = pack_point(a, axis) if is_real(b, axis) and _is_worth(node, axis) else None
        words = None if point is None else packed_bytes(a, value, point, packed)
        if words is None:
            continue
        if isinstance(other, _Weight):
            return _times_weight(node, words, other, value, axis)
        found = None if point is None or point.is_window else pack_point(b, axis)
        signed = None if found is None or found.is_window else packed_bytes(b, other, found, packed)
        if signed is not None:
            return _times_value(node, (words, value), (signed, other))
    return None


def _is_worth(node: Node, axis: int) -> bool:
    """Whether packing an axis into words pays, which needs at least three bytes."""
    return node.src[0].shape[axis] >= BYTES - 1


# --- Run-time values --------------------------------------------------------------------------


def quantised(operand: Operand) -> Quantised | None:
    """Return the value as (x - zero) * scale, or None. Padding must be 0, the zero point."""
    if any(move.op is Op.PAD and move.arg[1] != 0 for move in operand.moves):
        return None
    node, scale = operand.base, None
    if node.op is Op.MUL and node.dtype is dt.float32:
        whole, spread = node.src
        scale = _scalar(spread)
        if scale is None:
            return None
        node = whole
    if node.op is Op.CAST and node.dtype is dt.float32 and node.src[0].dtype is dt.int32:
        node = node.src[0]
    if node.dtype is not dt.int32:
        return None
    zero: float | None = 0
    if node.op is Op.SUB:
        zero, node = value_of(node.src[1]), node.src[0]
    if zero is None or node.op is not Op.CAST:
        return None
    stored = node.src[0]
    if stored.dtype is dt.int8:  # flipping the first bit of an int8 x gives the byte x + 128
        bits = make(Op.BITCAST, dt.uint8, (stored,))
        stored, zero = alu(Op.XOR, bits, number(128, bits)), zero + 128
    if stored.dtype is not dt.uint8 or not 0 <= zero <= 255:
        return None
    return Quantised(stored, int(zero), scale)


def _scalar(node: Node) -> Node | None:
    """Return the scalar that a node repeats, or None."""
    while node.op in (Op.EXPAND, Op.RESHAPE) and node.shape:
        node = node.src[0]
    return node if node.shape == () else None


# --- Weights ----------------------------------------------------------------------------------


class _Weight(NamedTuple):
    """A known factor as integers times scales."""

    numbers: NDArray[np.int8]  # with the rank of the product; size 1 where the factor repeats
    scales: NDArray[np.float32] | None  # float32, size 1 along summed axes; None if all are 1


def _weight(factor: Node, axes: tuple[int, ...], dtype: dt.DType) -> _Weight | None:
    """Return a known factor as integers times scales, or None if that is not exact."""
    while factor.op is Op.EXPAND:
        factor = factor.src[0]
    (data,) = evaluate([factor])
    if dtype is dt.int32:
        fits = data.min() >= -128 and data.max() <= 127
        return _Weight(data.astype(np.int8), None) if fits else None
    kept = tuple(i for i in range(data.ndim) if i not in axes)
    for shared in ((), kept):  # one scale for everything, or one for each result
        found = _exact_bytes(np.asarray(data, np.float32), shared)
        if found is not None:
            return _Weight(*found)
    return None


def _times_weight(node: Node, words: Node, weight: _Weight, value: Quantised, axis: int) -> Node:
    """Return the sum of products of a value and a weight; a word has four elements of `axis`."""
    axes: tuple[int, ...] = node.arg[1]
    total = _dot(words, new_weight(packed_weight(weight.numbers, axis), dt.int32), axes)
    if value.zero:
        sums = weight.numbers.astype(np.int64).sum(axes, keepdims=True) * value.zero
        total = _minus(total, new_weight(sums.astype(np.int32), dt.int32))
    scales = [] if weight.scales is None else [new_weight(weight.scales, dt.float32)]
    return _real(node, total, [*scales, value.scale])


def _times_value(node: Node, left: tuple[Node, Quantised], right: tuple[Node, Quantised]) -> Node:
    """Return the sum of products of two run-time values.

    sum((a - y) * (b - z))  =  sum(a * b) - y * sum(b) - z * sum(a) + n * y * z

    a and y are unsigned, b and z signed: 128 is subtracted from both the byte and the zero point.
    """
    axes: tuple[int, ...] = node.arg[1]
    (a, value), (words, other) = left, right
    whole, turned = _unrepeated(a, axes), _turned(_unrepeated(words, axes), a, axes)
    b, zero = make(Op.BITCAST, dt.int32, (turned,)), other.zero - 128
    total = _dot(a, b, axes)
    # Sums of a single factor are stored, because inside the kernel they would prevent its tiling.
    if value.zero:
        sums = _dot(number(0x01010101, turned), b, axes)
        sums = alu(Op.MUL, sums, number(value.zero, sums))
        total = _minus(total, like(sums, Op.CONTIGUOUS, (sums,)))
    if zero:
        sums = _dot(whole, number(0x01010101, as_type(whole, dt.int32)), axes)
        sums = alu(Op.MUL, sums, number(zero, sums))
        total = _minus(total, like(sums, Op.CONTIGUOUS, (sums,)))
    # Padding of words counts as well: it is the zero point in both factors.
    terms = BYTES * int(np.prod([a.shape[i] for i in axes]))
    if value.zero * zero:
        total = _minus(total, number(-terms * value.zero * zero, total))
    return _real(node, total, [value.scale, other.scale])


def _turned(words: Node, a: Node, axes: tuple[int, ...]) -> Node:
    """Return the second factor as words of signed bytes; for many rows, its own axis is last."""
    turned = alu(Op.XOR, words, number(0x80808080, words))
    own = _unrepeated(a, axes).shape
    free = [i for i, s in enumerate(turned.shape) if s > 1 and own[i] == 1]
    rows = prod(s for i, s in enumerate(own) if turned.shape[i] == 1)
    if len(free) != 1 or rows < MANY_ROWS:
        return turned
    order = (*(i for i in range(len(own)) if i != free[0]), free[0])
    inner = like(turned, Op.PERMUTE, (turned,), order)
    return moved_back(like(inner, Op.CONTIGUOUS, (inner,)), order)


def _unrepeated(words: Node, axes: tuple[int, ...]) -> Node:
    """Return words before they are repeated along axes that are not summed."""
    if words.op is not Op.EXPAND or any(words.src[0].shape[i] != words.shape[i] for i in axes):
        return words
    return words.src[0]


def _dot(a: Node, b: Node, axes: tuple[int, ...]) -> Node:
    both = tuple(np.broadcast_shapes(a.shape, b.shape))
    product = make(Op.DOT4, dt.int32, (expanded(a, both), expanded(b, both)))
    return make(Op.REDUCE, dt.int32, (product,), (Op.ADD, axes))


def _minus(total: Node, part: Node) -> Node:
    return alu(Op.SUB, total, expanded(part, total.shape))


def _real(node: Node, total: Node, scales: Sequence[Node | None]) -> Node:
    """Return an integer sum in its old type, times the scales; constant scales fold into one."""
    if node.dtype is dt.int32:
        return total
    flat = (1,) * len(node.shape)
    found = [s if s.shape else reshaped(s, flat) for s in scales if s is not None]
    if not found:
        return as_type(total, dt.float32)
    both = (
        found[0] if len(found) == 1 else alu(Op.MUL, found[0], expanded(found[1], found[0].shape))
    )
    return alu(Op.MUL, as_type(total, dt.float32), expanded(both, node.shape))


def byte_floats(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node with dequantized factors of sums stored; unchanged on GPUs."""
    order = toposort(roots)
    new = unchanged(order)
    if spec.dot4 or spec.is_simt:
        return new
    known = known_nodes(order)
    bases: set[Node] = set()
    for node in order:
        found = factors(node)
        if node.dtype.is_float and any(f in known for f in found):
            bases |= {operand_of(f).base for f in found if f not in known}
    for node in order:
        new[node] = with_sources(node, new)
        if node in bases and quantised(Operand((), node)) is not None:
            new[node] = like(new[node], Op.CONTIGUOUS, (new[node],))
    return new


# --- Weights that are 8-bit integers times a scale for each output ----------------------------


def eight_bit_weight(node: Node) -> Node | None:
    """Return a float32 weight as 8-bit integers times scales, or None if it has no such form."""
    buffer: Buffer = node.arg
    if buffer.data is None:
        raise SchedulerError(f"{buffer}: a weight without values (an internal error)")
    data = np.asarray(buffer.data)
    for axes in _outputs(data.shape):
        found = _exact_bytes(data, axes)
        if found is not None:
            numbers, scale = found
            stored = Buffer("weight", buffer.name, data.shape, dt.int8, numbers)
            whole = as_type(make(Op.BUFFER, dt.int8, (), stored), dt.float32)
            return alu(Op.MUL, whole, expanded(new_weight(scale, dt.float32), data.shape))
    return None


def _outputs(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield candidate sets of axes: each index along them has its own scale.

    Candidates are each single axis, and the first two axes (of stacked weights).
    """
    choices = [*((axis,) for axis in range(len(shape))), *([(0, 1)] if len(shape) > 2 else [])]
    for axes in choices:
        if prod(shape) >= LEAST_SHARED * prod(shape[a] for a in axes):
            yield axes


def _exact_bytes(data: Singles, axes: tuple[int, ...]) -> tuple[NDArray[np.int8], Singles] | None:
    """Return integers and scales that reproduce the data exactly, or None if there are none."""
    others = tuple(axis for axis in range(data.ndim) if axis not in axes)
    if not np.isfinite(data).all():
        return None
    largest = np.abs(data).max(axis=others, keepdims=True)
    first = np.where(largest > 0.0, largest / np.float32(LARGEST), np.float32(1.0))
    scale, settled = first, np.zeros(first.shape, bool)
    # 127 times the scale was rounded, so the true scale can be a neighbor of the quotient.
    for guess in (
        first,
        np.nextafter(first, np.float32(0)),
        np.nextafter(first, np.float32(np.inf)),
    ):
        back = np.rint(data / guess).astype(np.float32) * guess
        good = ((back == data).all(axis=others, keepdims=True)) & ~settled
        scale = np.where(good, guess, scale)
        settled |= good
        if not settled.any():
            return None
    if not settled.all():
        return None
    return np.rint(data / scale).astype(np.int8), scale.astype(np.float32)
