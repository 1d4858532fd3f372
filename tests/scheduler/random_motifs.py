"""Situations that the graphs of `random_graphs` are made of, and the graphs themselves."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
from hypothesis import strategies as st

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.random_graphs import (
    KINDS,
    MAX_BOUND,
    MAX_ELEMENTS,
    STATE_BOUND,
    Graph,
    Value,
    assign,
    leaf,
    leaf_of,
    shape_of,
    state,
    storable,
)
from tests.scheduler.random_moves import (
    MOVES,
    Motif,
    as_half,
    axis_of,
    boundary,
    combine,
    first_largest,
    flip,
    function,
    gathered,
    lifted,
    move,
    one_hot,
)
from tests.scheduler.strategies import Draw, array

# --- reductions -------------------------------------------------------------------------------


def reduced(g: Graph, v: Value, axes: tuple[int, ...], name: str, *, keep: bool) -> Value:
    """Reduce axes by sum, max, min or mean; sums that may grow too large become maxima."""
    count = prod(v.tensor.shape[a] for a in axes)
    narrow = v.tensor.dtype in (dt.uint8, dt.bool_)
    if name in ("sum", "mean") and (v.bound * count > MAX_BOUND or narrow):
        name = "max"
    text = f"{name} {axes} keep {keep}"
    if name == "mean" and v.tensor.dtype.is_float:
        return g.add(
            text,
            lambda t: t.mean(axes, keepdim=keep),
            lambda a: (np.sum(a, axes, keepdims=keep) * np.float32(1 / count)).astype(np.float32),
            v,
            bound=v.bound,
            digits=None,
        )
    if name in ("sum", "mean"):
        return g.add(
            text,
            lambda t: t.sum(axes, keepdim=keep),
            lambda a: np.sum(a, axes, dtype=a.dtype, keepdims=keep),
            v,
            bound=v.bound * count,
            digits=v.digits,
        )
    same = np.max if name == "max" else np.min
    return g.add(
        text,
        lambda t: getattr(t, name)(axes, keepdim=keep),
        lambda a: same(a, axes, keepdims=keep),
        v,
        digits=v.digits,
    )


def _some_axes(g: Graph, v: Value) -> tuple[int, ...]:
    return tuple(sorted(g.draw.some(range(v.tensor.ndim), 2)))


def reduce(g: Graph, v: Value) -> Value:
    v = lifted(g, v)
    name = g.draw.pick(["sum", "sum", "max", "min", "mean"])
    return reduced(g, v, _some_axes(g, v), name, keep=g.draw.flag())


def shared_reductions(g: Graph, v: Value) -> Value:
    """Several reductions of one value, and results that use some of them, broadcast or not."""
    v = lifted(g, v)
    axes = _some_axes(g, v)
    names = g.draw.some(["sum", "max", "min", "mean", "sum"], 3)
    rows = [reduced(g, v, axes, name, keep=True) for name in names]
    made = [combine(g, row) if g.draw.flag() else row for row in rows]
    out = [_minus(g, v, row) if row.tensor.dtype is v.tensor.dtype else row for row in made]
    for i, value in enumerate(out[:2]):
        g.outputs[f"shared{len(g.outputs)}_{i}"] = value
    return out[-1]


def _minus(g: Graph, v: Value, row: Value) -> Value:
    """Return v - row (or the larger of both, where there is no difference)."""
    both = None if v.digits is None or row.digits is None else max(v.digits, row.digits)
    bound = v.bound + row.bound
    wide = np.broadcast_shapes(v.tensor.shape, row.tensor.shape) if _fit(v, row) else ()
    if prod(wide) > MAX_ELEMENTS or not _fit(v, row):
        return row
    if v.tensor.dtype in (dt.uint8, dt.bool_) or bound > MAX_BOUND:
        return g.add("max", lambda a, b: a.maximum(b), np.maximum, v, row, digits=both)
    return g.add("sub", lambda a, b: a - b, np.subtract, v, row, bound=bound, digits=both)


def _fit(a: Value, b: Value) -> bool:
    try:
        np.broadcast_shapes(a.tensor.shape, b.tensor.shape)
    except ValueError:
        return False
    return True


def joined_reductions(g: Graph, v: Value) -> Value:
    """Join reductions of one value over different axes or of different values."""
    v = lifted(g, v)
    if v.tensor.dtype not in (dt.float32, dt.int32):
        return v
    parts = []
    for _ in range(g.draw.integer(2, 3)):
        row = reduced(g, v, _some_axes(g, v), g.draw.pick(["sum", "max", "min"]), keep=False)
        parts.append(move(g, row, "flatten", lambda x: x.reshape(-1)))
    if g.draw.flag():
        parts.append(move(g, leaf(g, (3,), v.tensor.dtype), "flatten", lambda x: x.reshape(-1)))
    return join(g, parts, 0)


def join(g: Graph, parts: list[Value], axis: int) -> Value:
    """Concatenate."""
    digits = [p.digits for p in parts]
    return g.add(
        f"cat {axis}",
        lambda *t: Tensor.cat(list(t), axis),
        lambda *a: np.concatenate(a, axis),
        *parts,
        digits=None if None in digits else max(d for d in digits if d is not None),
    )


def joined(g: Graph, v: Value) -> Value:
    """Join a value with what was made of it."""
    v = lifted(g, v)
    axis = axis_of(g, v)
    parts = [v, flip(g, v)]
    other = combine(g, v)
    if other.tensor.shape == v.tensor.shape and other.tensor.dtype is v.tensor.dtype:
        parts.insert(g.draw.integer(0, 2), other)
    return join(g, parts, axis) if v.tensor.size * len(parts) <= MAX_ELEMENTS else parts[-1]


def normalised(g: Graph, v: Value) -> Value:
    """Softmax or layernorm of rows."""
    v = lifted(g, v)
    if not v.tensor.dtype.is_float or v.bound > 64:
        return v
    axis = axis_of(g, v)

    def softmax(a: Any) -> Any:
        e = np.exp(a - a.max(axis, keepdims=True))
        return e / e.sum(axis, keepdims=True)

    def norm(a: Any) -> Any:
        d = a - a.mean(axis, keepdims=True)
        return d / np.sqrt((d * d).mean(axis, keepdims=True) + np.float32(0.5))

    if g.draw.flag():
        return g.add(
            f"softmax {axis}", lambda t: t.softmax(axis), softmax, v, bound=1.0, digits=None
        )
    bound = 2 * v.bound
    return g.add(
        f"layernorm {axis}", lambda t: t.layernorm(axis, 0.5), norm, v, bound=bound, digits=None
    )


def product(g: Graph, v: Value) -> Value:
    """Multiply by a matrix, and by its transpose."""
    v = lifted(g, v)
    if v.tensor.dtype is not dt.float32 or v.tensor.ndim < 2 or v.bound > 64:
        return v
    inner, width = v.tensor.shape[-1], g.draw.pick([1, 3, 4, 8])
    if v.tensor.size // inner * width > MAX_ELEMENTS:
        return v
    w = leaf_of(g, (inner, width), dt.float32)
    bound = v.bound * 4.0 * inner
    digits = None if v.digits is None else v.digits + 3
    return g.add("matmul", lambda a, b: a @ b, np.matmul, v, w, bound=bound, digits=digits)


# --- states -----------------------------------------------------------------------------------


def queue(g: Graph, v: Value) -> Value:
    """Push a row of a value into a queue; go on with the queue before or after."""
    if v.tensor.dtype not in (dt.float32, dt.int32) or len(g.states) > 3:
        return v
    width, length = min(4, v.tensor.size), g.draw.integer(2, 4)
    row = move(g, v, f"row {width}", lambda x: x.reshape(-1)[:width].reshape(1, width))
    old = state(g, (length, width), v.tensor.dtype)
    name = f"s{len(g.states) - 1}"
    rest = move(g, old, "slice 1:", lambda x: x[1:])
    both = None if row.digits is None else max(row.digits, old.digits or 0)
    parts = [rest, row] if g.draw.flag() else [row, move(g, old, "slice :-1", lambda x: x[:-1])]
    pushed = g.add(
        "push",
        lambda a, b: Tensor.cat([a, b]),
        lambda a, b: np.concatenate([a, b]),
        *parts,
        digits=both,
    )
    new = assign(g, name, pushed)
    return g.draw.pick([old, new])


def update(g: Graph, v: Value) -> Value:
    """Assign to a state what is made of its old value, element by element or turned round."""
    open_states = [n for n in g.states if n not in g.writes]
    if v.tensor.dtype not in (dt.float32, dt.int32) or len(g.states) > 3 or not v.tensor.ndim:
        return v
    name = g.draw.pick(open_states) if open_states and g.draw.flag() else ""
    if not name:
        state(g, v.tensor.shape, v.tensor.dtype)
        name = f"s{len(g.states) - 1}"
    old = g.states[name]
    if old.tensor.ndim and g.draw.integer(0, 2) == 0:
        old = flip(g, old)
    made = _minus(g, old, v) if old.tensor.dtype is v.tensor.dtype else old
    new = assign(g, name, made)
    return g.draw.pick([g.states[name], new, new])


def write_parts(g: Graph, v: Value) -> Value:
    """Write one or two slices of a state, each from a value; the rest stays."""
    if v.tensor.dtype not in (dt.float32, dt.int32) or len(g.states) > 3:
        return v
    shape, kind = (g.draw.integer(2, 6), g.draw.pick([1, 3, 4, 17])), v.tensor.dtype
    old = state(g, shape, kind)
    name, now = f"s{len(g.states) - 1}", old
    for _ in range(g.draw.integer(1, 2)):
        axis = g.draw.integer(0, 1)
        start = g.draw.integer(0, shape[axis] - 1)
        piece = slice(start, g.draw.integer(start + 1, shape[axis]), g.draw.integer(1, 2))
        key = (piece, slice(None)) if axis == 0 else (slice(None), piece)
        part = storable(g, g.draw.pick([v, now]), np.zeros(shape)[key].shape, kind)

        def theirs(a: Any, b: Any, key: Any = key) -> Any:
            whole = a.copy()
            whole[key] = b
            return whole

        now = g.add(
            f"write {name}{list(key)}",
            lambda t, b, key=key: t[key].assign(b),
            theirs,
            now,
            part,
            bound=STATE_BOUND,
            digits=3,
        )
    g.writes[name] = now
    return g.draw.pick([old, now])


def exchange(g: Graph, v: Value) -> Value:
    """Two states of which each takes the other's old value, and something of the new one."""
    if len(g.states) > 2:
        return v
    shape = shape_of(g.draw)[:2]
    p, q = state(g, shape, dt.float32), state(g, shape, dt.float32)
    first, second = f"s{len(g.states) - 2}", f"s{len(g.states) - 1}"
    x = leaf_of(g, shape, dt.float32)
    assign(g, first, _minus(g, q, x))
    new = assign(g, second, p)
    return combine(g, new)


