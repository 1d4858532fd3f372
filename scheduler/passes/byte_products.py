"""The pass computes sums of products of quantised numbers as dot products of four bytes.

    sum((x - z) * s * w)          x uint8 at run time, w known: whole numbers times scales, or w
                                  quantised like x

    ->  (sum(dot4(x', w')) - z * sum(w8)) * s * scales

x' has four bytes of an axis that is summed in one word, w' the numbers w8 of the weight. The sum is
one of integers and exact. Only for devices whose processor has the instruction (`DeviceSpec.dot4`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, expanded, like, new_weight, number, reshaped
from scheduler.ir.interp import evaluate
from scheduler.ir.node import Node, alu, make, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.passes.eight_bits import exact_bytes
from scheduler.passes.splat import value_of

# What is moved without being computed with; a CAT has several sources.
_MOVES: Final = MOVEMENT - {Op.CAT}
_BYTES: Final = 4


class Quantised(NamedTuple):
    """A value (x - zero) * scale of bytes known at run time only.

    Attributes:
        bytes: uint8.
        zero: a whole number.
        scale: float32 scalar node, None where the value is the integer.
    """

    bytes: Node
    zero: int
    scale: Node | None


@dataclass(frozen=True, slots=True)
class _Operand:
    """A factor: a value behind movement, outermost first."""

    moves: tuple[Node, ...]
    base: Node


def byte_products(roots: Sequence[Node], spec: DeviceSpec) -> dict[Node, Node]:
    """Return old node -> new node with sums of dot products of bytes.

    Args:
        roots: of the graph.
        spec: the device that it will run on.
    """
    order = toposort(roots)
    new = unchanged(order)
    if not spec.dot4:
        return new
    known = _known(order)
    packed: dict[tuple[object, ...], Node] = {}
    for node in order:
        found = _sum_of_bytes(node, known, packed) if _is_candidate(node) else None
        new[node] = with_sources(node, new) if found is None else _over(found, new)
    return new


def _over(found: Node, new: dict[Node, Node]) -> Node:
    """Return a new node over the new form of what it reads."""
    for node in toposort([found]):
        if node not in new:
            new[node] = with_sources(node, new)
    return new[found]


def _known(order: Sequence[Node]) -> set[Node]:
    """Return the nodes whose values depend on no input and no state."""
    found: set[Node] = set()
    for node in order:
        is_leaf = node.op in (Op.CONST, Op.IOTA) or (
            node.op is Op.BUFFER and node.arg.kind == "weight"
        )
        if is_leaf or (node.src and node.op is not Op.ASSIGN and found.issuperset(node.src)):
            found.add(node)
    return found


def _is_candidate(node: Node) -> bool:
    if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD or node.src[0].op is not Op.MUL:
        return False
    return node.dtype in (dt.float32, dt.int32)


def _sum_of_bytes(
    node: Node, known: set[Node], packed: dict[tuple[object, ...], Node]
) -> Node | None:
    axes: tuple[int, ...] = node.arg[1]
    left, right = node.src[0].src
    if left in known:
        left, right = right, left
    if left in known:
        return None
    a, b = _operand(left), _operand(right)
    value = _quantised(a)
    if value is None:
        return None
    other = _weight(right, axes, node.dtype) if right in known else _quantised(b)
    if other is None:
        return None
    for axis in axes:
        point = _pack_point(a, axis) if _is_real(b, axis) and _is_worth(node, axis) else None
        words = None if point is None else _packed_bytes(a, value, point, packed)
        if words is None:
            continue
        if isinstance(other, _Weight):
            return _times_weight(node, words, other, value, axis)
        found = None if point is None or point.is_window else _pack_point(b, axis)
        signed = (
            None if found is None or found.is_window else _packed_bytes(b, other, found, packed)
        )
        if signed is not None:
            return _times_value(node, (words, value), (signed, other))
    return None


def _is_worth(node: Node, axis: int) -> bool:
    """Whether words along an axis are less than what is in them: of three bytes on."""
    return node.src[0].shape[axis] >= _BYTES - 1


# --- the value at run time ------------------------------------------------------------------------


def _operand(node: Node) -> _Operand:
    moves: list[Node] = []
    while node.op in _MOVES:
        moves.append(node)
        node = node.src[0]
    return _Operand(tuple(moves), node)


def _quantised(operand: _Operand) -> Quantised | None:
    """Return what a value is (x - zero) * scale of, as translators of ONNX write it.

    What is put around it has to be 0, which is the zero point; other numbers may be no byte.
    """
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
    if stored.dtype is dt.int8:  # x + 128 is the byte with its first bit turned around
        bits = make(Op.BITCAST, dt.uint8, (stored,))
        stored, zero = alu(Op.XOR, bits, number(128, bits)), zero + 128
    if stored.dtype is not dt.uint8 or not 0 <= zero <= 255:
        return None
    return Quantised(stored, int(zero), scale)


def _scalar(node: Node) -> Node | None:
    """Return the one element that a node repeats."""
    while node.op in (Op.EXPAND, Op.RESHAPE) and node.shape:
        node = node.src[0]
    return node if node.shape == () else None


# --- the axis whose elements become bytes of a word -----------------------------------------------


class _Point(NamedTuple):
    """Where along the movement bytes become words.

    Attributes:
        depth: how many of the moves stand above it.
        axis: of what is there, along which words are.
        is_window: words begin at every element, as a window slides over them; the outermost of the
            moves below the point is the window.
        places: the axis of the result of each move above, outermost first.
        is_part: the axis of the product is only the last part of the axis.
    """

    depth: int
    axis: int
    is_window: bool
    places: tuple[int, ...]
    is_part: bool


def _is_real(operand: _Operand, axis: int) -> bool:
    """Whether the elements along an axis differ, rather than repeat."""
    first = operand.moves[0] if operand.moves else operand.base
    return first.op is not Op.EXPAND or first.src[0].shape[axis] == first.shape[axis]


def _pack_point(operand: _Operand, axis: int) -> _Point | None:
    """Return where elements along an axis of a factor may become words; None: nowhere."""
    places: list[int] = []
    is_part = False
    for depth, node in enumerate(operand.moves):
        if node.op is Op.WINDOW and axis == node.arg[0] + 1 and not is_part:
            return _Point(depth, node.arg[0], True, tuple(places), is_part)
        found = _source_axis(node, axis)
        if found is None:
            return None
        places.append(axis)
        axis, part = found
        is_part = is_part or part
    return _Point(len(operand.moves), axis, False, tuple(places), is_part)


def _source_axis(node: Node, axis: int) -> tuple[int, bool] | None:
    """Return the source's axis whose elements, in order, run along an axis of a movement."""
    source, shape = node.src[0].shape, node.shape
    if node.op is Op.EXPAND:
        return (axis, False) if source[axis] == shape[axis] else None
    if node.op is Op.PERMUTE:
        return node.arg[axis], False
    if node.op is Op.PAD:
        return (axis, False) if node.arg[0][axis] == (0, 0) else None
    if node.op is Op.SHRINK:
        return (axis, False) if node.arg[axis] == (0, source[axis], 1) else None
    if node.op is Op.FLIP:
        return None if axis in node.arg else (axis, False)
    if node.op is Op.WINDOW:
        at = node.arg[0]
        if axis in (at, at + 1):
            return None
        return (axis if axis < at else axis - 1), False
    return _source_of_reshape(source, shape, axis)


