"""Rules for splats (tensors of one value) and repeated values: compute first, then repeat.

exp(expand(x))                    ->  expand(exp(x))        any elementwise operation, also
expand(x) + expand(y) * 2         ->  expand(x + y * 2)     with several operands of one shape
2 * expand(3)                     ->  expand(6)             the constant is computed here
sum(expand(3, (4, 5)), 1)         ->  expand(15, (4, 1))    n * c; max: c; product: c ** n
sum(expand(x, (4, 5)), 1)         ->  x * 5                 max: x
shrink(expand(3)), flip, window   ->  expand(3)
any tensor without elements       ->  expand(0)
"""

from __future__ import annotations

from math import prod

from scheduler.ir import interp
from scheduler.ir.build import expanded, like, number, repeated, spread
from scheduler.ir.node import Node, const
from scheduler.ir.ops import ELEMENTWISE, MOVEMENT, REDUCERS, Op
from scheduler.ir.rewrite import Rule

_REPEATING = frozenset({Op.EXPAND, Op.RESHAPE, Op.PERMUTE, Op.SHRINK, Op.FLIP, Op.WINDOW, Op.PAD})
_MOVES = tuple(op for op in Op if op in MOVEMENT)


def splat(node: Node) -> Node | None:
    """Return the CONST that all elements of a tensor equal, or None if they differ."""
    fills = []
    while node.op in _REPEATING:
        if node.op is Op.PAD and any(b or e for b, e in node.arg[0]):
            fills.append(const(node.arg[1], node.dtype))
        node = node.src[0]
    return node if node.op is Op.CONST and all(f is node for f in fills) else None


def value_of(node: Node) -> float | int | bool | None:
    """Return the Python value that all elements of a tensor equal, or None if they differ."""
    found = splat(node)
    return None if found is None else found.arg


def _without_elements(node: Node) -> Node | None:
    if all(node.shape) or node.op in (Op.BUFFER, Op.ASSIGN):
        return None
    return number(0, node)


def _move_constant(node: Node) -> Node | None:
    value = splat(node)
    return None if value is None else spread(value, node.shape)


def _constant_arithmetic(node: Node) -> Node | None:
    if node.op is Op.BITCAST:
        return None  # the conversion would lose the bits of a NaN
    values = [splat(s) for s in node.src]
    known = tuple(v for v in values if v is not None)
    if len(known) != len(values):
        return None
    (result,) = interp.evaluate([like(node, node.op, known, node.arg)])
    return number(result.item(), node)


def _before_expand(node: Node) -> Node | None:
    """Return arithmetic on expanded operands as the expansion of arithmetic."""
    shape = next((s.src[0].shape for s in node.src if s.op is Op.EXPAND and _varies(s)), None)
    if shape is None:
        return None
    # All operands must be repeated from one shape; constants can be repeated from any.
    small: list[Node] = []
    for source in node.src:
        value = splat(source)
        if value is not None:
            small.append(spread(value, shape))
        elif source.op is Op.EXPAND and source.src[0].shape == shape:
            small.append(source.src[0])
        else:
            return None
    return like(node, Op.EXPAND, (like(node, node.op, tuple(small), node.arg),), node.shape)


def _varies(node: Node) -> bool:
    return splat(node) is None


def _merge_expands(node: Node) -> Node | None:
    inner = node.src[0]
    return like(node, Op.EXPAND, inner.src, node.arg) if inner.op is Op.EXPAND else None


# --- Reductions -------------------------------------------------------------------------------


def _rounds(node: Node) -> bool:
    """Whether n * x can differ from a sum of n terms x, or x ** n from the product."""
    return node.dtype.is_float and node.arg[0] in (Op.ADD, Op.MUL)


def _reduce_constant(node: Node) -> Node | None:
    source, (op, axes) = node.src[0], node.arg
    value = splat(source)
    if value is None or op not in REDUCERS or not all(source.shape):
        return None
    found = repeated(op, value, prod(source.shape[a] for a in axes))
    return None if found is None else spread(found, node.shape)


def _reduce_repeated(node: Node) -> Node | None:
    """Return a reduction over expanded axes without the repeated terms."""
    source, (op, axes) = node.src[0], node.arg
    if source.op is not Op.EXPAND or not all(source.shape):
        return None
    inner = source.src[0]
    copied = [a for a, s in enumerate(inner.shape) if s != source.shape[a]]
    if not copied:
        return None
    left = tuple(a for a in axes if inner.shape[a] != 1)
    once = like(node, Op.REDUCE, (inner,), (op, left)) if left else inner
    result = repeated(op, once, prod(source.shape[a] for a in copied if a in axes))
    return None if result is None else expanded(result, node.shape)


def _exact_reduce(node: Node) -> Node | None:
    return None if _rounds(node) else _reduce_constant(node) or _reduce_repeated(node)


def _closed_sum(node: Node) -> Node | None:
    return (_reduce_constant(node) or _reduce_repeated(node)) if _rounds(node) else None


_ARITHMETIC = tuple(op for op in Op if op in ELEMENTWISE)

RULES = (
    Rule(
        "no elements",
        (*_ARITHMETIC, *_MOVES, Op.GATHER, Op.REDUCE, Op.IOTA, Op.CONTIGUOUS),
        _without_elements,
    ),
    Rule("movement of a constant", _MOVES, _move_constant),
    Rule("arithmetic on constants", _ARITHMETIC, _constant_arithmetic),
    Rule("merge expands", (Op.EXPAND,), _merge_expands),
    Rule("arithmetic before expand", _ARITHMETIC, _before_expand),
    Rule("reduction of one value", (Op.REDUCE,), _exact_reduce),
)

# n * x rounds once, the sum rounds n - 1 times: n * x is more accurate, but the bits differ.
SUM_RULES = (Rule("sum of one value", (Op.REDUCE,), _closed_sum),)
