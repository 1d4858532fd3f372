"""Decides which values remain float32 when others are stored as fp16, and gives the reasons.

Rounding to fp16 has a relative error of at most 0.05 %. It matters only if a later operation
amplifies the error or decides something by the value:

    x -> floor(x), x == y, gather index      a decision: a tiny change gives a different result
    x -> sum(d * d), d = x - mean(x)         the mean can be large and the difference small
    x -> sum(exp(x))                         the relative error of exp(x) is that of x, times x
    x -> partial sum -> sum                  the partial sums can cancel

docs/passes/precision.md lists all reasons.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from math import inf, prod, sqrt
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.device.spec import DeviceSpec
from scheduler.ir import dtype as dt
from scheduler.ir.build import peel
from scheduler.ir.custom_kernel import stored_for_custom
from scheduler.ir.node import Node, consumers, is_weight, toposort
from scheduler.ir.ops import ELEMENTWISE, MOVEMENT, Op
from scheduler.ir.rounding import HALF_MAX, Effect, effect, floats, largest_values, upstream

# The smallest normal fp16 number.
SMALLEST_NORMAL: Final = 2.0**-14
# Rounding to normal fp16 changes a row of a weight by at most 2^-11, to subnormals by more.
ROW_ERROR: Final = 2.0**-10
# Tensors with fewer elements take no time to read: scales, squeezed channels, outputs of heads.
SMALL: Final = 1024
# A sum of at least this many values is much smaller than its terms, so float32 costs little.
MANY: Final = 64
# Powers up to this one multiply the relative error by at most this factor.
SMALL_POWER: Final = 4.0

# Limits for devices without fp16 arithmetic: how often a sum of products can use an element that
# it must convert. Weights are loaded as vectors and serve several rows, but intermediates are often
# loaded one by one. With all of them as fp16, the example models take 2.2 times as long (AVX-512,
# 2026-11).
WEIGHT_USES: Final = 256
VALUE_USES: Final = 8  # the limit for an intermediate
BIAS: Final = "a bias or a scale"

_ONE_TO_ONE: Final = ELEMENTWISE | {Op.RESHAPE, Op.PERMUTE, Op.FLIP, Op.CONTIGUOUS}
_MOVES: Final = MOVEMENT | {Op.CONTIGUOUS}
_CHAIN: Final = _MOVES - {Op.CAT}  # movement with one source


def reasons(roots: Sequence[Node], candidates: Iterable[Node], spec: DeviceSpec) -> dict[Node, str]:
    """Return the candidates that must remain float32, each with its reason as a short phrase.

    `roots` are outputs and ASSIGN nodes, after the graph passes. `candidates` are weights and
    float32 nodes that would be stored.
    """
    order = toposort(roots)
    users = consumers(order)
    custom = stored_for_custom(order)

    # A cone is the values that a seed depends on, through nodes for which `through` holds.
    def cone(seeds: Iterable[Node], through: Callable[[Node], bool] = _carries) -> set[Node]:
        return upstream(order, seeds, through)

    custom |= cone([s for n in order if n.op is Op.CUSTOM for s in n.src], _is_move)
    cones = (
        ("a custom kernel reads or writes it", custom),
        ("an output or a state is a copy of it", cone(_copied(roots), _is_move)),
        ("an index, an integer or a test depends on it", cone(decided_by(order))),
        ("a variance depends on it", cone(_squared(order))),
        ("a sum of exponentials depends on it", cone(_exponents(order, users))),
        ("a power depends on it", cone(_powers(order))),
        ("a partial sum", _partial_sums(order)),
    )
    largest = largest_values(order)
    # Other devices convert without slowing down multiply-adds, so their uses need no limit.
    converted = uses_in_products(order) if _pays_for_conversions(spec) else {}
    found: dict[Node, str] = {}
    for node in candidates:
        # Too small to matter for bandwidth, and each element affects a whole channel.
        reason = BIAS if is_weight(node) and sum(s > 1 for s in node.shape) <= 1 else None
        # The order of the cones selects the reported reason.
        reason = reason or next((text for text, nodes in cones if node in nodes), None)
        reason = reason or (_reason_of_weight(node) if is_weight(node) else _reason_of_value(node))
        if reason is None and converted.get(node, 0) > _most_uses(node):
            reason = f"a sum of products would convert it {converted[node]} times"
        if reason is None and largest.get(node, 0.0) > HALF_MAX:
            reason = f"it reaches {largest[node]:.3g}, beyond {HALF_MAX:.0f}"
        if reason is not None:
            found[node] = reason
    return found


def _reason_of_weight(node: Node) -> str | None:
    """Return a weight's reason to remain float32 that follows from its values, or None."""
    size = np.abs(node.arg.data)
    if not np.isfinite(size).all():
        return None  # fp16 has infinities and NaN, too
    if size.max() > HALF_MAX:
        return f"it holds {size.max():.3g}, beyond {HALF_MAX:.0f}"
    error = _row_error(node.arg.data, size)
    if error > ROW_ERROR:
        return f"rounding changes a row of small values by {error:.1%}"
    return None


