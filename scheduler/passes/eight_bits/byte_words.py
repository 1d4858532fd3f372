"""Packs four bytes of a factor into one word along an axis, for dot products (`byte_products`).

    q[n, c, h, w]          ->  word[n, c / 4, h, w]    four channels in a word
    window over q          ->  word[n, c, h, w]        a byte and those of the next three taps; a
                                                       window reads every fourth word

Words are built from the quantized value, or from the bytes that a window slides over. The movement
between them and the product (reshape, permute, pad and so on) is then repeated on words. "Above"
means closer to the product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, expanded, like, number, reshaped
from scheduler.ir.node import Node, alu, make, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import remake

_MOVES: Final = MOVEMENT - {Op.CAT}
BYTES: Final = 4


class Quantised(NamedTuple):
    """A quantized run-time value, (bytes - zero) * scale."""

    bytes: Node  # the stored bytes, uint8
    zero: int  # the zero point, 0 to 255
    scale: Node | None  # float32 scalar node; None if the value is the integer


@dataclass(frozen=True, slots=True)
class Operand:
    """A factor of a product: a value below movement."""

    moves: tuple[Node, ...]  # the movement, outermost first
    base: Node  # the value


def operand_of(node: Node) -> Operand:
    """Return a factor as a value and the movement above it."""
    moves: list[Node] = []
    while node.op in _MOVES:
        moves.append(node)
        node = node.src[0]
    return Operand(tuple(moves), node)


class Point(NamedTuple):
    """The point in a factor's movement at which bytes become words."""

    depth: int  # number of moves above the point
    axis: int  # the packed axis at the point
    # Whether a word begins at every element, because a window slides over the bytes. The window is
    # the outermost move below the point.
    is_window: bool
    places: tuple[int, ...]  # the packed axis in the result of each move above, outermost first
    # Whether a reshape split the packed axis, and the product's axis is only its innermost part.
    is_part: bool


def is_real(operand: Operand, axis: int) -> bool:
    """Whether the elements along an axis differ instead of repeating."""
    first = operand.moves[0] if operand.moves else operand.base
    return first.op is not Op.EXPAND or first.src[0].shape[axis] == first.shape[axis]


def pack_point(operand: Operand, axis: int) -> Point | None:
    """Return the point at which elements along an axis can become words, or None."""
    places: list[int] = []
    is_part = False
    for depth, node in enumerate(operand.moves):
        if node.op is Op.WINDOW and axis == node.arg[0] + 1 and not is_part:
            return Point(depth, node.arg[0], True, tuple(places), is_part)
        found = _source_axis(node, axis)
        if found is None:
            return None
        places.append(axis)
        axis, part = found
        is_part = is_part or part
    return Point(len(operand.moves), axis, False, tuple(places), is_part)


def _source_axis(node: Node, axis: int) -> tuple[int, bool] | None:
    """Return the source axis that runs along an axis of a movement in order, or None.

    The second value tells whether the axis is only the innermost part of the source axis.
    """
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
    """Return the source axis of a reshape's axis, which is equal to it or was split into it."""
    inner = int(np.prod(shape[axis + 1 :], dtype=np.int64))
    for at, size in enumerate(source):
        behind = int(np.prod(source[at + 1 :], dtype=np.int64))
        if behind == inner and size > 1 and size % shape[axis] == 0:
            return at, size != shape[axis]
    return None


@dataclass(frozen=True, slots=True)
class Packed:
    """The words packed so far."""

    # words by value, zero point, axis and moves
    words: dict[tuple[object, ...], Node] = field(default_factory=dict)
    # the CONTIGUOUS node that stores each value
    stored: dict[Node, Node] = field(default_factory=dict)


def packed_bytes(operand: Operand, value: Quantised, point: Point, packed: Packed) -> Node | None:
    """Return a factor as words, with its movement applied; None if the movement splits words."""
    above, below = operand.moves[: point.depth], operand.moves[point.depth :]
    if point.is_part and operand.moves[0].shape[point.places[0]] % BYTES:
        return None
    key = (value.bytes, value.zero, point.axis, below)
    if key not in packed.words:
        moved = value.bytes
        for node in reversed(below[1:] if point.is_window else below):
            moved = _moved_bytes(node, moved, value.zero)
        packed.words[key] = (
            _sliding_words(moved, below[0].arg)
            if point.is_window
            else _words(moved, point.axis, value.zero, packed.stored)
        )
    words = packed.words[key]
    for node, place in reversed(list(zip(above, point.places, strict=True))):
        words = _moved(node, words, place, value.zero * 0x01010101)
    return words


def _moved_bytes(node: Node, source: Node, zero: int) -> Node:
    """Return bytes after a movement; padding of 0 becomes the zero point."""
    arg = (node.arg[0], zero) if node.op is Op.PAD else node.arg
    return make(node.op, dt.uint8, (source,), arg)


def _moved(node: Node, words: Node, place: int, filled: int) -> Node:
    """Return words after a movement, packed along axis `place` of its result; pad with `filled`."""
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


