"""Take a quantised value that is meant as a number again before its conversion to an integer.

    float(int(byte(clip(round(v) + z, 0, 255))) - z)     ->     clip(round(v), -z, 255 - z)

What a kernel quantises and uses at once needs no byte: the number is whole and fits one. A byte
that is stored as well is converted for the store alone.
"""

from __future__ import annotations

from dataclasses import replace

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, alu, const
from scheduler.ir.ops import Op
from scheduler.kernelize.scalar import rebuild
from scheduler.loops.place import PlacedBody, place_again

_WHOLE = (Op.ROUND, Op.FLOOR, Op.CEIL, Op.TRUNC)
_LIMITS = (Op.MIN, Op.MAX)


def keep_whole_steps(body: PlacedBody) -> PlacedBody:
    """Return the body without conversions to bytes and back of what is a whole number."""
    return replace(body, value=rebuild(body.value, {}, place_again, _as_number))


def _as_number(node: Node) -> Node | None:
    """Return a byte less its zero point, as a float, without the byte."""
    if node.op is not Op.CAST or node.dtype is not dt.float32:
        return None
    whole, zero = node.src[0], 0
    if whole.op is Op.SUB and whole.src[1].op is Op.CONST and whole.dtype is dt.int32:
        whole, zero = whole.src[0], int(whole.src[1].arg)
    byte = whole.src[0] if whole.op is Op.CAST and whole.dtype is dt.int32 else whole
    if byte.op is not Op.CAST or byte.dtype not in (dt.uint8, dt.int8):
        return None
    number = byte.src[0]
    if not _is_whole(number, byte.dtype):
        return None
    return _less(number, float(zero))


def _less(number: Node, zero: float) -> Node:
    """Return a whole number less another one; sums with it at its source are left out."""
    if number.op in _LIMITS:
        bound = const(number.src[1].arg - zero, dt.float32)
        return alu(number.op, _less(number.src[0], zero), bound)
    if number.op is Op.ADD and number.src[1].arg == zero:
        return number.src[0]
    return number if zero == 0 else alu(Op.SUB, number, const(zero, dt.float32))


def _is_whole(value: Node, kind: dt.DType) -> bool:
    """Whether a float is a whole number that a type holds, or NaN, of which no cast is defined."""
    if value.dtype is not dt.float32:
        return False
    limits: dict[Op, list[float]] = {op: [] for op in _LIMITS}
    while value.op in _LIMITS and value.src[1].op is Op.CONST:
        limits[value.op].append(value.src[1].arg)
        value = value.src[0]
    if value.op is Op.ADD and value.src[1].op is Op.CONST and value.src[1].arg.is_integer():
        value = value.src[0]
    bounds = [bound for found in limits.values() for bound in found]
    held = all(b.is_integer() and dt.holds(kind, int(b)) for b in bounds)
    return value.op in _WHOLE and all(limits.values()) and held