def _row_error(data: NDArray[Any], size: NDArray[Any]) -> float:
    """Return the largest relative error (2-norm) of any slice of a weight rounded to fp16."""
    # The error of normal fp16 numbers is bounded, so only subnormals need a measurement.
    if not np.any((size > 0) & (size < SMALLEST_NORMAL)):
        return 0.0
    error = (data.astype(np.float16).astype(np.float64) - data) ** 2
    energy = data.astype(np.float64) ** 2
    worst = 0.0
    # Check each axis: a weight can be scaled by output or input channel, and the axis is unknown.
    for axis in range(data.ndim):
        others = tuple(a for a in range(data.ndim) if a != axis)
        row = energy.sum(others)
        ratio = error.sum(others)[row > 0] / row[row > 0]
        worst = max(worst, float(ratio.max(initial=0.0)))
    return sqrt(worst)


def _reason_of_value(node: Node) -> str | None:
    """Return an intermediate's reason to remain float32 that follows from its computation."""
    if prod(node.shape) < SMALL:
        return f"fewer than {SMALL} elements"
    stack, seen = [node], {node}
    while stack:
        at = stack.pop()
        if at.op is Op.REDUCE and at.arg[0] in (Op.ADD, Op.MUL) and not is_contraction(at):
            terms = prod(at.src[0].shape) // max(1, prod(at.shape))
            if at is node or terms >= MANY:
                return "a sum over many values"
        if at.op in _ONE_TO_ONE:
            new = [s for s in at.src if s not in seen]
            seen.update(new)
            stack += new
    return None


# --- Number of uses ---------------------------------------------------------------------------


def _pays_for_conversions(spec: DeviceSpec) -> bool:
    """Whether conversions compete with multiply-adds for the same instruction slots."""
    return not (spec.is_simt or spec.half.arithmetic)


def _most_uses(node: Node) -> int:
    return WEIGHT_USES if is_weight(node) else VALUE_USES


