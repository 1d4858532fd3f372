"""Rules that cancel operands: always for integers, for floats only if the caller asks for it.

x * 0            ->  0        floats: NaN and infinity times 0 are NaN
x - x            ->  0        floats: NaN, infinity - infinity
a / a            ->  1        floats only: NaN, 0 / 0
(a * b) / b      ->  a        floats only: rounding, overflow, b = 0
x + 0, 0 + x     ->  x        floats: -0.0 + 0.0 is 0.0
x**0.5           ->  sqrt(x)  floats only: -infinity (see `scheduler.ir.half_power`)
"""

from __future__ import annotations

from math import inf

from scheduler.ir.build import number
from scheduler.ir.node import Node
from scheduler.ir.ops import Op
from scheduler.ir.rewrite import Rule
from scheduler.passes.splat import value_of


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


RULES = (
    Rule("integer times 0", (Op.MUL,), _exact_times_zero),
    Rule("integer minus itself", (Op.SUB,), _exact_minus_itself),
)

# With `Flags.float_unsafe`.
FLOAT_RULES = (
    Rule("float times 0", (Op.MUL,), _times_zero),
    Rule("float minus itself", (Op.SUB,), _minus_itself),
    Rule("float over itself", (Op.DIV,), _over_itself),
    Rule("product over its factor", (Op.DIV,), _product_over_factor),
    Rule("float plus 0", (Op.ADD,), _plus_zero),
    Rule("half power", (Op.WHERE,), _half_power),
)
