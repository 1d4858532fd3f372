"""Reductions over copies of one value have closed forms, which need no loop.

sum(x, n times)       ->   x * n       if the type of x has the number n
max(x, n times)       ->   x
sum(3.0, n times)     ->   3.0 * n     rounded once; product: 3.0 ** n
"""

from __future__ import annotations

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir.build import spread
from scheduler.ir.node import Node, alu, const
from scheduler.ir.ops import Op


def repeated(op: Op, value: Node, count: int) -> Node | None:
    """Return what a reduction gives over copies of each element of a value.

    Infinities and NaN are the same in a sum and in a product with a count, and so are integers,
    which wrap around in both. A count that a float type does not have, from 2^24 on in float32,
    from 2^11 or as infinity in float16, would be another number: then nothing is returned, as for
    products of what is not known, which a power would round otherwise.

    Args:
        op: of the reduction.
        value: of any shape.
        count: how many copies, 1 at least.
    """
    kind = value.dtype
    if op in (Op.MAX, Op.MIN) or kind is dt.bool_ or count == 1:
        return value
    if value.op is Op.CONST:
        return const(_closed(op, value, count), kind)
    if op is not Op.ADD:
        return None
    times = const(count, kind)
    if kind.is_float and times.arg != count:
        return None
    return alu(Op.MUL, value, spread(times, value.shape))


def _closed(op: Op, value: Node, count: int) -> float | int:
    """Return a sum or product of copies of a known number."""
    if value.dtype.is_int:
        whole = int(value.arg)
        return whole * count if op is Op.ADD else pow(whole, count, 1 << 64)
    with np.errstate(all="ignore"):
        wide = np.float64(value.arg)
        return float(wide * count if op is Op.ADD else wide**count)
