"""Defines the arithmetic of a model's float16 nodes. Kernels compute fp16 as float32 in registers.

Below, half(x) and float(x) convert to float16 and float32.
`wide_halves` computes in float32 and rounds only if the rounding can decide a later result. Values
at kernel boundaries are float32, so the boundaries do not affect results:

    x + y             ->  float(x) + float(y)           no fp16 value unless it is needed
    w (half)          ->  w (float32), stored as fp16 again if that costs less
    input, state      ->  float(input)                  external memory keeps its type
    output            ->  half(value)                   rounded once
    floor(x + y)      ->  floor(half(x + y))            a deciding operation gets the fp16 value
    half(x)           ->  float(half(x))                an explicit conversion rounds

`exact_halves` makes each rounding a node of the graph (`--halves exact`). Afterwards a float16
value is the same number in a register and in memory. `scheduler.ir.interp` computes the nodes on
the left in the same way as those on the right:

    x + y             ->  half(float(x) + float(y))     any rounding operation (`rounding.rounds`)
    sum(x)            ->  half(sum(float(x)))           rounded once, at the end
    half(double)      ->  half(odd(double))             not rounded to the nearest float first
    max(x, y), x[i]   ->  unchanged                     exact in fp16

`half_bits` runs before both and replaces bit casts of fp16 by arithmetic. 0x38000000 is the
difference of the exponent biases, 127 - 15, in float32's exponent field:

    bits(x)  ->  sign | (|x| < 2^-14 ? int(|x| * 2^24) : (bits32(|x|) - 0x38000000) >> 13)
    half(b)  ->  +- (b < 0x400 ? b * 2^-24 : float((b << 13) + 0x38000000))
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, number
from scheduler.ir.node import Buffer, Node, alu, const, is_weight, make, toposort
from scheduler.ir.ops import ROUNDED, Op
from scheduler.ir.rewrite import Rewriter, Rule, remake, unchanged, with_sources
from scheduler.ir.rounding import Effect, effect, rounds, upstream
from scheduler.passes.halves.keep_float import decided_by

_BIAS: Final = 0x38000000
_SHIFT: Final = 13  # fraction bits of float32 that fp16 lacks
_INFINITY: Final = 0x7C00
_NAN: Final = 0x7E00
_SIGN: Final = 0x8000
# The smallest normal fp16 number, as a number and as bits, and the spacing of denormals.
_NORMAL: Final = 2.0**-14
_NORMAL_BITS: Final = 0x400
_UNIT: Final = 2.0**-24
# Operations on memory with a fixed type.
_FIXED = frozenset({Op.BUFFER, Op.ASSIGN, Op.RESULT, Op.BITCAST})


def wide_halves(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node; roots keep their types, other fp16 values become float32."""
    order = toposort(roots)
    new = unchanged(order)
    if not any(node.dtype is dt.float16 for node in order):
        return new
    pinned = upstream(order, decided_by(order), _keeps)
    for node in order:
        if any(new[s] is not s for s in node.src) or node.dtype is dt.float16:
            new[node] = _wide(node, [new[s] for s in node.src], is_pinned=node in pinned)
    return new | {root: _as_stored(new[root], root) for root in roots}


def _keeps(node: Node) -> bool:
    """Whether a changed operand changes the result in a way that can decide a later operation."""
    to_half = node.op is Op.CAST and node.dtype is dt.float16
    return to_half or effect(node) in (Effect.PASSES, Effect.SMOOTH)


def _wide(node: Node, src: list[Node], *, is_pinned: bool) -> Node:
    """Return a node with widened sources, as float32 if it is fp16, else in its own type.

    If `is_pinned`, a later result depends on the rounding, so the float32 value is rounded to fp16.
    """
    if is_weight(node):
        return _widened_weight(node)
    if node.op is Op.CUSTOM:
        return remake(node, tuple(map(_as_stored, src, node.src)))
    if node.dtype is not dt.float16:
        stored = node.op in (Op.BITCAST, Op.ASSIGN)
        return remake(node, tuple(map(_as_stored, src, node.src)) if stored else tuple(src))
    if node.op in _FIXED:
        return as_type(remake(node, tuple(map(_as_stored, src, node.src))), dt.float32)
    if node.op is Op.CONST:
        return const(node.arg, dt.float32)
    if node.op is Op.CAST:
        if src[0].dtype is dt.float64:
            return as_type(_round_double(src[0]), dt.float32)
        # One-byte integers are exact in fp16.
        is_pinned = (is_pinned or node.arg == ROUNDED) and src[0].dtype.itemsize > 1
        made = as_type(src[0], dt.float32)
    else:
        made = make(node.op, dt.float32, tuple(src), node.arg)
    return as_type(as_type(made, dt.float16), dt.float32) if is_pinned else made


def _as_stored(wide: Node, old: Node) -> Node:
    """Return the new form of a node in the node's old type."""
    if wide.dtype is old.dtype:
        return wide
    if wide.op is Op.CAST and wide.src[0].dtype is old.dtype:
        return wide.src[0]
    return as_type(wide, old.dtype)


