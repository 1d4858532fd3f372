"""What a graph means, with bounds of what may come of it: values, and how far from them is right.

    judge = Judge({"x": array})
    judge.of(tensor.node)        # Known(value, error), one error per element

Values are those of the interpreter, in the types of the graph. Errors are absolute, and grow as in
a running error analysis (Higham, Accuracy and Stability of Numerical Algorithms, chapters 2 to 4):
each rounding adds a unit of the last place, sums of n terms n halves of the sum of magnitudes, in
whatever order they are added up. An error of 0 means that the bits are known: what only adds up
numbers of one grid, moves, compares or rounds them. An infinite one means that nothing is known:
a comparison that rounding may turn, a cast of what no integer holds, a sum that may overflow.
What is rounded to whole numbers may be a step off where a tie is near, and integers that are made
of it by as much as sums and products make of a step.

A quotient may be a product with a reciprocal, unless something decides by it before the next sum
(docs/passes/strength_reduce.md): so errors are kept twice, the strict ones for what decides.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.node import Buffer, Node, toposort
from scheduler.ir.ops import COMPARE, MOVEMENT, Op
from scheduler.ir.rewrite import SERIAL
from tests.fuzz.functions import of_custom, of_function
from tests.fuzz.rounding import (
    EXACT_GRID,
    INFINITE,
    SUM_GRID,
    Array,
    Known,
    clean,
    is_exact,
    on_one_grid,
    rounding,
    wide,
)


@dataclass
class Judge:
    """Evaluates nodes, each once.

    Attributes:
        given: values of inputs and states by name; states may come with errors of an earlier run.
        known: what is known so far.
        loose: None; in the judge of what decides, the one that asks it.
    """

    given: Mapping[str, Array | Known]
    known: dict[Node, Known] = field(default_factory=dict)
    loose: Judge | None = None

    @cached_property
    def strict(self) -> Judge:
        """The judge of what decides: quotients are what IEEE 754 says."""
        return Judge(self.given, loose=self)

    def of(self, root: Node) -> Known:
        if root not in self.known:
            with np.errstate(all="ignore"):
                for node in toposort([root]):
                    if node not in self.known and node.op is not Op.CUSTOM:
                        self.known[node] = self._evaluate(node)
        return self.known[root]

    def _evaluate(self, node: Node) -> Known:
        if node.op is Op.BUFFER:
            return self._leaf(node.arg)
        if node.op is Op.RESULT:
            return of_custom(node, [self.known[s] for s in node.src[0].src])
        if node.op is Op.ALTERNATIVES:
            return self.known[node.src[SERIAL]]
        if self.loose is None and decides(node) and any(s.dtype.is_float for s in node.src):
            return self.strict.of(node)
        if self.loose is not None and _adds_up(node):
            return self.loose.of(node)
        sources = [self.known[s] for s in node.src]
        value = _value(node, [s.value for s in sources])
        if not sources:
            return Known(value, np.zeros(value.shape))
        if node.op in MOVEMENT or node.op in (Op.CONTIGUOUS, Op.ASSIGN):
            return Known(value, _moved(node, sources))
        rule = _RULES.get(node.op)
        exact = not node.dtype.is_float and not _reads_floats(node)
        if (exact and node.op not in _PICKS) or (rule is None and not node.dtype.is_float):
            error = _of_exact(node, sources, value)
        elif rule is None:
            error = of_function(node, sources, value)
        else:
            error = rule(node, sources, value)
            if node.op in (Op.DIV, Op.RECIP) and self.loose is None:
                error = error + _reciprocal(node, sources, value)
        error = clean(error, value)
        if node.dtype is dt.float16:  # wide halves go on beyond the largest one
            error[np.isinf(value) & _are_finite(sources, value)] = INFINITE
            # What may be beyond it may be an infinity.
            error[(error > 0) & (np.abs(wide(value)) + error > np.finfo(np.float16).max)] = INFINITE
        return Known(value, error)

    def _leaf(self, buffer: Buffer) -> Known:
        found = self.given.get(buffer.name, buffer.data) if buffer.kind != "weight" else buffer.data
        if isinstance(found, Known):
            return found
        if found is None and buffer.kind == "state":
            found = np.zeros(buffer.shape, buffer.dtype.np)
        value = np.asarray(found, buffer.dtype.np).reshape(buffer.shape)
        return Known(value, np.zeros(buffer.shape))


def _are_finite(sources: list[Known], value: Array) -> Array:
    """Return by element of a result whether it was made of finite numbers."""
    found = [np.isfinite(wide(s.value)) for s in sources]
    same = [f if f.shape == value.shape else np.asarray(f.all()) for f in found]
    return np.broadcast_to(np.logical_and.reduce(np.broadcast_arrays(*same)), value.shape)


def decides(node: Node) -> bool:
    """Whether a small change of an operand may change a result by a whole step."""
    if node.op is Op.CAST:
        narrows = node.src[0].dtype.itemsize > node.dtype.itemsize
        return narrows or not node.dtype.is_float
    return node.op in COMPARE or node.op in _STEPS or node.op is Op.BITCAST


def _adds_up(node: Node) -> bool:
    return node.op is Op.REDUCE and node.arg[0] in (Op.ADD, Op.MUL) and node.dtype.is_float


def _value(node: Node, sources: list[Array]) -> Array:
    """Return what the interpreter gives; sums and products of floats are added up in float64."""
    if node.op is Op.REDUCE and node.dtype.is_float and node.arg[0] in (Op.ADD, Op.MUL):
        add_up = np.sum if node.arg[0] is Op.ADD else np.prod
        total = add_up(wide(sources[0]), axis=node.arg[1], keepdims=True)
        return np.asarray(total).astype(node.dtype.np)
    return interp.evaluate_node(node, sources)


def _reads_floats(node: Node) -> bool:
    return node.op is Op.REDUCE or any(s.dtype.is_float for s in node.src)


def _moved(node: Node, sources: list[Known]) -> Array:
    """Move errors as values are moved; what a Pad fills in is exact."""
    errors: list[Array] = [s.error for s in sources]
    if node.op is Op.PAD:
        return np.pad(errors[0], node.arg[0])
    if node.op is Op.ASSIGN and len(sources) > 2:
        errors[2] = sources[2].value  # rows that are written; unknown ones are never drawn
    return np.asarray(interp.evaluate_node(node, errors), np.float64)


def _of_exact(node: Node, sources: list[Known], value: Array) -> Array:
    """Integers and bools: steps of what they are made of; unknown where no rule bounds them."""
    if node.op in COMPARE:
        return _compare(node, sources, value)
    total = np.zeros(value.shape)
    for s in sources:
        total = total + s.error
    if node.op in _STEPPED and node.dtype.is_int:
        return _in_range(node, _product_error(*sources) if node.op is Op.MUL else total, value)
    total = np.where(total > 0, INFINITE, 0.0)
    if node.op in (Op.AND, Op.OR) and node.dtype.name == "bool":
        decides = node.op is Op.OR  # a known True (False for AND) decides whatever the other is
        for s in sources:
            total = np.where((s.error == 0) & (s.value == decides), 0.0, total)
    return total


def _in_range(node: Node, steps: Array, value: Array) -> Array:
    """Return errors of integers: steps, as long as none wraps around and float64 counts them."""
    limits = np.iinfo(node.dtype.np)
    low, high = wide(value) - steps, wide(value) + steps
    inside = (low >= max(limits.min, -(2**53))) & (high <= min(limits.max, 2**53))
    return np.where(inside | (steps == 0), steps, INFINITE)


def _gather(node: Node, sources: list[Known], _: Array) -> Array:
    data, index = sources
    found = np.take(data.error, index.value, axis=node.arg)
    shape = (1,) * node.arg + index.error.shape + (1,) * (data.error.ndim - node.arg - 1)
    return np.asarray(found + np.where(index.error > 0, INFINITE, 0.0).reshape(shape))


def _where(_: Node, sources: list[Known], __: Array) -> Array:
    test, a, b = sources
    chosen = np.where(test.value, a.error, b.error)
    same = (a.error == 0) & (b.error == 0) & (a.value == b.value)
    return np.where(same, 0.0, chosen + test.error)


def _compare(_: Node, sources: list[Known], __: Array) -> Array:
    a, b = sources
    slack = a.error + b.error
    far = np.abs(wide(a.value) - wide(b.value)) > slack
    # An infinity or NaN is far from everything that is known.
    sure = np.isfinite(slack) & (~np.isfinite(wide(a.value)) | ~np.isfinite(wide(b.value)))
    return np.where((slack == 0) | far | sure, 0.0, INFINITE)


def _add(node: Node, sources: list[Known], value: Array) -> Array:
    a, b = sources
    error = a.error + b.error
    return error + _rounded(node, (a, b), wide(a.value) + wide(b.value) * _sign(node), value)


def _sign(node: Node) -> float:
    return -1.0 if node.op is Op.SUB else 1.0


def _rounded(node: Node, sources: tuple[Known, ...], exact: Array, value: Array) -> Array:
    """Return the error of rounding: none where exact numbers give a representable one.

    What overflows is not known: behind a product may stand a sum, and both may be one rounding.
    """
    known, finite = np.ones(value.shape, bool), np.ones(value.shape, bool)
    for s in sources:
        known, finite = known & (s.error == 0), finite & np.isfinite(s.value)
    error = np.where(known & is_exact(node.dtype, exact, value), 0.0, rounding(value))
    return np.where(np.isinf(value) & finite, INFINITE, error)


def _multiply(node: Node, sources: list[Known], value: Array) -> Array:
    a, b = sources
    error = _product_error(a, b)
    return error + _rounded(node, (a, b), wide(a.value) * wide(b.value), value)


def _product_error(a: Known, b: Known) -> Array:
    x, y = np.abs(wide(a.value)), np.abs(wide(b.value))
    return _times(x, b.error) + _times(y, a.error) + _times(a.error, b.error)


def _times(magnitude: Array, error: Array) -> Array:
    """Return magnitude * error; nothing where there is no error, whatever the magnitude."""
    return np.where(
        error == 0,
        0.0,
        np.where(magnitude == 0, np.where(np.isinf(error), INFINITE, 0.0), magnitude * error),
    )


def _divide(node: Node, sources: list[Known], value: Array) -> Array:
    a, b = (
        sources
        if len(sources) == 2
        else (Known(np.ones_like(sources[0].value), np.zeros(value.shape)), sources[0])
    )
    low = np.abs(wide(b.value)) - b.error
    spread = np.where(
        b.error == 0, 0.0, np.where(low > 0, np.abs(wide(value)) * b.error / low, INFINITE)
    )
    divisor = np.where(b.error == 0, np.abs(wide(b.value)), np.maximum(low, 0.0))
    own = np.where(a.error == 0, 0.0, a.error / divisor)
    exact = wide(a.value) / wide(b.value)
    # Which zero a sum or a maximum gives is not promised, nor is the sign of this infinity.
    by_zero = (b.value == 0) & (wide(a.value) != 0) & ~np.isnan(wide(value))
    return np.where(by_zero, INFINITE, own + spread + _rounded(node, (a, b), exact, value))


def _reciprocal(_: Node, sources: list[Known], value: Array) -> Array:
    """Return what a product with a reciprocal adds: a unit of the last place, if it rounds."""
    power = np.frexp(np.abs(wide(sources[-1].value)))[0] == 0.5
    return np.where(power | (value == 0), 0.0, 2 * rounding(value))


def _extreme(_: Node, sources: list[Known], __: Array) -> Array:
    a, b = sources
    return np.asarray(np.maximum(a.error, b.error))


def _cast(node: Node, sources: list[Known], value: Array) -> Array:
    (x,) = sources
    if not node.src[0].dtype.is_float:
        exact = wide(x.value)
        known = (x.error == 0) & is_exact(node.dtype, exact, value)
        return x.error + np.where(known, 0.0, rounding(value))
    if node.dtype.is_float:
        error = x.error + _rounded(node, (x,), wide(x.value), value)
        most = float(np.finfo(node.dtype.np).max)
        near = np.isfinite(wide(x.value)) & (np.abs(wide(x.value)) + x.error > most) & (x.error > 0)
        # A value beyond the largest one is an infinity for every rounding: known.
        beyond = np.isinf(wide(value)) & (x.error == 0)
        return np.where(near, INFINITE, np.where(beyond, 0.0, error))
    if node.dtype.name == "bool":
        sure = (np.abs(wide(x.value)) > x.error) | (x.error == 0)
        return np.where(sure | np.isnan(wide(x.value)), 0.0, INFINITE)
    low, high = np.trunc(wide(x.value) - x.error), np.trunc(wide(x.value) + x.error)
    limits = np.iinfo(node.dtype.np)
    inside = (low >= float(limits.min)) & (high <= float(limits.max)) & (high < 2.0**63)
    return np.where(inside, np.maximum(high - wide(value), wide(value) - low), INFINITE)


def _bitcast(_: Node, sources: list[Known], value: Array) -> Array:
    (x,) = sources
    known = x.error == 0
    if x.value.dtype.kind == "f":  # which zero, and which NaN, is not promised
        known = known & (x.value != 0) & ~np.isnan(x.value)
    return np.where(known.reshape(value.shape), 0.0, INFINITE)


def _step(node: Node, sources: list[Known], _: Array) -> Array:
    """Return errors of rounding to whole numbers: none, or the steps that may be taken."""
    apply = interp.FUNCTIONS[node.op]
    (x,) = sources
    centre = wide(x.value)
    low, middle, high = (apply(centre + d) for d in (-x.error, 0.0, x.error))
    known = (low == high) | (~np.isfinite(centre) & (x.error == 0))
    return np.where(known, 0.0, np.maximum(high - middle, middle - low))


def _kept(_: Node, sources: list[Known], value: Array) -> Array:
    return sources[0].error.reshape(value.shape)


def _reduce(node: Node, sources: list[Known], value: Array) -> Array:
    (x,), (op, axes) = sources, node.arg
    if not node.dtype.is_float:
        worst = np.asarray(x.error.max(axis=axes, keepdims=True, initial=0.0))
        if op is Op.ADD and node.dtype.is_int:
            return _in_range(node, x.error.sum(axis=axes, keepdims=True), value)
        return worst if op in (Op.MAX, Op.MIN) else np.where(worst > 0, INFINITE, 0.0)
    terms = np.abs(wide(x.value))
    if op is Op.ADD:
        total = terms.sum(axis=axes, keepdims=True)
        count = x.value.size // max(1, value.size)
        exact = on_one_grid(node.dtype, x.value, total, axes) & ~(x.error > 0).any(
            axis=axes, keepdims=True
        )
        if node.dtype is dt.float16:  # wide halves are not rounded at the end of a sum
            exact &= wide(x.value).sum(axis=axes, keepdims=True) == wide(value)
        most = float(np.finfo(node.dtype.np).max)
        error = (
            x.error.sum(axis=axes, keepdims=True)
            + count * SUM_GRID[node.dtype.name][1] * total
            + rounding(value)
        )
        error = np.where(np.isfinite(wide(value)) & (total > most / 4), INFINITE, error)
        finite = np.isfinite(wide(x.value)).all(axis=axes, keepdims=True)
        known = ~finite & ~np.isinf(x.error).any(axis=axes, keepdims=True)
        return np.where(
            exact | known, 0.0, np.where(finite & ~np.isfinite(wide(value)), INFINITE, error)
        )
    if op is Op.MUL:
        return _product(x, axes, value, node)
    if op is Op.MAX:
        high = (wide(x.value) + x.error).max(axis=axes, keepdims=True, initial=-np.inf)
        low = (wide(x.value) - x.error).max(axis=axes, keepdims=True, initial=-np.inf)
    else:
        high = (wide(x.value) + x.error).min(axis=axes, keepdims=True, initial=np.inf)
        low = (wide(x.value) - x.error).min(axis=axes, keepdims=True, initial=np.inf)
    error = np.maximum(high - wide(value), wide(value) - low)
    known = ~(x.error > 0).any(axis=axes, keepdims=True) | (high == low)
    return np.where(known, 0.0, np.where(np.isnan(error), INFINITE, error))


def _product(x: Known, axes: tuple[int, ...], value: Array, node: Node) -> Array:
    terms = np.abs(wide(x.value))
    whole = (terms == np.rint(terms)) & (x.error == 0) & np.isfinite(terms)
    most = np.where(terms == 0, 1.0, terms).prod(axis=axes, keepdims=True)
    exact = whole.all(axis=axes, keepdims=True) & (most <= 1 / EXACT_GRID[node.dtype.name][1])
    count = x.value.size // max(1, value.size)
    spread = (terms + x.error).prod(axis=axes, keepdims=True) - terms.prod(axis=axes, keepdims=True)
    error = spread + 2 * count * rounding(value) + np.finfo(node.dtype.np).tiny
    steep = (terms > 1e9) | ((terms < 1e-9) & (terms > 0)) | ~np.isfinite(terms)
    with np.errstate(over="ignore"):
        reach = np.maximum(terms, 1.0).prod(axis=axes, keepdims=True)
    largest = np.finfo(np.float64 if node.dtype.itemsize == 8 else np.float32).max
    # Some order may overflow on the way, and infinity times a later 0 is NaN.
    wild = steep.any(axis=axes, keepdims=True) | (reach > largest)
    return np.where(exact, 0.0, np.where(wild, INFINITE, error))


# Of integers: what a step of an operand changes by no more steps than a sum or a product has.
_STEPPED = frozenset({Op.ADD, Op.SUB, Op.MUL, Op.MAX, Op.MIN, Op.NEG, Op.ABS, Op.CAST})
_PICKS = frozenset({Op.GATHER, Op.WHERE})
_STEPS = frozenset({Op.FLOOR, Op.CEIL, Op.ROUND, Op.TRUNC})
_RULES: dict[Op, Callable[[Node, list[Known], Array], Array]] = {
    **dict.fromkeys(COMPARE, _compare),
    **dict.fromkeys((Op.ADD, Op.SUB), _add),
    **dict.fromkeys((Op.DIV, Op.RECIP), _divide),
    **dict.fromkeys((Op.MAX, Op.MIN), _extreme),
    **dict.fromkeys(_STEPS, _step),
    **dict.fromkeys((Op.NEG, Op.ABS), _kept),
    Op.MUL: _multiply,
    Op.CAST: _cast,
    Op.BITCAST: _bitcast,
    Op.REDUCE: _reduce,
    Op.GATHER: _gather,
    Op.WHERE: _where,
}
