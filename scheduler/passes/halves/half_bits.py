"""The pass writes bit patterns of halves as arithmetic, as halves are floats in registers.

bits(x)     ->   sign | (|x| < 2^-14 ? int(|x| * 2^24) : (bits32(|x|) - 0x38000000) >> 13)
half(b)     ->   +- (b < 0x400 ? b * 2^-24 : float((b << 13) + 0x38000000))

0x38000000 is the difference of the exponents' biases, 127 - 15, in float32's exponent field.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, nan
from typing import Final

from scheduler.ir import dtype as dt
from scheduler.ir.build import as_type, number
from scheduler.ir.node import Node, alu, make
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rewriter, Rule

_BIAS: Final = 0x38000000
_SHIFT: Final = 13  # bits of a float32's fraction that a half has not
_INFINITY: Final = 0x7C00
_NAN: Final = 0x7E00
_SIGN: Final = 0x8000
# The first half that is no denormal number, as a number and as bits; and the unit of denormals.
_NORMAL: Final = 2.0**-14
_NORMAL_BITS: Final = 0x400
_UNIT: Final = 2.0**-24


def half_bits(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node without bit patterns of halves."""
    return Rewriter((Rule("bits of halves", (Op.BITCAST,), _written_out),))(roots)


def _written_out(node: Node) -> Node | None:
    (source,) = node.src
    if source.dtype is dt.float16:
        return as_type(_bits_of(as_type(source, dt.float32)), node.dtype)
    if node.dtype is dt.float16:
        return as_type(_half_of(as_type(source, dt.int32)), dt.float16)
    return None


def _bits_of(value: Node) -> Node:
    """Return the 16 bits of halves that are given as float32, as int32."""
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
    """Return halves as float32, by their bits in the lower half of an int32."""
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