def _words(values: Node, axis: int, zero: int, stored: dict[Node, Node]) -> Node:
    """Return bytes as words of four along an axis; stored innermost if they divide evenly."""
    size = values.shape[axis]
    if size % BYTES:
        bytes_ = stored.setdefault(values, like(values, Op.CONTIGUOUS, (values,)))
        longer = _longer(_in_order(bytes_), axis, -size % BYTES, zero)
        size = longer.shape[axis]
        words = _joined(longer, axis, [(place, size, BYTES) for place in range(BYTES)])
        return like(words, Op.CONTIGUOUS, (words,))
    order = (*(i for i in range(len(values.shape)) if i != axis), axis)
    inner = make(Op.PERMUTE, dt.uint8, (values,), order)
    found = like(inner, Op.CONTIGUOUS, (inner,))
    stored.setdefault(values, found)
    return moved_back(make(Op.WORDS, dt.uint32, (found,)), order)


def moved_back(node: Node, order: tuple[int, ...]) -> Node:
    """Return a tensor with the permutation `order` of its axes undone."""
    return like(node, Op.PERMUTE, (node,), tuple(order.index(i) for i in range(len(order))))


def _in_order(stored: Node) -> Node:
    """Return stored bytes with their axes in the original order."""
    inner = stored.src[0]
    return moved_back(stored, inner.arg) if inner.op is Op.PERMUTE else stored


def read_where_stored(nodes: Sequence[Node], stored: Mapping[Node, Node]) -> dict[Node, Node]:
    """Return old node -> new node, with all readers of bytes reading the stored form.

    Otherwise the bytes would be computed twice: once for the words, and once for other readers.
    """
    signed = {v.src[0].src[0]: v for v in stored if v.op is Op.XOR and v.src[0].op is Op.BITCAST}
    own = {n for v, c in stored.items() for n in (c, c.src[0]) if n is not v}
    own |= {n for v in signed.values() for n in (v, v.src[0])}
    made: dict[Node, Node] = {}
    read: dict[Node, Node] = {}
    for node in toposort(nodes):
        src = tuple((made if node in own else read)[s] for s in node.src)
        made[node] = read[node] = node if src == node.src else remake(node, src)
        value = signed.get(node, node)
        if node.op is Op.BUFFER or value not in stored:
            continue
        whole = made[node]
        if value is not node:
            bits = make(Op.BITCAST, dt.uint8, (whole,))
            whole = alu(Op.XOR, bits, number(128, bits))
        found = stored[value]
        moved = whole if found.src[0] is value else remake(found.src[0], (whole,))
        seen = _in_order(like(moved, Op.CONTIGUOUS, (moved,)))
        if value is not node:
            seen = make(Op.BITCAST, node.dtype, (alu(Op.XOR, seen, number(128, seen)),))
        read[node] = seen
    return read


def _sliding_words(values: Node, window: tuple[int, ...]) -> Node:
    """Return the windows (axis, count, size, stride, dilation) of uint8 values as words."""
    axis, count, size, stride, dilation = window
    words = -(-size // BYTES)
    length = stride * (count - 1) + (words - 1) * BYTES * dilation + 1
    # The weights past the end of the window are 0, so the bytes there do not matter.
    values = _longer(values, axis, length + (BYTES - 1) * dilation - values.shape[axis], 0)
    # The kernel joins the bytes in registers; stored words would take four times the memory.
    starts = [place * dilation for place in range(min(size, BYTES))]
    joined = _joined(values, axis, [(start, start + length, 1) for start in starts])
    return make(Op.WINDOW, dt.uint32, (joined,), (axis, count, words, stride, BYTES * dilation))


def _longer(values: Node, axis: int, more: int, fill: int) -> Node:
    if more <= 0:
        return values
    pads = tuple((0, more if i == axis else 0) for i in range(len(values.shape)))
    return like(values, Op.PAD, (values,), (pads, fill))


def _joined(values: Node, axis: int, cuts: Sequence[tuple[int, int, int]]) -> Node:
    """Return words whose bytes are slices of an axis, the first in the low bits."""
    wide = as_type(values, dt.uint32)
    word: Node | None = None
    for place, cut in enumerate(cuts):
        bounds = tuple(cut if i == axis else (0, s, 1) for i, s in enumerate(wide.shape))
        part = like(wide, Op.SHRINK, (wide,), bounds)
        if place:
            part = alu(Op.SHL, part, number(8 * place, part))
        word = part if word is None else alu(Op.OR, word, part)
    assert word is not None
    return word


def packed_weight(numbers: NDArray[np.int8], axis: int) -> NDArray[np.int32]:
    """Return numbers with four elements of an axis in each word, padded with zeros."""
    missing = -numbers.shape[axis] % BYTES
    pads = [(0, missing if i == axis else 0) for i in range(numbers.ndim)]
    last = np.moveaxis(np.pad(numbers, pads), axis, -1)
    words: NDArray[Any] = np.asarray(last, order="C").view(np.int32)
    return np.asarray(np.moveaxis(words, -1, axis), order="C")
