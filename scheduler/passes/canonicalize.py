"""Simplifies the graph algebraically, so that equal values have one form and fewer nodes.

x + 0, x * 1, x - 0, x / 1                  ->  x       for floats x + -0.0 instead of x + 0
x / c  with c a power of two                ->  x * (1/c)       not in fp16
reshape(reshape(x)), permute(permute(x))    ->  one movement, also of two expands or shrinks
cast(cast(x, wide), own type)               ->  x       if the wider type holds every value
expand to the same shape, full shrink       ->  x
where(true, a, b), a and true, a or false   ->  a
contiguous(contiguous(x))                   ->  contiguous(x)
shrink(pad(x)) of padding only              ->  the fill value
shrink(cat(x, y)) within x                  ->  shrink(x)
cat(x[s:], x[:s])                           ->  shrink(x repeated twice): one source, read once

Movement is any operation that only rearranges elements, such as reshape, permute, expand or shrink.
All rules are bitwise exact, except closed sums (`splat.SUM_RULES`) and FLOAT_RULES.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import inf, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.build import expanded, like, number, peel, reshaped
from scheduler.ir.movement import MOVES, source_box, whole
from scheduler.ir.node import Node, alu, is_weight, make
from scheduler.ir.ops import Op, identity
from scheduler.ir.rewrite import Rewriter, Rule
from scheduler.passes import splat
from scheduler.passes.splat import value_of

# --- Rules that cancel operands: always for integers, for floats only on request --------------
#
# x * 0            ->  0        floats: NaN and infinity times 0 are NaN
# x - x            ->  0        floats: NaN, infinity - infinity
# a / a            ->  1        floats only: NaN, 0 / 0
# (a * b) / b      ->  a        floats only: rounding, overflow, b = 0
# x + 0, 0 + x     ->  x        floats: -0.0 + 0.0 is 0.0
# x**0.5           ->  sqrt(x)  floats only: -infinity (see `scheduler.ir.build`)


def _times_zero(node: Node) -> Node | None:
    return number(0, node) if any(value_of(s) == 0 for s in node.src) else None


def _minus_itself(node: Node) -> Node | None:
    return number(0, node) if node.src[0] is node.src[1] else None


def _over_itself(node: Node) -> Node | None:
    return number(1, node) if node.src[0] is node.src[1] else None


def _product_over_factor(node: Node) -> Node | None:
    product, divisor = node.src
    if product.op is not Op.MUL or divisor not in product.src:
        return None
    a, b = product.src
    return a if b is divisor else b


def _plus_zero(node: Node) -> Node | None:
    a, b = node.src
    return a if value_of(b) == 0 else b if value_of(a) == 0 else None


def _half_power(node: Node) -> Node | None:
    condition, limit, root = node.src
    if condition.op is not Op.EQ or root.op is not Op.SQRT or value_of(limit) != inf:
        return None
    x, bound = condition.src
    return root if root.src[0] is x and value_of(bound) == -inf else None


def _exact_times_zero(node: Node) -> Node | None:
    return None if node.dtype.is_float else _times_zero(node)


def _exact_minus_itself(node: Node) -> Node | None:
    return None if node.dtype.is_float else _minus_itself(node)


CANCEL_RULES = (
    Rule("integer times 0", (Op.MUL,), _exact_times_zero),
    Rule("integer minus itself", (Op.SUB,), _exact_minus_itself),
)

# Applied with `Flags.float_unsafe`.
FLOAT_RULES = (
    Rule("float times 0", (Op.MUL,), _times_zero),
    Rule("float minus itself", (Op.SUB,), _minus_itself),
    Rule("float over itself", (Op.DIV,), _over_itself),
    Rule("product over its factor", (Op.DIV,), _product_over_factor),
    Rule("float plus 0", (Op.ADD,), _plus_zero),
    Rule("half power", (Op.WHERE,), _half_power),
)

# --- A gather with known, evenly spaced indices is a slice ------------------------------------
#
# gather(x, [3, 4, 5])       ->  shrink(x, 3:6)
# gather(x, [-1])            ->  shrink(x, last)
# gather(x, [9, 7, 5])       ->  flip(shrink(x, 5:10:2))
# gather(x, [2, 2, 2])       ->  expand(shrink(x, 2:3))

# Longer index lists stay as weights, because evenly spaced indices of this length are rare.
MAX_INDICES = 65536


def _known(node: Node) -> NDArray[Any] | None:
    """Return the values of an index tensor that is movement over a constant, else None."""
    if prod(node.shape) > MAX_INDICES:
        return None
    _, leaf = peel(node, MOVES)
    if not is_weight(leaf) and leaf.op not in (Op.IOTA, Op.CONST):
        return None
    return interp.evaluate([node])[0].astype(np.int64).reshape(-1)


def _run(node: Node) -> Node | None:
    """Return a gather of evenly spaced rows as a slice, flip or expand."""
    data, index = node.src
    axis, size = node.arg, data.shape[node.arg]
    rows = _known(index)
    if rows is None or rows.size == 0 or rows.min() < -size or rows.max() >= size:
        return None
    rows = np.where(rows < 0, rows + size, rows)
    steps = np.unique(np.diff(rows))
    if steps.size > 1:
        return None
    step = int(steps[0]) if steps.size else 1
    low, high = int(rows.min()), int(rows.max())
    bounds = [(0, s, 1) for s in data.shape]
    bounds[axis] = (low, high + 1, abs(step) or 1)
    result = like(node, Op.SHRINK, (data,), tuple(bounds))
    if step < 0:
        result = like(node, Op.FLIP, (result,), (axis,))
    if step == 0:
        shape = (*data.shape[:axis], rows.size, *data.shape[axis + 1 :])
        result = expanded(result, shape)
    return reshaped(result, node.shape)


GATHER_RULES = (Rule("gather of a run", (Op.GATHER,), _run),)


def _is_zero(value: float | int | bool | None, dtype: dt.DType, *, negative: bool) -> bool:
    """Whether a value is zero and, for floats, has the given sign."""
    if value is None or value != 0:
        return False
    return not dtype.is_float or (math.copysign(1.0, value) < 0) is negative


def _identity(node: Node) -> Node | None:
    a, b = node.src
    left, right = value_of(a), value_of(b)
    if node.op is Op.MUL:
        return b if left == 1 else a if right == 1 else None
    if node.op is Op.ADD:  # -0.0 + 0.0 is 0.0, so only -0.0 is neutral for all floats
        if _is_zero(right, node.dtype, negative=True):
            return a
        return b if _is_zero(left, node.dtype, negative=True) else None
    if node.op is Op.SUB:
        return a if _is_zero(right, node.dtype, negative=False) else None
    return a if right == 1 else None


def _known_logic(node: Node) -> Node | None:
    for known, other in (node.src, node.src[::-1]):
        value = value_of(known)
        if isinstance(value, bool):
            return other if value is (node.op is Op.AND) else known
    return None


def _divide_by_power_of_two(node: Node) -> Node | None:
    value = value_of(node.src[1])
    if not isinstance(value, float) or value == 0 or not math.isfinite(value):
        return None
    mantissa, exponent = math.frexp(value)
    if abs(mantissa) != 0.5 or not -100 < exponent < 100 or node.dtype is dt.float16:
        return None
    return alu(Op.MUL, node.src[0], number(1.0 / value, node))


def _merge_reshape(node: Node) -> Node | None:
    inner = node.src[0]
    if inner.shape == node.shape:
        return inner
    if inner.op is Op.RESHAPE:
        return make(Op.RESHAPE, node.dtype, inner.src, node.arg)
    return None


def _merge_permute(node: Node) -> Node | None:
    if node.arg == tuple(range(len(node.arg))):
        return node.src[0]
    inner = node.src[0]
    if inner.op is not Op.PERMUTE:
        return None
    return make(Op.PERMUTE, node.dtype, inner.src, tuple(inner.arg[a] for a in node.arg))


def _same_shape(node: Node) -> Node | None:
    return node.src[0] if node.shape == node.src[0].shape else None


def _full_shrink(node: Node) -> Node | None:
    full = all(b == (0, s, 1) for b, s in zip(node.arg, node.src[0].shape, strict=True))
    return node.src[0] if full else None


def _cast(node: Node) -> Node | None:
    inner = node.src[0]
    if inner.dtype is node.dtype:
        return inner
    if inner.op is not Op.CAST or inner.src[0].dtype is not node.dtype:
        return None
    return inner.src[0] if _holds(inner.dtype, node.dtype) else None


def _holds(wide: dt.DType, narrow: dt.DType) -> bool:
    """Whether converting to `wide` and back preserves every value of `narrow`."""
    if wide.is_float and narrow.is_float:
        return wide.itemsize >= narrow.itemsize
    if wide.is_int and narrow.is_int and wide.is_unsigned == narrow.is_unsigned:
        return wide.itemsize >= narrow.itemsize
    digits = {"float16": 11, "float32": 24, "float64": 53}.get(wide.name, 0)
    return narrow.is_int and 8 * narrow.itemsize <= digits


def _known_condition(node: Node) -> Node | None:
    condition = value_of(node.src[0])
    return None if condition is None else node.src[1] if condition else node.src[2]


def _double_contiguous(node: Node) -> Node | None:
    return node.src[0] if node.src[0].op is Op.CONTIGUOUS else None


def _empty_reduce(node: Node) -> Node | None:
    if all(node.src[0].shape) or not all(node.shape):
        return None
    return number(identity(node.arg[0], node.dtype), node)


def _merge_shrinks(node: Node) -> Node | None:
    inner = node.src[0]
    if inner.op is not Op.SHRINK or not all(node.shape):
        return None
    bounds = tuple(
        (a + first * step, a + (first + (n - 1) * each) * step + 1, step * each)
        for (a, _, step), (first, _, each), n in zip(inner.arg, node.arg, node.shape, strict=True)
    )
    return like(node, Op.SHRINK, inner.src, bounds)


def _slice_of_padding(node: Node) -> Node | None:
    pad = node.src[0]
    if pad.op is not Op.PAD or not all(node.shape):
        return None
    read = source_box(node, whole(node.shape))
    if read is None or source_box(pad, read) is not None:
        return None
    return number(pad.arg[1], node)


def _slice_of_one_source(node: Node) -> Node | None:
    concat = node.src[0]
    if concat.op is not Op.CAT or not all(node.shape):
        return None
    axis, at = concat.arg, 0
    start, stop, step = node.arg[axis]
    last = start + (node.shape[axis] - 1) * step
    for source in concat.src:
        size = source.shape[axis]
        if at <= start and last < at + size:
            part = (start - at, min(stop - at, size), step)
            return like(node, Op.SHRINK, (source,), (*node.arg[:axis], part, *node.arg[axis + 1 :]))
        at += size
    return None


def _rotation(node: Node) -> Node | None:
    """Return a concat of a tensor's two swapped parts as a slice of the tensor repeated twice."""
    if len(node.src) != 2 or any(s.op is not Op.SHRINK for s in node.src):
        return None
    axis, (late, early) = node.arg, node.src
    (source,) = late.src
    size, start = source.shape[axis], late.arg[axis][0]
    ends = (*late.arg[:axis], (0, start, 1), *late.arg[axis + 1 :])
    if early.src != late.src or early.arg != ends or late.arg[axis] != (start, size, 1):
        return None
    shape = source.shape
    once = reshaped(source, (*shape[:axis], 1, *shape[axis:]))
    twice = expanded(once, (*shape[:axis], 2, *shape[axis:]))
    behind = reshaped(twice, (*shape[:axis], 2 * size, *shape[axis + 1 :]))
    bounds = (*late.arg[:axis], (start, start + size, 1), *late.arg[axis + 1 :])
    return like(node, Op.SHRINK, (behind,), bounds)