def fresh(g: Graph, v: Value) -> Value:
    shape = v.tensor.shape if g.draw.flag() else shape_of(g.draw)
    return leaf(g, shape, g.draw.pick([dt.float32, dt.float32, dt.int32, dt.uint8, dt.bool_]))


def half_input(g: Graph, _: Value) -> Value:
    """Read an input that is stored as float16."""
    shape, name = shape_of(g.draw), f"x{len(g.inputs)}"
    g.inputs[name] = array(g.draw, shape, dt.float32).astype(np.float16)
    made = Tensor.input(name, shape, dt.float16)
    stored = g.add(f"input {name}", lambda: made, lambda e: e[name], bound=4.0, digits=3)
    return g.add("float", lambda t: t.float(), lambda a: a.astype(np.float32), stored, digits=3)


def several_outputs(g: Graph, v: Value) -> Value:
    """Independent results of one shape: what may share a launch."""
    shape = v.tensor.shape
    made = v
    for i in range(g.draw.integer(2, 3)):
        made = function(g, leaf_of(g, shape, dt.float32))
        g.outputs[f"each{len(g.outputs)}_{i}"] = made
    return made


MOTIFS: tuple[Motif, ...] = (
    *(function, combine) * 3,
    *(reduce, shared_reductions) * 2,
    joined_reductions,
    joined,
    normalised,
    product,
    gathered,
    one_hot,
    first_largest,
    queue,
    update,
    exchange,
    write_parts,
    boundary,
    as_half,
    several_outputs,
    half_input,
    fresh,
)


