"""The single steps of random programs: one operation on a value of any type."""

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.fuzz.program import Program, Step
from tests.fuzz.values import array


def unary(p: Program, x: Tensor) -> Tensor | None:
    if x.dtype is dt.bool_:
        return x.logical_not()
    if not x.dtype.is_float:
        made = p.draw.pick([-x, x.abs(), ~x, x.sign(), None, x.square()])
        if made is None:
            bits = p.draw.integer(0, 8 * x.dtype.itemsize - 1)
            made = x << bits if p.draw.flag() else x >> bits
        return made
    names = ["neg", "abs", "floor", "ceil", "round", "trunc", "relu", "sign", "square"]
    names += ["sqrt", "reciprocal", "exp", "log", "sin", "cos", "tanh", "erf", "sigmoid", "gelu"]
    name = p.draw.pick([*names, "floor", "round", "trunc", "silu", "elu", "exp2", "rsqrt"])
    return -x if name == "neg" else getattr(x, name)()


def binary(p: Program, x: Tensor) -> Tensor | None:
    """A combination of two values of one type."""
    y = p.partner(x)
    if p.draw.flag():
        x, y = y, x
    if x.dtype is dt.bool_:
        return p.draw.pick([x & y, x | y, x ^ y, x.maximum(y), x.eq(y)])
    made = [x + y, x - y, x * y, x.maximum(y), x.minimum(y), x + y, x * y]
    if not x.dtype.is_float:
        made += [x.trunc_div(y), x.trunc_mod(y), x & y, x | y, x ^ y, x // y, x % y]
        return p.draw.pick(made)
    found = p.draw.pick([*made, x / y, x - (x / y).trunc() * y, None])
    return x.abs() ** p.draw.pick([y, 2.0, 0.5, -0.5, 3, -1]) if found is None else found


def by_constant(p: Program, x: Tensor) -> Tensor | None:
    """Arithmetic with a number: what passes turn into something cheaper."""
    if x.dtype is dt.bool_:
        return None
    if x.dtype.is_float:
        c = p.draw.pick([41.0, 3.0, 0.1, 7.0, 10.0, 2.0, 0.5, 1.0, -1.0, 255.0])
        return p.draw.pick([x / c, x / c, x * c, x + c, c - x, x.maximum(c), x.minimum(c)])
    c = p.draw.pick([1, 2, 3, 7, 8, 10, 41, 100])
    made = [x * c, x + c, x - c, x.trunc_div(c), x.trunc_mod(c), x // c, x % c, x & c, x.maximum(c)]
    return p.draw.pick(made)


def quotient(p: Program, _x: Tensor) -> Tensor | None:
    """Multiples of a number divided by it: what decides by the quotient has whole numbers."""
    divisor = p.draw.pick([41.0, 49.0, 3.0, 10.0, 0.1, 7.0, 255.0])
    shape = p.shape()
    kind = p.draw.pick([dt.float32, dt.float32, dt.float16])
    multiples = array(p.draw, shape, dt.int8, "whole").astype(np.float64)
    data = np.asarray(multiples * np.float64(kind.np.type(divisor))).astype(kind.np)
    between: list[Step] = [reduce, move, gather, convolve, choose]
    made: Tensor = p.input(data, kind) / divisor
    for _ in range(p.draw.integer(0, 2)):
        pick = p.draw.pick(between)(p, made)
        made = made if pick is None or pick.dtype is not kind else pick
    p.keep(made)
    decide: list[Callable[[], Tensor]] = [made.floor, made.ceil, made.trunc, made.int, made.sign]
    return p.draw.pick(decide)()


def compare(p: Program, x: Tensor) -> Tensor | None:
    y = p.partner(x)
    return p.draw.pick([x < y, x <= y, x > y, x >= y, x.eq(y), x.ne(y)])


def choose(p: Program, x: Tensor) -> Tensor | None:
    """One of two values by a test."""
    y = p.partner(x)
    tests = [v for v in p.values if v.dtype is dt.bool_ and v.shape in (x.shape, y.shape, ())]
    test = (
        p.draw.pick(tests) if tests and p.draw.flag() else x < y if x.dtype is not dt.bool_ else x
    )
    return test.where(x, y) if p.draw.flag() else test.where(y, x)


def convert(p: Program, x: Tensor) -> Tensor | None:
    """Another type, with and without limits before; bits as they are."""
    kind = p.kind()
    if (
        kind.itemsize == x.dtype.itemsize
        and dt.bool_ not in (kind, x.dtype)
        and not p.draw.integer(0, 5)
    ):
        return x.bitcast(kind)
    if x.dtype.is_float and kind.is_int and p.draw.flag():
        x = x.clip(-100, 100) if not kind.is_unsigned else x.clip(0, 100)
    return x.cast(kind)


def move(p: Program, x: Tensor) -> Tensor | None:
    if x.ndim == 0:
        return x.reshape(1)
    axis = p.axis(x)
    return _MOVES[p.draw.pick(list(_MOVES))](p.draw, x, axis, x.shape[axis])


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
    at = d.integer(axis, x.ndim)
    wide = x.unsqueeze(at)
    times = d.integer(2, 5)
    return wide.expand([times if i == at else -1 for i in range(wide.ndim)])


def _only_padding(d: Draw, x: Tensor, axis: int, _: int) -> Tensor:
    """Pad, then keep part of the padding and perhaps a little of the value."""
    pairs = [(2, 0) if i == axis else (0, 0) for i in range(x.ndim)]
    keep = d.integer(1, 3)
    key = tuple(slice(0, keep) if i == axis else slice(None) for i in range(x.ndim))
    return x.pad(pairs, x.dtype is dt.bool_ or 1)[key]


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
    "only padding": _only_padding,
    "repeat": lambda d, x, axis, __: x.repeat(
        [d.integer(2, 3) if i == axis else 1 for i in range(x.ndim)]
    ),
}


def reduce(p: Program, x: Tensor) -> Tensor | None:
    """Reduce some axes, and perhaps go on with what was reduced."""
    if x.ndim == 0:
        return None
    axes, keep = p.axes(x), p.draw.flag()
    name = p.draw.pick(["sum", "sum", "max", "min", "mean", "prod", "var"])
    if x.dtype is dt.bool_ and name in ("mean", "var", "prod"):
        name = "sum"
    made: Tensor = getattr(x, name)(axes, keepdim=keep)
    if keep and made.dtype is x.dtype and p.draw.flag() and x.dtype is not dt.bool_:
        return p.draw.pick([x - made, x < made, x.eq(made), x.maximum(made)])
    return made


def rows(p: Program, x: Tensor) -> Tensor | None:
    if x.ndim == 0 or not x.dtype.is_float:
        return None
    axis = p.axis(x)
    return p.draw.pick([x.softmax(axis), x.layernorm(axis, 0.5), x.log_softmax(axis)])


def extreme(p: Program, x: Tensor) -> Tensor | None:
    """Where the largest or smallest element of a row is: never outside of the row."""
    if x.ndim == 0 or x.dtype is dt.bool_:
        return None
    axis = p.axis(x)
    made = x.argmax(axis) if p.draw.flag() else x.argmin(axis)
    p.keep(made, (0, x.shape[axis] - 1))
    return None


def product(p: Program, x: Tensor) -> Tensor | None:
    if x.ndim < 2 or x.dtype is dt.bool_:
        return None
    width = p.draw.pick([1, 3, 4, 8, 16, 19])
    y = p.leaf((x.shape[-1], width), x.dtype)
    return x @ y if p.draw.flag() else y.T @ x.transpose()


def convolve(p: Program, x: Tensor) -> Tensor | None:
    if x.ndim != 4 or x.dtype is dt.bool_:
        return None
    n, channels, height, width = x.shape
    size = p.draw.integer(1, 3)
    pad = p.draw.integer(0, 1)
    if min(height, width) + 2 * pad < size or n * channels > 64:
        return None
    if p.draw.integer(0, 2) == 0:
        steps = p.draw.integer(1, 2)
        return x.max_pool2d(size, steps, min(pad, size - 1))
    groups = p.draw.pick([1, 1, channels])
    outputs = groups * p.draw.pick([1, 2, 4])
    weight = array(p.draw, (outputs, channels // groups, size, size), x.dtype, p.profile)
    bias = p.leaf((outputs,), x.dtype) if p.draw.flag() else None
    step = p.draw.integer(1, 2)
    return x.conv2d(Tensor.weight(weight), bias, step, pad, groups=groups)


def image(p: Program, x: Tensor) -> Tensor | None:
    """A new value of four axes, computed: what convolutions want."""
    sides = (p.draw.integer(3, 9) for _ in range(2))
    shape = (p.draw.integer(1, 2), p.draw.pick([1, 3, 4]), *sides)
    kind = x.dtype if x.dtype is not dt.bool_ else dt.float32
    return p.leaf(shape, kind) + 1


def gather(p: Program, x: Tensor) -> Tensor | None:
    """Rows at known places, or at computed ones that were limited."""
    if x.ndim == 0:
        return None
    axis = p.axis(x)
    size = x.shape[axis]
    near = [v for v in p.values if v.dtype in (dt.int32, dt.int64) and v.size <= 8]
    if near and p.draw.integer(0, 2):
        index = p.draw.pick(near).clip(-size, size - 1)
    else:
        places = [p.draw.integer(-size, size - 1) for _ in range(p.draw.integer(1, 5))]
        index = Tensor.weight(np.array(places, p.draw.pick([np.int32, np.int64])))
    if x.size // size * index.size > p.most:
        return None
    return x.gather(index, axis)


def join(p: Program, x: Tensor) -> Tensor | None:
    """Two values of one type along an axis."""
    if x.ndim == 0:
        return None
    axis = p.axis(x)
    shape = tuple(p.draw.integer(1, 5) if i == axis else s for i, s in enumerate(x.shape))
    fits = [
        v
        for v in p.values
        if v.dtype is x.dtype and v.ndim == x.ndim
        if all(i == axis or a == b for i, (a, b) in enumerate(zip(v.shape, x.shape, strict=True)))
    ]
    other = p.draw.pick(fits) if fits and p.draw.flag() else p.leaf(shape, x.dtype)
    return Tensor.cat([x, other] if p.draw.flag() else [other, x], axis)


def boundary(_: Program, x: Tensor) -> Tensor | None:
    """Ask for a kernel boundary."""
    return x.contiguous()


def fresh(p: Program, x: Tensor) -> Tensor | None:
    """A new value."""
    return p.leaf(x.shape if p.draw.flag() else p.shape(), p.kind())


STEPS: Final[tuple[Step, ...]] = (
    *(unary,) * 5,
    *(binary,) * 5,
    *(by_constant, quotient, convert, compare, reduce, gather) * 2,
    *(move,) * 5,
    *(choose, rows, extreme, product, convolve, image, join, boundary, fresh),
)
