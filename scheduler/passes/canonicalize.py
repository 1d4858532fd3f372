"""The pass applies small algebra: fewer nodes, one form for equal things.

x + 0, x * 1, x - 0, x / 1                  ->  x
x / c  with c a power of two                ->  x * (1/c)
reshape(reshape(x)), permute(permute(x))    ->  one movement, also of two expands or shrinks
cast(cast(x, wide), own type)               ->  x       if the wider type holds every value
expand to the same shape, full shrink       ->  x
where(true, a, b)                           ->  a
contiguous(contiguous(x))                   ->  contiguous(x)
shrink(pad(x)) of padding only              ->  the fill value
shrink(cat(x, y)) within x                  ->  shrink(x)
cat(x[s:], x[:s])                           ->  shrink(x behind itself): one source, read once

With rules on tensors of one value (`splat`), operands that cancel (`cancel`) and gathers of known
rows (`known_gather`). All rules are exact in floating point but those of two lists: closed sums
(`splat.SUM_RULES`), and what
FLOAT_UNSAFE asks for.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from scheduler.ir import dtype as dt
from scheduler.ir.boxes import source_box, whole
from scheduler.ir.build import expanded, like, number, reshaped
from scheduler.ir.node import Node, alu, make
from scheduler.ir.ops import Op, identity
from scheduler.ir.rewrite import Rewriter, Rule
from scheduler.passes import cancel, known_gather, splat
from scheduler.passes.splat import value_of as _scalar


def _is_zero(value: float | int | bool | None, dtype: dt.DType, *, negative: bool) -> bool:
    """Whether a value is zero and, for floats, has the given sign."""
    if value is None or value != 0:
        return False
    return not dtype.is_float or (math.copysign(1.0, value) < 0) is negative


def _identity(node: Node) -> Node | None:
    a, b = node.src
    left, right = _scalar(a), _scalar(b)
    if node.op is Op.MUL:
        return b if left == 1 else a if right == 1 else None
    if node.op is Op.ADD:  # -0.0 + 0.0 is 0.0, so only -0.0 is neutral for every float
        if _is_zero(right, node.dtype, negative=True):
            return a
        return b if _is_zero(left, node.dtype, negative=True) else None
    if node.op is Op.SUB:
        return a if _is_zero(right, node.dtype, negative=False) else None
    return a if right == 1 else None


def _divide_by_power_of_two(node: Node) -> Node | None:
    value = _scalar(node.src[1])
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
    """Whether every value of `narrow` survives a trip through `wide`."""
    if wide.is_float and narrow.is_float:
        return wide.itemsize >= narrow.itemsize
    if wide.is_int and narrow.is_int and wide.is_unsigned == narrow.is_unsigned:
        return wide.itemsize >= narrow.itemsize
    digits = {"float16": 11, "float32": 24, "float64": 53}.get(wide.name, 0)
    return narrow.is_int and 8 * narrow.itemsize <= digits


def _known_condition(node: Node) -> Node | None:
    condition = _scalar(node.src[0])
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
    """Two parts of one tensor that changed places, as a part of the tensor behind itself."""
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


# Exact: every bit stays, but for the sign and payload of a NaN.
RULES = (
    *splat.RULES,
    *cancel.RULES,
    *known_gather.RULES,
    Rule("neutral element", (Op.ADD, Op.SUB, Op.MUL, Op.DIV), _identity),
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
_UNSAFE = (*_SAFE, *cancel.FLOAT_RULES)


def canonicalize(roots: Sequence[Node], *, float_unsafe: bool = False) -> dict[Node, Node]:
    """Return old node -> new node with all rules applied.

    Args:
        roots: of the graph.
        float_unsafe: floats may cancel as real numbers do, see `Flags`.
    """
    return Rewriter(_UNSAFE if float_unsafe else _SAFE)(roots)
