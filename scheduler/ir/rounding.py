"""Analyzes rounding: where small changes matter, and which values are too large for float16.

Each operation has an effect on a small change of its operands:

    PASSES    max(x, y), x[i], -x, x moved     the change is the same in the result
    SMOOTH    x + y, x * y, exp(x)             the change in the result has about the same size
    SUMS      sum(x), product(x)               the change is one of many, summed in any order
    DECIDES   floor(x), x < y, int(x), half(x) the result may change by a whole step

`decided` finds the values upstream of a DECIDES, `rounds` the operations that round float16
results, and `largest_values` bounds on magnitudes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from math import exp, isfinite, prod, sqrt
from typing import Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node
from scheduler.ir.ops import COMPARE, MOVEMENT, Op


class Effect(Enum):
    """The effect of an operation on a small change of one of its operands."""

    PASSES = auto()
    SMOOTH = auto()
    SUMS = auto()
    DECIDES = auto()


# Operations whose exact result may need rounding to the type. Others map float16 values to float16
# values.
_ROUNDS: Final = frozenset(
    {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.POW, Op.SQRT, Op.RECIP, Op.EXP, Op.LOG, Op.SIN, Op.COS}
    | {Op.TANH, Op.ERF, Op.GELU}
)
# Movement that neither changes nor adds elements commutes with arithmetic.
COMMUTING: Final = MOVEMENT - {Op.PAD, Op.CAT}
# Ops whose result elements are operand elements, up to their sign.
_PASSES: Final = (
    MOVEMENT | {Op.CONTIGUOUS, Op.GATHER, Op.ASSIGN, Op.MAX, Op.MIN, Op.WHERE} | {Op.NEG, Op.ABS}
)
# A hand-written kernel can do anything with its inputs, such as sorting them.
_DECIDES: Final = (
    COMPARE
    | {Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.MOD, Op.IDIV}
    | {Op.BITCAST, Op.WORDS, Op.CUSTOM}
)


def effect(node: Node) -> Effect:
    """Return the effect of a node on a small change of its floating-point operands.

    Conditions, indices and other integers do not count: they do not change by a little.
    """
    if node.op is Op.REDUCE:
        return Effect.SUMS if node.arg[0] in (Op.ADD, Op.MUL) else Effect.PASSES
    if node.op is Op.CAST:
        narrows = any(s.dtype.itemsize > node.dtype.itemsize for s in node.src)
        return Effect.DECIDES if narrows or not node.dtype.is_float else Effect.PASSES
    if node.op in _DECIDES:
        return Effect.DECIDES
    return Effect.PASSES if node.op in _PASSES else Effect.SMOOTH


def rounds(node: Node) -> bool:
    """Return whether a floating-point result may have to be rounded to its type.

    Conversions do not count: they only round.
    """
    return node.op in _ROUNDS or effect(node) is Effect.SUMS


def floats(node: Node) -> list[Node]:
    """Return the floating-point operands."""
    return [s for s in node.src if s.dtype.is_float]


def decided(order: Sequence[Node]) -> set[Node]:
    """Return the values whose last bit can flip a decision downstream.

    The search stops at sums: their order is free, so their last bit is not defined.
    """
    seeds = [s for node in order if effect(node) is Effect.DECIDES for s in floats(node)]
    return upstream(order, seeds, lambda node: effect(node) in (Effect.PASSES, Effect.SMOOTH))


def upstream(
    order: Sequence[Node], seeds: Iterable[Node], through: Callable[[Node], bool]
) -> set[Node]:
    """Return the seeds and the values from which they are computed, through some nodes.

    States are always looked through to the values written to them, which the next run reads.
    """
    written: dict[Node, list[Node]] = {}
    for node in order:
        if node.op is Op.ASSIGN:
            written.setdefault(node.src[0], []).append(node.src[1])
    stack = list(seeds)
    found = set(stack)
    while stack:
        node = stack.pop()
        sources = written.get(node, []) if node.op is Op.BUFFER else floats(node)
        if node.op is Op.BUFFER or through(node):
            new = [s for s in sources if s not in found]
            found.update(new)
            stack += new
    return found


# --- Bounds of magnitudes ----------------------------------------------------------------------
#
#     uint8 frame                  0 .. 255
#     where(mask, x, -1e9)         reaches -1e9, whatever x is
#     x + (mask - 1) * 1e9         reaches -1e9, if x is small
#     x @ w                        unknown: a strict bound would be far above real values
#
# A strict bound grows at every layer until it is useless, so an unknown operand counts as small.

# The largest finite float16.
HALF_MAX: Final = 65504.0
# exp(80) is 5.5e34, above any float16 and within float32.
_EXP_LIMIT: Final = 80.0

# (least, greatest) value; None if unknown.
Interval = tuple[float, float] | None

# Operations with results between -1 and 1.
_UNIT: Final = frozenset({Op.SIN, Op.COS, Op.TANH, Op.ERF})
_UNIT_RANGE: Final = (-1.0, 1.0)
_TO_WHOLE: Final = frozenset({Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC})


def largest_values(order: Sequence[Node]) -> dict[Node, float]:
    """Return the largest magnitude each node is known to reach, without unknown ones."""
    known: dict[Node, Interval] = {}
    for node in order:
        found = _interval(node, [known[s] for s in node.src])
        if node.dtype.is_int:
            low, high = float(dt.min_value(node.dtype)), float(dt.max_value(node.dtype))
            if found is None or found[0] < low or found[1] > high:  # unknown, or it wraps around
                found = (low, high)
        elif node.dtype is dt.bool_:
            found = (0.0, 1.0)
        if found is not None and not (isfinite(found[0]) and isfinite(found[1])):
            found = None  # float16 has infinities too
        known[node] = found
    return {n: max(abs(r[0]), abs(r[1])) for n, r in known.items() if r is not None}


def _interval(node: Node, src: list[Interval]) -> Interval:
    op = node.op
    if op is Op.CONST:
        return (float(node.arg), float(node.arg))
    if op is Op.IOTA:
        return (0.0, float(max(0, node.arg - 1)))
    if op is Op.BUFFER:
        return _of_weight(node)
    if op is Op.PAD and any(a or b for a, b in node.arg[0]):
        return _hull([*src, _finite(float(node.arg[1]))])
    if op in MOVEMENT or op is Op.CONTIGUOUS:
        return _hull(src)
    if op is Op.REDUCE:
        return _reduced(node, src[0])
    if op is Op.GATHER or (op is Op.CAST and (node.dtype.is_float or node.src[0].dtype.is_int)):
        return src[0]
    if op is Op.WHERE:
        return _hull(src[1:])
    if op in COMPARE:
        return (0.0, 1.0)
    return _UNIT_RANGE if op in _UNIT else _arithmetic(op, src)


def _arithmetic(op: Op, src: list[Interval]) -> Interval:
    """Return the range of an elementwise operation; unknown terms of a sum count as small."""
    if op in (Op.ADD, Op.SUB) and (src[0] is None) != (src[1] is None):
        one = src[0] if src[1] is None else src[1]
        return one if op is Op.ADD or src[1] is None else _negated(one)
    known = [s for s in src if s is not None]
    if len(known) != len(src):
        return None
    rule = _RULES.get(op)
    if rule is not None:
        return rule(known)
    return (known[0][0] - 1, known[0][1] + 1) if op in _TO_WHOLE else None


def _products(src: list[tuple[float, float]]) -> tuple[float, float]:
    ends = [a * b for a in src[0] for b in src[1]]
    return min(ends), max(ends)


def _magnitudes(src: list[tuple[float, float]]) -> tuple[float, float]:
    return 0.0, max(abs(src[0][0]), abs(src[0][1]))


_RULES: dict[Op, Callable[[list[tuple[float, float]]], tuple[float, float]]] = {
    Op.NEG: lambda s: (-s[0][1], -s[0][0]),
    Op.ABS: _magnitudes,
    Op.ADD: lambda s: (s[0][0] + s[1][0], s[0][1] + s[1][1]),
    Op.SUB: lambda s: (s[0][0] - s[1][1], s[0][1] - s[1][0]),
    Op.MUL: _products,
    Op.MAX: lambda s: (max(s[0][0], s[1][0]), max(s[0][1], s[1][1])),
    Op.MIN: lambda s: (min(s[0][0], s[1][0]), min(s[0][1], s[1][1])),
    Op.SQRT: lambda s: (0.0, sqrt(max(0.0, s[0][1]))),
    Op.EXP: lambda s: (0.0, exp(min(_EXP_LIMIT, s[0][1]))),
}


def _reduced(node: Node, values: Interval) -> Interval:
    op = node.arg[0]
    if values is None or op is Op.MUL:
        return None
    if op is Op.ADD:
        if node.src[0].op is Op.MUL and node.src[0].src[0] is not node.src[0].src[1]:
            return None
        terms = prod(node.src[0].shape) / max(1, prod(node.shape))
        return (values[0] * terms, values[1] * terms)
    return values


def _of_weight(node: Node) -> Interval:
    data = node.arg.data if node.arg.kind == "weight" else None
    if data is None or data.size == 0 or not np.isfinite(data).all():
        return None
    return (float(data.min()), float(data.max()))


def _hull(parts: Sequence[Interval]) -> Interval:
    known = [p for p in parts if p is not None]
    return (min(p[0] for p in known), max(p[1] for p in known)) if known else None


def _negated(part: Interval) -> Interval:
    return None if part is None else (-part[1], -part[0])


def _finite(value: float) -> Interval:
    return (value, value) if isfinite(value) else None