def _empty_sources(node: Node) -> Node | None:
    left = tuple(s for s in node.src if s.shape[node.arg])
    if len(left) == len(node.src) or not left:
        return None
    return like(node, Op.CAT, left, node.arg) if len(left) > 1 else left[0]


# These rules preserve every bit, except the sign and payload of NaN.
RULES = (
    *splat.RULES,
    *CANCEL_RULES,
    *GATHER_RULES,
    Rule("neutral element", (Op.ADD, Op.SUB, Op.MUL, Op.DIV), _identity),
    Rule("known logic", (Op.AND, Op.OR), _known_logic),
    Rule("divide by power of two", (Op.DIV,), _divide_by_power_of_two),
    Rule("merge reshapes", (Op.RESHAPE,), _merge_reshape),
    Rule("merge permutes", (Op.PERMUTE,), _merge_permute),
    Rule("expand to same shape", (Op.EXPAND,), _same_shape),
    Rule("full shrink", (Op.SHRINK,), _full_shrink),
    Rule("merge shrinks", (Op.SHRINK,), _merge_shrinks),
    Rule("slice of padding", (Op.SHRINK,), _slice_of_padding),
    Rule("slice of one source", (Op.SHRINK,), _slice_of_one_source),
    Rule("concat with nothing", (Op.CAT,), _empty_sources),
    Rule("rotation", (Op.CAT,), _rotation),
    Rule("needless cast", (Op.CAST,), _cast),
    Rule("known condition", (Op.WHERE,), _known_condition),
    Rule("empty reduction", (Op.REDUCE,), _empty_reduce),
    Rule("double contiguous", (Op.CONTIGUOUS,), _double_contiguous),
)

_SAFE = (*RULES, *splat.SUM_RULES)
_UNSAFE = (*_SAFE, *FLOAT_RULES)


def canonicalize(roots: Sequence[Node], *, float_unsafe: bool = False) -> dict[Node, Node]:
    """Return old node -> new node with all rules applied; for `float_unsafe` see `Flags`."""
    return Rewriter(_UNSAFE if float_unsafe else _SAFE)(roots)
