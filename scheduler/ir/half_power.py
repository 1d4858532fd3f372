"""x**0.5 is made of a square root that keeps the values of C at -0.0 and -infinity."""

from __future__ import annotations

from math import inf

from scheduler.ir.build import number
from scheduler.ir.node import Node, alu
from scheduler.ir.ops import Op


def half_power(x: Node) -> Node:
    """Return x**0.5 of floats as C11 F.10.4.4 has pow: 0.0 of -0.0, infinity of -infinity.

    `passes.canonicalize` makes it the root alone where floats may cancel as real numbers do.
    """
    root = alu(Op.SQRT, alu(Op.ADD, x, number(0.0, x)))
    return alu(Op.WHERE, alu(Op.EQ, x, number(-inf, x)), number(inf, x), root)