def _source_of_reshape(
    source: tuple[int, ...], shape: tuple[int, ...], axis: int
) -> tuple[int, bool] | None:
    """An axis is one of the source's, or the last part of one that was split."""
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    for at, size in enumerate(source):
        behind = int(np.prod(source[at + 1 :], dtype=np.int64))
        if behind == inner and size > 1 and size % shape[axis] == 0:
            return at, size != shape[axis]
    return None


def _packed_bytes(
    operand: _Operand, value: Quantised, point: _Point, packed: dict[tuple[object, ...], Node]
) -> Node | None:
    """Return the words of four bytes behind the movement of a factor; None: it splits them."""
    above, below = operand.moves[: point.depth], operand.moves[point.depth :]
    if point.is_part and operand.moves[0].shape[point.places[0]] % _BYTES:
        return None
    # Bytes that are put behind or around are the zero point's.
    key = (value.bytes, value.zero, point.axis, below)
    if key not in packed:
        moved = value.bytes
        for node in reversed(below[1:] if point.is_window else below):
            moved = _moved_bytes(node, moved, value.zero)
        packed[key] = (
            _sliding_words(moved, below[0].arg)
            if point.is_window
            else _words(moved, point.axis, value.zero)
        )
    words = packed[key]
    for node, place in reversed(list(zip(above, point.places, strict=True))):
        words = _moved(node, words, place, value.zero * 0x01010101)
    return words