# --- programs ---------------------------------------------------------------------------------


# Those that write states.
STATEFUL: tuple[Motif, ...] = (queue, update, exchange, write_parts)


def build(seed: int, steps: int, first: Sequence[Motif] = ()) -> Graph:
    """Return the graph of a seed; fewer steps are a prefix of the same graph.

    Args:
        seed: decides everything else.
        steps: motifs.
        first: motifs before those that are drawn.
    """
    draw = Draw(seed)
    g = Graph(draw)
    leaf(g, shape_of(draw), draw.pick(KINDS))
    for motif in first:
        motif(g, g.values[-1])
    for _ in range(steps):
        value = draw.pick([*g.values, *g.values[-1:] * 4])
        draw.pick((*MOTIFS, *MOVES))(g, value)
    for name in list(g.states):
        if name not in g.writes:
            assign(g, name, draw.pick(g.values))
    chosen = [g.values[-1], *(draw.pick(g.values) for _ in range(draw.integer(0, 4)))]
    g.outputs.update({f"y{i}": value for i, value in enumerate(chosen)})
    return g


def graphs(steps: int = 10) -> st.SearchStrategy[Graph]:
    """Random graphs of at most `steps` motifs."""
    # Long programs are drawn more often, and a failing one is still cut to its shortest prefix.
    lengths = st.sampled_from([*range(1, steps + 1), *range(steps // 2, steps + 1)])
    return st.builds(build, st.integers(0, 2**32 - 1), lengths)
