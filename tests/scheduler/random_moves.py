"""What the graphs of `random_graphs` are made of: movement, elementwise operations, indices."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.scheduler.random_graphs import (
    MAX_BOUND,
    MAX_ELEMENTS,
    Graph,
    Value,
    leaf,
)

Motif = Callable[[Graph, Value], Value]


def axis_of(g: Graph, v: Value) -> int:
    return g.draw.integer(0, v.tensor.ndim - 1)


def lifted(g: Graph, v: Value) -> Value:
    """Return a value with at least one axis."""
    if v.tensor.ndim:
        return v
    return g.add("reshape", lambda t: t.reshape(1), lambda a: a.reshape(1), v, digits=v.digits)


# --- movement ---------------------------------------------------------------------------------


def move(g: Graph, v: Value, text: str, both: Callable[[Any], Any]) -> Value:
    """Apply a movement that is written the same way for Tensor and numpy."""
    return g.add(text, both, both, v, digits=v.digits)


def permute(g: Graph, v: Value) -> Value:
    order = g.draw.order(v.tensor.ndim)
    return g.add(
        f"permute {order}",
        lambda t: t.permute(order) if order else t,
        lambda a: a.transpose(order),
        v,
        digits=v.digits,
    )


def flip(g: Graph, v: Value) -> Value:
    v = lifted(g, v)
    axis = axis_of(g, v)
    return g.add(
        f"flip {axis}", lambda t: t.flip(axis), lambda a: np.flip(a, axis), v, digits=v.digits
    )


def cut(g: Graph, v: Value) -> Value:
    """Take a slice with a step, forwards or backwards."""
    v = lifted(g, v)
    axis = axis_of(g, v)
    size = v.tensor.shape[axis]
    start = g.draw.integer(0, size - 1)
    key: list[Any] = [slice(None)] * v.tensor.ndim
    key[axis] = slice(start, g.draw.integer(start + 1, size), g.draw.integer(1, 3))
    if g.draw.integer(0, 3) == 0:
        key[axis] = slice(None, None, -g.draw.integer(1, 2))
    return move(g, v, f"slice {axis} {key[axis]}", lambda x: x[tuple(key)])


def pad(g: Graph, v: Value) -> Value:
    v = lifted(g, v)
    pairs = [(0, 0)] * v.tensor.ndim
    pairs[axis_of(g, v)] = (g.draw.integer(0, 2), g.draw.integer(0, 2))
    fill = g.draw.integer(0, 1) if v.tensor.dtype is dt.bool_ else g.draw.integer(0, 3)
    if v.tensor.size > MAX_ELEMENTS:
        return v
    return g.add(
        f"pad {pairs} {fill}",
        lambda t: t.pad(pairs, fill),
        lambda a: np.pad(a, pairs, constant_values=fill),
        v,
        bound=max(v.bound, 3.0),
        digits=v.digits,
    )


def window(g: Graph, v: Value) -> Value:
    v = lifted(g, v)
    axis = axis_of(g, v)
    size = v.tensor.shape[axis]
    width = g.draw.integer(1, min(3, size))
    step, wide = g.draw.integer(1, 2), g.draw.integer(1, 2) if 2 * width - 1 <= size else 1

    def theirs(a: Any) -> Any:
        seen = np.lib.stride_tricks.sliding_window_view(a, (width - 1) * wide + 1, axis)
        seen = np.moveaxis(seen[..., ::wide], -1, axis + 1)
        return seen[(slice(None),) * axis + (slice(None, None, step),)]

    if v.tensor.size * width > MAX_ELEMENTS:
        return v
    text = f"window axis {axis} size {width} stride {step} dilation {wide}"
    return g.add(text, lambda t: t.window(axis, width, step, wide), theirs, v, digits=v.digits)


def regroup(g: Graph, v: Value) -> Value:
    """Merge the last axes, or split one."""
    v = lifted(g, v)
    axis = axis_of(g, v)
    shape = v.tensor.shape
    if g.draw.flag():
        new = (*shape[:axis], prod(shape[axis:]))
    else:
        inner = g.draw.pick([f for f in range(1, shape[axis] + 1) if shape[axis] % f == 0])
        new = (*shape[:axis], shape[axis] // inner, inner, *shape[axis + 1 :])
    return move(g, v, f"reshape {new}", lambda x: x.reshape(new))


def spread(g: Graph, v: Value) -> Value:
    """Repeat along a new axis in the middle."""
    at, times = g.draw.integer(0, v.tensor.ndim), g.draw.integer(2, 3)
    if v.tensor.size * times > MAX_ELEMENTS:
        return v
    old = v.tensor.shape
    shape = (*old[:at], times, *old[at:])
    return g.add(
        f"expand {shape}",
        lambda t: t.unsqueeze(at).broadcast_to(shape),
        lambda a: np.broadcast_to(np.expand_dims(a, at), shape),
        v,
        digits=v.digits,
    )


def only_padding(g: Graph, v: Value) -> Value:
    """Pad, then keep part of the padding and perhaps a little of the value."""
    v = lifted(g, v)
    if v.tensor.dtype is dt.bool_:
        return v
    axis, keep = axis_of(g, v), g.draw.integer(1, 3)
    pairs = [(2, 0) if a == axis else (0, 0) for a in range(v.tensor.ndim)]
    key = tuple(slice(0, keep) if a == axis else slice(None) for a in range(v.tensor.ndim))
    return g.add(
        f"pad {pairs} 1, slice {axis} :{keep}",
        lambda t: t.pad(pairs, 1)[key],
        lambda a: np.pad(a, pairs, constant_values=1)[key],
        v,
        bound=max(1.0, v.bound),
        digits=v.digits,
    )


MOVES: tuple[Motif, ...] = (permute, flip, cut, pad, window, regroup, spread, only_padding)


# --- elementwise ------------------------------------------------------------------------------


def function(g: Graph, v: Value) -> Value:
    """Apply a function of one value."""
    kind = v.tensor.dtype
    if kind is dt.bool_:
        return g.add("not", lambda t: t.logical_not(), np.logical_not, v)
    if not kind.is_float:
        return _convert(g, v)
    name = g.draw.pick(["neg", "abs", "relu", "exact", "exact", "half", "rounded"])
    if name == "neg":
        return g.add("neg", lambda t: -t, np.negative, v, digits=v.digits)
    if name == "abs":
        return g.add("abs", lambda t: t.abs(), np.abs, v, digits=v.digits)
    if name == "half":
        return as_half(g, v)
    if name == "rounded":
        return _rounded(g, v)
    if name == "relu" or not v.exact:
        return g.add("relu", lambda t: t.relu(), lambda a: np.maximum(a, 0), v, digits=v.digits)
    made = g.draw.pick(["floor", "ceil", "round", "trunc", "int"])
    if made == "int":
        return g.add("int", lambda t: t.int(), lambda a: a.astype(np.int32), v)
    same = {"floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc}[made]
    return g.add(made, lambda t: getattr(t, made)(), same, v, bound=v.bound + 1)


def _convert(g: Graph, v: Value) -> Value:
    if v.bound > 2**23 or g.draw.flag():
        if v.tensor.dtype is dt.uint8 or v.bound > 2**23:
            return g.add("bool", lambda t: t.bool(), lambda a: a != 0, v, bound=1.0)
        return g.add("invert", lambda t: t ^ -1, np.invert, v, bound=v.bound + 1)
    return g.add("float", lambda t: t.float(), lambda a: a.astype(np.float32), v)


def _rounded(g: Graph, v: Value) -> Value:
    """Apply a function whose result is not exact."""
    table: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any], float]] = {
        "exp": (lambda t: t.clip(-4, 3).exp(), lambda a: np.exp(np.clip(a, -4, 3)), 21.0),
        "tanh": (lambda t: t.tanh(), np.tanh, 1.0),
        "sqrt": (lambda t: t.abs().sqrt(), lambda a: np.sqrt(np.abs(a)), v.bound),
        "sigmoid": (lambda t: t.sigmoid(), lambda a: 1 / (1 + np.exp(-a)), 1.0),
    }
    name = g.draw.pick(sorted(table))
    ours, theirs, bound = table[name]
    return g.add(name, ours, theirs, v, bound=max(1.0, bound), digits=None)


def as_half(g: Graph, v: Value) -> Value:
    """Store a value as float16 and read it back: exact for eighths up to 128."""
    if not v.tensor.dtype.is_float or v.digits is None or v.bound * 2.0**v.digits > 2**10:
        return v
    stored = g.draw.flag()
    return g.add(
        "half and back",
        lambda t: (t.half().contiguous() if stored else t.half()).float(),
        lambda a: a.astype(np.float16).astype(np.float32),
        v,
        digits=v.digits,
    )


def boundary(g: Graph, v: Value) -> Value:
    """Ask for a kernel boundary."""
    return g.add("contiguous", lambda t: t.contiguous(), lambda a: a, v, digits=v.digits)


def _partner(g: Graph, v: Value) -> Value:
    """Return a value of the same type and shape, or of one that broadcasts to it."""
    shape, kind = v.tensor.shape, v.tensor.dtype
    fitting = []
    for other in g.values:
        try:
            wide = np.broadcast_shapes(shape, other.tensor.shape)
        except ValueError:
            continue
        if other.tensor.dtype is kind and prod(wide) <= MAX_ELEMENTS:
            fitting.append(other)
    if g.draw.integer(0, 3) == 0 or not fitting:
        part = tuple(s if g.draw.flag() else 1 for s in shape) if g.draw.flag() else shape
        return leaf(g, part, kind)
    return g.draw.pick(fitting)


def combine(g: Graph, v: Value) -> Value:
    """Combine two values of one type, broadcast if need be."""
    other = _partner(g, v)
    kind = v.tensor.dtype
    both = None if v.digits is None or other.digits is None else max(v.digits, other.digits)
    if kind is dt.bool_:
        name = g.draw.pick(["&", "|", "^"])
        return g.add(name, *_bits(name), v, other)
    if g.draw.integer(0, 3) == 0 and (not kind.is_float or (v.exact and other.exact)):
        return compare(g, v, other)
    name = g.draw.pick(["+", "-", "*", "max", "min"])
    if name == "*" and v.bound * other.bound < MAX_BOUND and kind is not dt.uint8:
        more = None if v.digits is None or other.digits is None else v.digits + other.digits
        bound = v.bound * other.bound
        return g.add("mul", lambda a, b: a * b, np.multiply, v, other, bound=bound, digits=more)
    bound = v.bound + other.bound
    if name == "+" and bound < MAX_BOUND and kind is not dt.uint8:
        return g.add("add", lambda a, b: a + b, np.add, v, other, bound=bound, digits=both)
    if name == "-" and bound < MAX_BOUND and kind is not dt.uint8:
        return g.add("sub", lambda a, b: a - b, np.subtract, v, other, bound=bound, digits=both)
    if name == "min":
        return g.add("min", lambda a, b: a.minimum(b), np.minimum, v, other, digits=both)
    return g.add("max", lambda a, b: a.maximum(b), np.maximum, v, other, digits=both)


def _bits(name: str) -> tuple[Callable[..., Tensor], Callable[..., Any]]:
    if name == "&":
        return (lambda a, b: a & b), np.logical_and
    return (
        ((lambda a, b: a | b), np.logical_or)
        if name == "|"
        else ((lambda a, b: a ^ b), np.logical_xor)
    )


def compare(g: Graph, v: Value, other: Value) -> Value:
    """Compare exact values, or choose by the comparison."""
    both = None if v.digits is None or other.digits is None else max(v.digits, other.digits)
    if g.draw.flag():
        return g.add("less", lambda a, b: a < b, np.less, v, other, bound=1.0)
    return (
        g.add(
            "where equal",
            lambda a, b: a.eq(b).where(a + 1, b),
            lambda a, b: np.where(a == b, a + a.dtype.type(1), b),
            v,
            other,
            bound=max(v.bound, other.bound) + 1,
            digits=both,
        )
        if v.tensor.dtype is not dt.uint8
        else v
    )


# --- indices ----------------------------------------------------------------------------------


def gathered(g: Graph, v: Value) -> Value:
    """Take rows at constant places, or at places from another value."""
    v = lifted(g, v)
    axis = axis_of(g, v)
    size = v.tensor.shape[axis]
    near = [w for w in g.values if w.tensor.dtype is dt.int32 and w.tensor.size <= 8]
    if near and g.draw.flag():
        where = g.draw.pick(near)
        at = g.add(
            "clip to index",
            lambda t: t.clip(-size, size - 1),
            lambda a: np.clip(a, -size, size - 1),
            where,
            bound=float(size),
        )
    else:
        rows = np.array([g.draw.integer(-size, size - 1) for _ in range(g.draw.integer(1, 4))])
        data = rows.astype(g.draw.pick([np.int32, np.int64]))
        at = g.add("rows", lambda: Tensor.weight(data), lambda _: data, bound=float(size))
    if v.tensor.size // size * at.tensor.size > MAX_ELEMENTS:
        return v
    return g.add(
        f"gather {axis}",
        lambda t, i: t.gather(i, axis),
        lambda a, i: np.take(a, i, axis),
        v,
        at,
        bound=v.bound,
        digits=v.digits,
    )


def one_hot(g: Graph, v: Value) -> Value:
    """Pick rows by a comparison with a ramp, summed up."""
    v = lifted(g, v)
    size = v.tensor.shape[0]
    if v.tensor.dtype is not dt.float32 or v.tensor.size * 3 > MAX_ELEMENTS:
        return v
    rows = np.array([g.draw.integer(0, size) for _ in range(3)], np.int32)  # `size` picks nothing
    rest = (1,) * (v.tensor.ndim - 1)

    def ours(t: Tensor) -> Tensor:
        hot = Tensor.weight(rows).reshape((3, 1)).eq(Tensor.arange(size)).float()
        return (hot.reshape((3, size, *rest)) * t.unsqueeze(0)).sum(1)

    def theirs(a: Any) -> Any:
        hot = (rows[:, None] == np.arange(size)).astype(np.float32)
        return np.tensordot(hot, a, 1).astype(np.float32)

    return g.add(f"one hot {rows.tolist()}", ours, theirs, v, digits=v.digits)


def first_largest(g: Graph, v: Value) -> Value:
    v = lifted(g, v)
    if v.tensor.dtype is dt.bool_ or not (v.exact or not v.tensor.dtype.is_float):
        return v
    axis = axis_of(g, v)
    bound = float(v.tensor.shape[axis])
    return g.add(
        f"argmax {axis}",
        lambda t: t.argmax(axis),
        lambda a: a.argmax(axis).astype(np.int32),
        v,
        bound=bound,
    )