def _moved_bytes(node: Node, source: Node, zero: int) -> Node:
    """Return bytes behind a movement; what is 0 outside is the zero point."""
    arg = (node.arg[0], zero) if node.op is Op.PAD else node.arg
    return make(node.op, dt.uint8, (source,), arg)


def _moved(node: Node, words: Node, place: int, filled: int) -> Node:
    """Return words behind a movement of bytes.

    Args:
        node: the movement.
        words: of its source.
        place: the axis of its result along which words are.
        filled: the word of what is 0 outside.
    """
    if node.op is Op.PAD:
        return make(Op.PAD, dt.uint32, (words,), (node.arg[0], filled))
    if node.op is Op.RESHAPE:
        shape = list(node.shape)
        shape[place] = 1
        rest = int(np.prod(shape, dtype=np.int64))
        shape[place] = int(np.prod(words.shape, dtype=np.int64)) // rest
        return reshaped(words, tuple(shape))
    if node.op is Op.EXPAND:
        shape = list(node.shape)
        shape[place] = words.shape[place]
        return expanded(words, tuple(shape))
    if node.op is Op.SHRINK:
        bounds = list(node.arg)
        bounds[place] = (0, words.shape[place], 1)
        return make(Op.SHRINK, dt.uint32, (words,), tuple(bounds))
    return make(node.op, dt.uint32, (words,), node.arg)


def _words(values: Node, axis: int, zero: int) -> Node:
    """Return bytes with four elements of an axis in a word, the first in the low bits."""
    values = _longer(values, axis, -values.shape[axis] % _BYTES, zero)
    size = values.shape[axis]
    return _joined(values, axis, [(place, size, _BYTES) for place in range(_BYTES)])