def _widened_weight(node: Node) -> Node:
    """Return an fp16 weight as float32, with the same name and values."""
    old: Buffer = node.arg
    wide = Buffer(
        "weight", old.name, old.shape, dt.float32, np.asarray(old.data).astype(np.float32)
    )
    return make(Op.BUFFER, dt.float32, (), wide)


def exact_halves(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node, where no node computes in fp16."""
    order = toposort(roots)
    new = unchanged(order)
    if not any(node.dtype is dt.float16 for node in order):
        return new
    for node in order:
        made = with_sources(node, new)
        if made.dtype is dt.float16 and rounds(made):
            made = _rounded(made)
        elif made.dtype is dt.float16 and made.op is Op.CAST and made.src[0].dtype is dt.float64:
            made = _round_double(made.src[0])
        new[node] = made
    return new


def _rounded(node: Node) -> Node:
    """Return an fp16 node computed in float32 and rounded once."""
    wide = make(node.op, dt.float32, tuple(map(_widened, node.src)), node.arg)
    return make(Op.CAST, dt.float16, (wide,))


def _widened(node: Node) -> Node:
    if node.op is Op.CONST:
        return const(node.arg, dt.float32)
    return as_type(node, dt.float32)


def _round_double(node: Node) -> Node:
    """Return float64 values as fp16, through float32 values that round to the same fp16.

    A value that is not exactly a float32 becomes the neighbor whose last bit is 1, which is never
    halfway between two fp16 numbers. This is rounding to odd: Boldo, Melquiond 2008, "Emulation of
    FMA and correctly rounded sums".
    """
    nearest = as_type(node, dt.float32)
    back = as_type(nearest, dt.float64)
    too_far = alu(Op.LT, alu(Op.ABS, node), alu(Op.ABS, back))
    bits = make(Op.BITCAST, dt.int32, (nearest,))
    towards_0 = alu(Op.SUB, bits, as_type(too_far, dt.int32))
    odd = alu(Op.WHERE, alu(Op.EQ, node, back), bits, alu(Op.OR, towards_0, number(1, bits)))
    return as_type(make(Op.BITCAST, dt.float32, (odd,)), dt.float16)


def half_bits(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node without bit casts of fp16."""
    return Rewriter((Rule("bits of halves", (Op.BITCAST,), _written_out),))(roots)


def _written_out(node: Node) -> Node | None:
    (source,) = node.src
    if source.dtype is dt.float16:
        return as_type(_bits_of(as_type(source, dt.float32)), node.dtype)
    if node.dtype is dt.float16:
        return as_type(_half_of(as_type(source, dt.int32)), dt.float16)
    return None


def _bits_of(value: Node) -> Node:
    """Return the fp16 bits of float32 values that are exact in fp16, as int32."""
    size = make(Op.ABS, dt.float32, (value,))
    wide = make(Op.BITCAST, dt.int32, (size,))
    bits = alu(Op.SHR, alu(Op.SUB, wide, number(_BIAS, wide)), number(_SHIFT, wide))
    units = make(Op.CAST, dt.int32, (alu(Op.MUL, size, number(1 / _UNIT, size)),))
    bits = alu(Op.WHERE, alu(Op.LT, size, number(_NORMAL, size)), units, bits)
    is_infinite = alu(Op.EQ, size, number(inf, size))
    bits = alu(Op.WHERE, is_infinite, number(_INFINITY, bits), bits)
    bits = alu(Op.WHERE, alu(Op.NE, value, value), number(_NAN, bits), bits)
    sign = alu(Op.SHR, make(Op.BITCAST, dt.int32, (value,)), number(16, bits))
    return alu(Op.OR, bits, alu(Op.AND, sign, number(_SIGN, bits)))


def _half_of(bits: Node) -> Node:
    """Return the float32 values of fp16 bits in the lower 16 bits of an int32."""
    size = alu(Op.AND, bits, number(_SIGN - 1, bits))
    wide = alu(Op.ADD, alu(Op.SHL, size, number(_SHIFT, size)), number(_BIAS, size))
    value = make(Op.BITCAST, dt.float32, (wide,))
    units = alu(Op.MUL, as_type(size, dt.float32), number(_UNIT, value))
    value = alu(Op.WHERE, alu(Op.LT, size, number(_NORMAL_BITS, size)), units, value)
    is_infinite = alu(Op.EQ, size, number(_INFINITY, size))
    beyond = alu(Op.WHERE, is_infinite, number(inf, value), number(nan, value))
    value = alu(Op.WHERE, alu(Op.LT, number(_INFINITY - 1, size), size), beyond, value)
    signed = alu(Op.AND, bits, number(_SIGN, bits))
    is_negative = alu(Op.NE, signed, number(0, bits))
    return alu(Op.WHERE, is_negative, make(Op.NEG, dt.float32, (value,)), value)
