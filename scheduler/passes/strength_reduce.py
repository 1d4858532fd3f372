"""Replaces operations by cheaper ones with the same meaning (strength reduction).

x / c                                  ->  x * (1/c)        float32 and float64, c constant
(x * c) * d                            ->  x * (c*d)
pow(x, 2), pow(x, 0.5), ...            ->  x * x, sqrt(x) except for -0.0 and -infinity, ...
1 / y                                  ->  recip(y)
x * 0.5 * (1 + erf(x / sqrt 2))        ->  gelu(x)          float32, factors in any order

Results can differ in the last place. Values that decide something later (`scheduler.ir.rounding`),
such as operands of a comparison, are therefore left unchanged. `canonicalize` has the exact rules.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir.build import half_power, number
from scheduler.ir.node import Node, alu, toposort
from scheduler.ir.ops import ELEMENTWISE, Op
from scheduler.ir.rewrite import unchanged, with_sources
from scheduler.ir.rounding import decided
from scheduler.passes.splat import value_of

# Powers from -2 to this exponent become products, three for x**8. POW costs 24 adds
# (`ir.ops.COST`).
_LARGEST_POWER: Final = 8
# Tolerance for the factors of a GELU: exporters write sqrt(2) with 7 digits or more.
_DIGITS: Final = 1e-6


def strength_reduce(roots: Sequence[Node]) -> dict[Node, Node]:
    """Return old node -> new node with cheaper operations; nodes inside a GELU map to the GELU."""
    order = toposort(roots)
    new = unchanged(order)
    exact = decided(order)
    merged: dict[Node, Node] = {}
    for node in order:
        current = with_sources(node, new)
        if node.dtype.is_float and node not in exact:
            current = _reduce(current)
        new[node] = current
        # Nodes inside the GELU map to it, so that their names are not lost.
        if current.op is Op.GELU is not node.op:
            merged.update(dict.fromkeys(_replaced(node, current.src[0], new), current))
    # Roots keep their own value: a caller may request a part of the GELU as an output.
    return new | {old: gelu for old, gelu in merged.items() if old not in roots}


def _reduce(node: Node) -> Node:
    """Return the cheapest form of a node whose sources are already in their cheapest form."""
    found, better = node, _step(node)
    while better is not None:
        found, better = better, _step(better)
    return found


def _step(node: Node) -> Node | None:
    if node.op is Op.DIV:
        return _multiply(node) or _reciprocal(node)
    if node.op is Op.MUL:
        return _gelu(node) or _merge_factors(node)
    return _power(node) if node.op is Op.POW else None


def _number(node: Node) -> float | None:
    """Return the value of a constant if it is finite and nonzero."""
    value = value_of(node)
    return value if isinstance(value, float) and math.isfinite(value) and value != 0 else None


def _is_normal(value: float, kind: dt.DType) -> bool:
    limits = np.finfo(kind.np)
    return float(limits.tiny) <= abs(value) <= float(limits.max)


def _multiply(node: Node) -> Node | None:
    """Multiply by the reciprocal: at most one unit in the last place from the rounded quotient."""
    divisor = _number(node.src[1])
    # Not for fp16, where reciprocals round to 11 bits, nor for subnormal reciprocals.
    if divisor is None or node.dtype is dt.float16 or not _is_normal(1 / divisor, node.dtype):
        return None
    return alu(Op.MUL, node.src[0], number(1 / divisor, node))


def _reciprocal(node: Node) -> Node | None:
    return alu(Op.RECIP, node.src[1]) if value_of(node.src[0]) == 1 else None


def _factor(node: Node) -> tuple[Node, float] | None:
    """Return (x, c) of a product x * c with a constant c."""
    if node.op is not Op.MUL:
        return None
    for x, other in (node.src, node.src[::-1]):
        value = _number(other)
        if value is not None:
            return x, value
    return None


def _merge_factors(node: Node) -> Node | None:
    outer = _factor(node)
    inner = None if outer is None else _factor(outer[0])
    if outer is None or inner is None or node.dtype is dt.float16:
        return None
    # The merged factor can overflow or underflow although the two products would not.
    both = outer[1] * inner[1]
    if not _is_normal(both, node.dtype):
        return None
    return alu(Op.MUL, inner[0], number(both, node))


def _power(node: Node) -> Node | None:
    """Return a power with a small constant exponent as products or a root."""
    base, exponent = node.src[0], value_of(node.src[1])
    if not isinstance(exponent, float) or not math.isfinite(exponent):
        return None
    if abs(exponent) == 0.5:
        root = half_power(base)
        return root if exponent > 0 else alu(Op.RECIP, root)
    if exponent != int(exponent) or not -2 <= exponent <= _LARGEST_POWER:
        return None
    # By IEEE 754 and OpenCL, pow(x, 0) is 1 for every x, including NaN.
    if exponent == 0:
        return number(1.0, node)
    result: Node | None = None
    square, n = base, abs(int(exponent))
    # One squaring for each bit of the exponent.
    while n:
        if n & 1:
            result = square if result is None else alu(Op.MUL, result, square)
        n >>= 1
        square = alu(Op.MUL, square, square) if n else square
    assert result is not None
    return result if exponent > 0 else alu(Op.RECIP, result)


# --- Gelu -------------------------------------------------------------------------------------


def _gelu(node: Node) -> Node | None:
    """Recognize x * 0.5 * gate(x) with its factors in any of three orders."""
    if node.dtype is not dt.float32:  # in fp16 each step of the product rounds visibly
        return None
    # Factors commute and exporters use every order, so both sides are tried.
    for a, b in (node.src, node.src[::-1]):
        found = _scaled_times_gate(node, a, b)
        half = _factor(b)
        if found is None and half is not None and half[1] == 0.5:  # x * (gate * 0.5)
            found = _of_gate(a, half[0])
        if found is None and value_of(b) == 0.5 and a.op is Op.MUL:  # (x * gate) * 0.5
            left, right = a.src
            found = _of_gate(left, right) or _of_gate(right, left)
        if found is not None:
            return found
    return None


def _scaled_times_gate(node: Node, a: Node, gate: Node) -> Node | None:
    """Return gelu(y * 2c) for (y * c) * (1 + erf(y * k)), if k is sqrt 2 times c."""
    scaled, half = _gate_argument(gate), _factor(a)
    if scaled is None or half is None or scaled[0] is not half[0]:
        return None
    if not _near(scaled[1] / (2 * half[1])):
        return None
    y, c = half
    return alu(Op.GELU, y if c == 0.5 else alu(Op.MUL, y, number(2 * c, node)))


def _of_gate(x: Node, gate: Node) -> Node | None:
    """Return gelu(x) if `gate` is 1 + erf(x / sqrt 2)."""
    scaled = _gate_argument(gate)
    if scaled is None:
        return None
    if scaled[0] is x:
        scale = scaled[1]
    else:  # x = y * c, and the argument became y * (c / sqrt 2)
        own = _factor(x)
        if own is None or own[0] is not scaled[0]:
            return None
        scale = scaled[1] / own[1]
    return alu(Op.GELU, x) if _near(scale) else None


def _gate_argument(node: Node) -> tuple[Node, float] | None:
    """Return (x, c) of 1 + erf(x * c)."""
    for error, one in (node.src, node.src[::-1]) if node.op is Op.ADD else ():
        if error.op is Op.ERF and value_of(one) == 1:
            argument = error.src[0]
            if argument.op is not Op.DIV:
                return _factor(argument)
            divisor = _number(argument.src[1])
            return None if divisor is None else (argument.src[0], 1 / divisor)
    return None


def _replaced(node: Node, x: Node, new: Mapping[Node, Node]) -> list[Node]:
    """Return the old nodes of a GELU above its argument, or above the argument's unscaled form."""
    found: list[Node] = []
    stack = [node]
    while stack:
        part = stack.pop()
        found.append(part)
        inner = (s for s in part.src if s.op in ELEMENTWISE and s not in found)
        # new[s] is x or below x once the walk reaches the argument of the GELU.
        stack.extend(s for s in inner if new[s] is not x and new[s] not in x.src)
    return found


def _near(scale: float) -> bool:
    return abs(scale * math.sqrt(2.0) - 1.0) < _DIGITS