def _sliding_words(values: Node, window: tuple[int, ...]) -> Node:
    """Return the windows of an axis as words of four neighbours each.

    Args:
        values: uint8.
        window: of WINDOW: axis, count, size, stride, dilation.
    """
    axis, count, size, stride, dilation = window
    words = -(-size // _BYTES)
    length = stride * (count - 1) + (words - 1) * _BYTES * dilation + 1
    # The weights of what is behind the window are 0, so any byte may stand there.
    values = _longer(values, axis, length + (_BYTES - 1) * dilation - values.shape[axis], 0)
    starts = [place * dilation for place in range(_BYTES)]
    joined = _joined(values, axis, [(start, start + length, 1) for start in starts])
    return make(Op.WINDOW, dt.uint32, (joined,), (axis, count, words, stride, _BYTES * dilation))


def _longer(values: Node, axis: int, more: int, fill: int) -> Node:
    if more <= 0:
        return values
    pads = tuple((0, more if i == axis else 0) for i in range(len(values.shape)))
    return like(values, Op.PAD, (values,), (pads, fill))


def _joined(values: Node, axis: int, cuts: Sequence[tuple[int, int, int]]) -> Node:
    """Return words, stored, whose bytes are cuts of an axis, the first in the low bits."""
    wide = as_type(values, dt.uint32)
    word: Node | None = None
    for place, cut in enumerate(cuts):
        bounds = tuple(cut if i == axis else (0, s, 1) for i, s in enumerate(wide.shape))
        part = like(wide, Op.SHRINK, (wide,), bounds)
        if place:
            part = alu(Op.SHL, part, number(8 * place, part))
        word = part if word is None else alu(Op.OR, word, part)
    assert word is not None
    return like(word, Op.CONTIGUOUS, (word,))


# --- the weight -----------------------------------------------------------------------------------


class _Weight(NamedTuple):
    """A known factor as whole numbers times scales.

    Attributes:
        numbers: int8, of the rank of the product; 1 where the factor repeats.
        scales: float32, size 1 along what is summed; None where the factor is the numbers.
    """

    numbers: NDArray[np.int8]
    scales: NDArray[np.float32] | None


def _weight(factor: Node, axes: tuple[int, ...], dtype: dt.DType) -> _Weight | None:
    while factor.op is Op.EXPAND:
        factor = factor.src[0]
    (data,) = evaluate([factor])
    if dtype is dt.int32:
        fits = data.min() >= -128 and data.max() <= 127
        return _Weight(data.astype(np.int8), None) if fits else None
    kept = tuple(i for i in range(data.ndim) if i not in axes)
    for shared in ((), kept):  # one scale, or one for each result
        found = exact_bytes(np.asarray(data, np.float32), shared)
        if found is not None:
            return _Weight(*found)
    return None


def _times_weight(node: Node, words: Node, weight: _Weight, value: Quantised, axis: int) -> Node:
    """Return the sum of products of a value and a weight.

    Args:
        node: the sum as it was.
        words: of the value, as the sum reads them.
        weight: the other factor.
        value: what the words are of.
        axis: along which four are in a word.
    """
    axes: tuple[int, ...] = node.arg[1]
    total = _dot(words, new_weight(_packed_weight(weight.numbers, axis), dt.int32), axes)
    if value.zero:
        sums = weight.numbers.astype(np.int64).sum(axes, keepdims=True) * value.zero
        total = _minus(total, new_weight(sums.astype(np.int32), dt.int32))
    scales = [] if weight.scales is None else [new_weight(weight.scales, dt.float32)]
    return _real(node, total, [*scales, value.scale])


def _times_value(node: Node, left: tuple[Node, Quantised], right: tuple[Node, Quantised]) -> Node:
    """Return the sum of products of two values of the run time.

    sum((a - y) * (b - z))  =  sum(a * b) - y * sum(b) - z * sum(a) + n * y * z        b signed
    """
    axes: tuple[int, ...] = node.arg[1]
    (a, value), (words, other) = left, right
    turned = alu(Op.XOR, words, number(0x80808080, words))
    b, zero = make(Op.BITCAST, dt.int32, (turned,)), other.zero - 128
    total = _dot(a, b, axes)
    if value.zero:
        ones = number(0x01010101, _unrepeated(words, axes))
        sums = _dot(ones, make(Op.BITCAST, dt.int32, (_unrepeated(turned, axes),)), axes)
        total = _minus(total, alu(Op.MUL, sums, number(value.zero, sums)))
    if zero:
        whole = _unrepeated(a, axes)
        sums = _dot(whole, number(0x01010101, as_type(whole, dt.int32)), axes)
        total = _minus(total, alu(Op.MUL, sums, number(zero, sums)))
    terms = _BYTES * int(np.prod([a.shape[i] for i in axes]))
    if value.zero * zero:
        total = _minus(total, number(-terms * value.zero * zero, total))
    return _real(node, total, [value.scale, other.scale])


def _unrepeated(words: Node, axes: tuple[int, ...]) -> Node:
    """Return words as they are before they are repeated along axes that are not summed."""
    if words.op is Op.XOR:
        inner = _unrepeated(words.src[0], axes)
        return words if inner is words.src[0] else alu(Op.XOR, inner, number(0x80808080, inner))
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
    """Return a sum of whole numbers in the type that it had, times the scales that there are."""
    if node.dtype is dt.int32:
        return total
    real = as_type(total, dt.float32)
    for scale in scales:
        if scale is not None:
            rank = scale if scale.shape else reshaped(scale, (1,) * len(node.shape))
            real = alu(Op.MUL, real, expanded(rank, node.shape))
    return real


def _packed_weight(numbers: NDArray[np.int8], axis: int) -> NDArray[np.int32]:
    missing = -numbers.shape[axis] % _BYTES
    pads = [(0, missing if i == axis else 0) for i in range(numbers.ndim)]
    last = np.moveaxis(np.pad(numbers, pads), axis, -1)
    words: NDArray[Any] = np.asarray(last, order="C").view(np.int32)
    return np.asarray(np.moveaxis(words, -1, axis), order="C")