def uses_in_products(order: Sequence[Node]) -> dict[Node, int]:
    """Return how often the largest sum of products uses an element of each node."""
    uses: dict[Node, int] = {}
    # Readers come first, so a node's uses are complete when its sources are visited.
    for node in reversed(order):
        if node.op is Op.REDUCE and node.src[0].op is Op.MUL and is_contraction(node):
            terms = prod(node.src[0].shape)
            for factor in node.src[0].src:
                uses[factor] = max(uses.get(factor, 0), terms // max(1, prod(factor.shape)))
        elif node in uses and (node.op in ELEMENTWISE or node.op in _MOVES):
            for source in node.src:
                ratio = prod(node.shape) / max(1, prod(source.shape))
                passed = max(1, round(uses[node] * ratio))
                uses[source] = max(uses.get(source, 0), passed)
    return uses


# --- Effects on later values ------------------------------------------------------------------


def is_contraction(node: Node) -> bool:
    """Whether a REDUCE sums products of two different values, in one stage or several."""
    # A sum in several stages (`split_reduce`) counts as one: its partial sums lead to the product.
    chain, node = peel(node, _CHAIN | {Op.REDUCE})
    if any(n.op is Op.REDUCE and n.arg[0] is not Op.ADD for n in chain):
        return False
    return node.op is Op.MUL and node.src[0] is not node.src[1]


def _is_move(node: Node) -> bool:
    return node.op in _MOVES


def _carries(node: Node) -> bool:
    """Whether a changed operand is visible in the result, and not averaged out in a large sum."""
    return not (node.op is Op.REDUCE and is_contraction(node)) and not _is_launch(node)


def _is_launch(node: Node) -> bool:
    return node.op in (Op.CUSTOM, Op.RESULT)


def _copied(roots: Sequence[Node]) -> list[Node]:
    return [r.src[1] if r.op is Op.ASSIGN else r for r in roots]


def decided_by(order: Sequence[Node]) -> list[Node]:
    """Return floats that decide a later result. Signs are exempt: rounding to fp16 keeps them."""
    found: list[Node] = []
    for node in order:
        signs = node.op is Op.LT and any(_scalar(s) == 0 for s in node.src)
        to_half = node.op is Op.CAST and node.dtype is dt.float16
        if effect(node) is Effect.DECIDES and not (signs or to_half or _is_launch(node)):
            found += floats(node)
    return found


def _squared(order: Sequence[Node]) -> list[Node]:
    """Return values that are squared and then summed."""
    found: list[Node] = []
    for node in order:
        if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD:
            continue
        _, below = peel(node.src[0], _CHAIN)
        squares = below.op is Op.MUL and below.src[0] is below.src[1]
        # Exporters write squares as x * x or as pow(x, 2).
        if squares or (below.op is Op.POW and _scalar(below.src[1]) == 2):
            found.append(below.src[0])
    return found


def _exponents(order: Sequence[Node], users: dict[Node, list[Node]]) -> list[Node]:
    """Return arguments of exp, except if a constant is added to all results.

    Sigmoid, softplus and ELU are such sums, and are flat where exp is steep.
    """
    found: list[Node] = []
    for node in order:
        if node.op is Op.EXP:
            adds = [u.op in (Op.ADD, Op.SUB) and any(map(_is_scalar, u.src)) for u in users[node]]
            if not adds or not all(adds):
                found.append(node.src[0])
    return found


def _powers(order: Sequence[Node]) -> list[Node]:
    found: list[Node] = []
    for node in order:
        exponent = _scalar(node.src[1]) if node.op is Op.POW else 0.0
        if exponent is None or abs(exponent) > SMALL_POWER:
            found += node.src
    return found


def _partial_sums(order: Sequence[Node]) -> set[Node]:
    """Return sums that are only moved before they are summed again."""
    found: set[Node] = set()
    for node in order:
        if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD:
            continue
        chain, inner = peel(node.src[0], _CHAIN)
        if inner.op is Op.REDUCE and inner.arg[0] is Op.ADD:
            found.update((*chain, inner))
    return found


def _scalar(node: Node) -> float | None:
    """Return the number that all elements equal, or None if they differ or are unknown."""
    _, node = peel(node, (Op.EXPAND, Op.RESHAPE, Op.PERMUTE))
    if node.op is Op.CONST:
        return float(node.arg)
    if is_weight(node) and node.arg.data.size == 1 and node.dtype is not dt.bool_:
        return float(node.arg.data.reshape(-1)[0])
    return None


def _is_scalar(node: Node) -> bool:
    value = _scalar(node)
    return value is not None and abs(value) < inf
