"""The steps of `typed` graphs: what is done to a value, for every type."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.typed import Typed
from tests.fuzz.values import array
from tests.scheduler.strategies import Draw

Step = Callable[[Typed, Tensor], Tensor | None]


# --- elementwise ------------------------------------------------------------------------------


def unary(t: Typed, x: Tensor) -> Tensor | None:
    """A function of one value."""
    if x.dtype is dt.bool_:
        return x.logical_not()
    if not x.dtype.is_float:
        name = t.draw.pick(["neg", "abs", "invert", "sign", "shift", "square"])
        if name == "shift":
            bits = t.draw.integer(0, 8 * x.dtype.itemsize - 1)
            return x << bits if t.draw.flag() else x >> bits
        ways: dict[str, Callable[[], Tensor]] = {
            "neg": lambda: -x,
            "abs": x.abs,
            "invert": lambda: ~x,
            "sign": x.sign,
            "square": x.square,
        }
        return ways[name]()
    names = ["neg", "abs", "floor", "ceil", "round", "trunc", "relu", "sign", "square"]
    names += ["sqrt", "reciprocal", "exp", "log", "sin", "cos", "tanh", "erf", "sigmoid", "gelu"]
    name = t.draw.pick([*names, "floor", "round", "trunc", "silu", "elu", "exp2", "rsqrt"])
    return -x if name == "neg" else getattr(x, name)()


def binary(t: Typed, x: Tensor) -> Tensor | None:
    """A combination of two values of one type."""
    y = t.partner(x)
    if t.draw.flag():
        x, y = y, x
    if x.dtype is dt.bool_:
        return t.draw.pick([x & y, x | y, x ^ y, x.maximum(y), x.eq(y)])
    names = ["add", "sub", "mul", "max", "min", "add", "mul", "div", "mod"]
    names += ["pow"] if x.dtype.is_float else ["and", "or", "xor", "floordiv", "floormod"]
    name = t.draw.pick(names)
    ways: dict[str, Callable[[], Tensor]] = {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * y,
        "max": lambda: x.maximum(y),
        "min": lambda: x.minimum(y),
        "div": lambda: x / y if x.dtype.is_float else x.trunc_div(y),
        "mod": lambda: x - (x / y).trunc() * y if x.dtype.is_float else x.trunc_mod(y),
        "floordiv": lambda: x // y,
        "floormod": lambda: x % y,
        "and": lambda: x & y,
        "or": lambda: x | y,
        "xor": lambda: x ^ y,
        "pow": lambda: x.abs() ** t.draw.pick([y, 2.0, 0.5, -0.5, 3, -1]),
    }
    return ways[name]()


def by_constant(t: Typed, x: Tensor) -> Tensor | None:
    """Arithmetic with a number: what passes turn into something cheaper."""
    if x.dtype is dt.bool_:
        return None
    if x.dtype.is_float:
        c = t.draw.pick([41.0, 3.0, 0.1, 7.0, 10.0, 2.0, 0.5, 1.0, -1.0, 255.0])
        return t.draw.pick([x / c, x / c, x * c, x + c, c - x, x.maximum(c), x.minimum(c)])
    c = t.draw.pick([1, 2, 3, 7, 8, 10, 41, 100])
    made = [x * c, x + c, x - c, x.trunc_div(c), x.trunc_mod(c), x // c, x % c, x & c, x.maximum(c)]
    return t.draw.pick(made)


def quotient(t: Typed, _x: Tensor) -> Tensor | None:
    """Multiples of a number divided by it: what decides by the quotient has whole numbers."""
    divisor = t.draw.pick([41.0, 49.0, 3.0, 10.0, 0.1, 7.0, 255.0])
    shape = t.shape()
    kind = t.draw.pick([dt.float32, dt.float32, dt.float16])
    name = f"x{len(t.inputs)}"
    multiples = array(t.draw, shape, dt.int8, "whole").astype(np.float64)
    t.inputs[name] = np.asarray(multiples * np.float64(kind.np.type(divisor))).astype(kind.np)
    between: list[Step] = [reduce, move, gather, convolve, choose]
    made: Tensor = Tensor.input(name, shape, kind) / divisor
    for _ in range(t.draw.integer(0, 2)):
        pick = t.draw.pick(between)(t, made)
        made = made if pick is None or pick.dtype is not kind else pick
    t.keep(made)
    decide: list[Callable[[], Tensor]] = [made.floor, made.ceil, made.trunc, made.int, made.sign]
    return t.draw.pick(decide)()


def compare(t: Typed, x: Tensor) -> Tensor | None:
    """A comparison."""
    y = t.partner(x)
    return t.draw.pick([x < y, x <= y, x > y, x >= y, x.eq(y), x.ne(y)])


def choose(t: Typed, x: Tensor) -> Tensor | None:
    """One of two values by a test."""
    y = t.partner(x)
    tests = [v for v in t.values if v.dtype is dt.bool_ and v.shape in (x.shape, y.shape, ())]
    test = (
        t.draw.pick(tests) if tests and t.draw.flag() else x < y if x.dtype is not dt.bool_ else x
    )
    return test.where(x, y) if t.draw.flag() else test.where(y, x)


def convert(t: Typed, x: Tensor) -> Tensor | None:
    """Another type, with and without limits before; bits as they are."""
    kind = t.kind()
    if (
        kind.itemsize == x.dtype.itemsize
        and dt.bool_ not in (kind, x.dtype)
        and not t.draw.integer(0, 5)
    ):
        return x.bitcast(kind)
    if x.dtype.is_float and kind.is_int and t.draw.flag():
        x = x.clip(-100, 100) if not kind.is_unsigned else x.clip(0, 100)
    return x.cast(kind)


# --- movement ---------------------------------------------------------------------------------


def move(t: Typed, x: Tensor) -> Tensor | None:
    """Rearrange, repeat or cut."""
    if x.ndim == 0:
        return x.reshape(1)
    axis = t.axis(x)
    return _MOVES[t.draw.pick(list(_MOVES))](t.draw, x, axis, x.shape[axis])


def _slice(d: Draw, x: Tensor, axis: int, size: int) -> Tensor:
    start = d.integer(0, size - 1)
    key: list[Any] = [slice(None)] * x.ndim
    key[axis] = slice(start, d.integer(start + 1, size), d.integer(1, 3))
    if d.integer(0, 3) == 0:
        key[axis] = slice(None, None, -d.integer(1, 3))
    return x[tuple(key)]


def _pad(d: Draw, x: Tensor, axis: int, _: int) -> Tensor:
    pairs = [(0, 0)] * x.ndim
    pairs[axis] = (d.integer(0, 3), d.integer(0, 3))
    fill = d.pick([0, 0, 1, 3, -1 if not (x.dtype.is_unsigned or x.dtype is dt.bool_) else 1])
    return x.pad(pairs, bool(fill) if x.dtype is dt.bool_ else fill)


def _window(d: Draw, x: Tensor, axis: int, size: int) -> Tensor:
    width = d.integer(1, min(4, size))
    dilation = d.integer(1, 2) if 2 * width - 1 <= size else 1
    return x.window(axis, width, d.integer(1, 3), dilation)


def _split(d: Draw, x: Tensor, axis: int, size: int) -> Tensor:
    inner = d.pick([f for f in range(1, size + 1) if size % f == 0])
    return x.reshape((*x.shape[:axis], size // inner, inner, *x.shape[axis + 1 :]))


def _cat(d: Draw, x: Tensor, axis: int, _: int) -> Tensor:
    return Tensor.cat(d.some([x, x.flip(axis), x, x.contiguous()], 3), axis)


def _expand(d: Draw, x: Tensor, axis: int, _: int) -> Tensor:
    wide = x.unsqueeze(axis)
    times = d.integer(2, 5)
    return wide.expand([times if i == axis else -1 for i in range(wide.ndim)])


_MOVES: Final[dict[str, Callable[[Draw, Tensor, int, int], Tensor]]] = {
    "permute": lambda d, x, _, __: x.permute(d.order(x.ndim)),
    "flip": lambda _, x, axis, __: x.flip(axis),
    "slice": _slice,
    "pad": _pad,
    "window": _window,
    "split": _split,
    "merge": lambda _, x, axis, __: x.flatten(axis),
    "cat": _cat,
    "expand": _expand,
    "repeat": lambda d, x, axis, __: x.repeat(
        [d.integer(2, 3) if i == axis else 1 for i in range(x.ndim)]
    ),
}


# --- reductions, products ---------------------------------------------------------------------


def reduce(t: Typed, x: Tensor) -> Tensor | None:
    """Reduce some axes, and perhaps go on with what was reduced."""
    if x.ndim == 0:
        return None
    axes, keep = sorted(t.draw.some(range(x.ndim), 2)), t.draw.flag()
    name = t.draw.pick(["sum", "sum", "max", "min", "mean", "prod", "var"])
    if x.dtype is dt.bool_ and name in ("mean", "var", "prod"):
        name = "sum"
    made: Tensor = getattr(x, name)(axes, keepdim=keep)
    if keep and made.dtype is x.dtype and t.draw.flag() and x.dtype is not dt.bool_:
        return t.draw.pick([x - made, x < made, x.eq(made), x.maximum(made)])
    return made


def rows(t: Typed, x: Tensor) -> Tensor | None:
    """Softmax or layernorm of rows."""
    if x.ndim == 0 or not x.dtype.is_float:
        return None
    axis = t.axis(x)
    return t.draw.pick([x.softmax(axis), x.layernorm(axis, 0.5), x.log_softmax(axis)])


def extreme(t: Typed, x: Tensor) -> Tensor | None:
    """Where the largest or smallest element of a row is: never outside of the row."""
    if x.ndim == 0 or x.dtype is dt.bool_:
        return None
    axis = t.axis(x)
    if x.dtype.is_float and np.isnan(t.judge.of(x.node).value.astype(np.float64)).any():
        return None  # numerics.md: rows with NaN have no defined place
    made = x.argmax(axis) if t.draw.flag() else x.argmin(axis)
    t.keep(made, (0, x.shape[axis] - 1))
    return None


def product(t: Typed, x: Tensor) -> Tensor | None:
    """Multiply by a matrix."""
    if x.ndim < 2 or x.dtype is dt.bool_:
        return None
    width = t.draw.pick([1, 3, 4, 8, 16, 19])
    y = t.leaf((x.shape[-1], width), x.dtype)
    return x @ y if t.draw.flag() else y.T @ x.transpose()


def convolve(t: Typed, x: Tensor) -> Tensor | None:
    """A convolution or pooling of an image."""
    if x.ndim != 4 or x.dtype is dt.bool_:
        return None
    n, channels, height, width = x.shape
    size = t.draw.integer(1, 3)
    pad = t.draw.integer(0, 1)
    if min(height, width) + 2 * pad < size or n * channels > 64:
        return None
    if t.draw.integer(0, 2) == 0:
        steps = t.draw.integer(1, 2)
        return x.max_pool2d(size, steps, min(pad, size - 1))
    groups = t.draw.pick([1, 1, channels])
    outputs = groups * t.draw.pick([1, 2, 4])
    weight = array(t.draw, (outputs, channels // groups, size, size), x.dtype, t.profile)
    bias = t.leaf((outputs,), x.dtype) if t.draw.flag() else None
    step = t.draw.integer(1, 2)
    return x.conv2d(Tensor.weight(weight), bias, step, pad, groups=groups)


def image(t: Typed, x: Tensor) -> Tensor | None:
    """A new value of four axes, computed: what convolutions want."""
    shape = (
        t.draw.integer(1, 2),
        t.draw.pick([1, 3, 4]),
        t.draw.integer(3, 9),
        t.draw.integer(3, 9),
    )
    kind = x.dtype if x.dtype is not dt.bool_ else dt.float32
    return t.leaf(shape, kind) + 1


# --- indices, boundaries, new values ----------------------------------------------------------


def gather(t: Typed, x: Tensor) -> Tensor | None:
    """Rows at known places, or at computed ones that were limited."""
    if x.ndim == 0:
        return None
    axis = t.axis(x)
    size = x.shape[axis]
    near = [v for v in t.values if v.dtype in (dt.int32, dt.int64) and v.size <= 8]
    if near and t.draw.integer(0, 2):
        index = t.draw.pick(near).clip(-size, size - 1)
    else:
        places = [t.draw.integer(-size, size - 1) for _ in range(t.draw.integer(1, 5))]
        index = Tensor.weight(np.array(places, t.draw.pick([np.int32, np.int64])))
    if x.size // size * index.size > t.most:
        return None
    return x.gather(index, axis)


def join(t: Typed, x: Tensor) -> Tensor | None:
    """Two values of one type along an axis."""
    if x.ndim == 0:
        return None
    axis = t.axis(x)
    shape = tuple(t.draw.integer(1, 5) if i == axis else s for i, s in enumerate(x.shape))
    fits = [
        v
        for v in t.values
        if v.dtype is x.dtype and v.ndim == x.ndim
        if all(i == axis or a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    other = t.draw.pick(fits) if fits and t.draw.flag() else t.leaf(shape, x.dtype)
    return Tensor.cat([x, other] if t.draw.flag() else [other, x], axis)


def boundary(_: Typed, x: Tensor) -> Tensor | None:
    """Ask for a kernel boundary."""
    return x.contiguous()


def fresh(t: Typed, x: Tensor) -> Tensor | None:
    """A new value."""
    return t.leaf(x.shape if t.draw.flag() else t.shape(), t.kind())


STEPS: Final[tuple[Step, ...]] = (
    *(unary,) * 5,
    *(binary,) * 5,
    *(by_constant, quotient, convert, compare, reduce, gather) * 2,
    *(move,) * 5,
    *(choose, rows, extreme, product, convolve, image, join, boundary, fresh),
)


def grow(t: Typed, steps: int) -> None:
    """Grow a graph by some steps that are of use."""
    while not t.values:
        t.keep(t.leaf(t.shape(), t.kind()))
    for _ in range(steps):
        x = t.draw.pick([*t.values, *t.values[-1:] * 4])
        made = t.draw.pick(STEPS)(t, x)
        if made is not None:
            t.keep(made)
