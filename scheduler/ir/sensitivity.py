"""A table says what each operation makes of a small change (rounding) of its operands.

    PASSES    max(x, y), x[i], -x, x moved     the change comes out as it went in
    SMOOTH    x + y, x * y, exp(x)             it comes out as a change of about its size
    SUMS      sum(x), product(x)               it is one among many, added up in no promised order
    DECIDES   floor(x), x < y, int(x), half(x) it may come out as a whole step

`decided` finds values by which something is decided, `rounds` operations that round halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum, auto
from typing import Final

from scheduler.ir.node import Node
from scheduler.ir.ops import COMPARE, MOVEMENT, Op


class Effect(Enum):
    """What an operation does to a small change of one of its operands."""

    PASSES = auto()
    SMOOTH = auto()
    SUMS = auto()
    DECIDES = auto()


# Their results are not always numbers of the type, and are rounded. Others make halves of halves.
_ROUNDS: Final = frozenset(
    {Op.ADD, Op.SUB, Op.MUL, Op.DIV, Op.POW, Op.SQRT, Op.RECIP, Op.EXP, Op.LOG, Op.SIN, Op.COS}
    | {Op.TANH, Op.ERF, Op.GELU}
)
# Movement that neither changes nor adds elements can be exchanged with arithmetic.
COMMUTING: Final = MOVEMENT - {Op.PAD, Op.CAT}
# Operands whose elements are elements of the result, up to their sign.
_PASSES: Final = (
    MOVEMENT | {Op.CONTIGUOUS, Op.GATHER, Op.ASSIGN, Op.MAX, Op.MIN, Op.WHERE} | {Op.NEG, Op.ABS}
)
# A hand-written kernel may do anything with what it reads: sort it, for one.
_DECIDES: Final = (
    COMPARE
    | {Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC, Op.MOD, Op.IDIV}
    | {Op.BITCAST, Op.WORDS, Op.CUSTOM}
)


def effect(node: Node) -> Effect:
    """Return what a node does to a small change of its floating-point operands.

    Conditions, indices and other integers are no such operands: they do not change a little.
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

    Conversions are not meant: rounding is all that they do.
    """
    return node.op in _ROUNDS or effect(node) is Effect.SUMS


def floats(node: Node) -> list[Node]:
    """Return the operands that may change a little."""
    return [s for s in node.src if s.dtype.is_float]


def decided(order: Sequence[Node]) -> set[Node]:
    """Return the values whose last place can decide about a whole step, whatever lies between.

    The walk ends at sums: their order is not promised, so neither is their last place.
    """
    seeds = [s for node in order if effect(node) is Effect.DECIDES for s in floats(node)]
    return upstream(order, seeds, lambda node: effect(node) in (Effect.PASSES, Effect.SMOOTH))


def upstream(
    order: Sequence[Node], seeds: Iterable[Node], through: Callable[[Node], bool]
) -> set[Node]:
    """Return the seeds and the values that they are computed from, looking through some nodes.

    A state is always looked through, to what is written to it: the next run reads that.
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
