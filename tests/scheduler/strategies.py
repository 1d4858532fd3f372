"""Random tensor programs for property tests: small, well conditioned, of every kind of op.

Each value carries a bound of its magnitude and, where its floats are exact multiples of a power of
two, that resolution. Comparisons, rounding and conversions to integers are only drawn over exact
values: over rounded ones two right answers may differ by a whole step. Integers stay below 2^30,
because overflow of a signed int means nothing in C.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from random import Random
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor, evaluate

Array = NDArray[Any]
T = TypeVar("T")
MAX_ELEMENTS = 600
KINDS = (dt.float32, dt.float32, dt.float32, dt.int32, dt.int32, dt.uint8, dt.bool_)
MOVES = ("permute", "flip", "slice", "pad", "window", "cat", "expand", "repeat", "merge", "split")
SIZES = (1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 8, 16, 19, 33)
STEPS = (*["move"] * 4, *["unary"] * 3, *["binary"] * 5, *["reduce"] * 2, "gather", "new", "state")


class Draw:
    """Choices by a seeded generator: drawn one by one they would repeat each other too often."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)  # noqa: S311  # a reproducible choice, not a secret

    def pick(self, options: Sequence[T]) -> T:
        """Return one of several."""
        return self._random.choice(options)

    def integer(self, low: int, high: int) -> int:
        """Return an integer of [low, high]."""
        return self._random.randint(low, high)

    def flag(self) -> bool:
        """Return true as often as false."""
        return self._random.random() < 0.5

    def order(self, count: int) -> list[int]:
        """Return a permutation."""
        return self._random.sample(range(count), count)

    def some(self, options: Sequence[T], most: int) -> list[T]:
        """Return one to `most` different ones, in random order."""
        return self._random.sample(options, min(len(options), self.integer(1, most)))


@dataclass(frozen=True)
class Value:
    """A tensor, a bound of its magnitude, the binary digits of its fraction (None: all)."""

    tensor: Tensor
    bound: float
    digits: int | None = 0

    @property
    def exact(self) -> bool:
        """Whether every intermediate rounding is known not to happen."""
        return self.digits is not None and self.bound * 2**self.digits < 2**23


@dataclass
class Program:
    """Tensors to compute, state writes to perform, and values for the inputs."""

    values: list[Value] = field(default_factory=list)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    writes: list[Tensor] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)

    def reference(self, states: dict[str, Array] | None = None) -> tuple[dict[str, Array], float]:
        """Return outputs and new states by name, and the largest magnitude on the way."""
        names = [*self.outputs, *(w.node.src[0].arg.name for w in self.writes)]
        everything = [*self.outputs.values(), *self.writes, *(v.tensor for v in self.values)]
        found = evaluate(everything, {**self.inputs, **(states or {})})
        floats = [np.abs(f).max() for f in found if f.dtype.kind == "f" and f.size]
        scale = float(max(floats, default=1.0))
        return dict(zip(names, found, strict=False)), scale


def same(got: Array, expected: Array, scale: float) -> bool:
    """Whether two arrays agree: integers exactly, floats within 1e-5 of the largest magnitude."""
    if got.shape != expected.shape or got.dtype != expected.dtype:
        return False
    if expected.dtype.kind != "f":
        return bool(np.array_equal(got, expected))
    return bool(np.allclose(got, expected, rtol=1e-5, atol=1e-5 * max(1.0, scale), equal_nan=True))


def shapes(draw: Draw) -> tuple[int, ...]:
    """Draw 0 to 4 axes; now and then one longer than a vector."""
    rank = draw.pick([2, 3, 1, 4, 2, 3, 0])
    shape: list[int] = [draw.pick(SIZES) for _ in range(rank)]
    while prod(shape) > MAX_ELEMENTS:
        shape.pop()
    return tuple(shape)


def array(draw: Draw, shape: tuple[int, ...], kind: dt.DType) -> Array:
    """Draw values: eighths in [-4, 4], integers in [-20, 20] or of the whole byte, bits."""
    rng = np.random.default_rng(draw.integer(0, 2**32 - 1))
    if kind is dt.float32:
        return np.asarray(rng.integers(-32, 33, shape) / 8, np.float32)
    low, high = {"int32": (-20, 21), "uint8": (0, 256), "bool": (0, 2)}[kind.name]
    return np.asarray(rng.integers(low, high, shape), kind.np)


def fresh(draw: Draw, program: Program, shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Add an input, a weight or a state of the given shape."""
    bound, digits = {"float32": (4.0, 3), "int32": (20.0, 0), "uint8": (255.0, 0)}.get(
        kind.name, (1.0, 0)
    )
    source = draw.pick(["input", "input", "weight", "scalar"])
    if source == "weight" and shape:
        return Value(Tensor.weight(array(draw, shape, kind)), bound, digits)
    if source == "scalar":
        number = draw.integer(0, 3)
        return Value(Tensor.full(shape, number > 1 if kind is dt.bool_ else number, kind), 4.0)
    name = f"x{len(program.inputs)}"
    program.inputs[name] = array(draw, shape, kind)
    return Value(Tensor.input(name, shape, kind), bound, digits)


def movement(draw: Draw, value: Value) -> Value:
    """Rearrange, repeat or cut a value."""
    x = value.tensor
    if x.ndim == 0:
        return Value(x.reshape(1), value.bound, value.digits)
    axis = draw.integer(0, x.ndim - 1)
    size = x.shape[axis]
    name = draw.pick(MOVES)
    bound = value.bound
    if name == "permute":
        x = x.permute(draw.order(x.ndim))
    elif name == "flip":
        x = x.flip(axis)
    elif name == "slice":
        start = draw.integer(0, size - 1)
        stop = draw.integer(start + 1, size)
        key: list[Any] = [slice(None)] * x.ndim
        key[axis] = slice(start, stop, draw.integer(1, 3))
        x = x[tuple(key)]
    elif name == "pad":
        pairs = [(0, 0)] * x.ndim
        pairs[axis] = (draw.integer(0, 2), draw.integer(0, 2))
        fill = draw.integer(0, 1) if x.dtype is dt.bool_ else draw.integer(0, 3)
        x, bound = x.pad(pairs, fill), max(bound, 3.0)
    elif name == "window":
        width = draw.integer(1, min(3, size))
        dilation = draw.integer(1, 2) if (width - 1) * 2 < size else 1
        x = x.window(axis, width, draw.integer(1, 2), dilation)
    elif name == "cat":
        x = Tensor.cat([x, x.flip(axis), x], axis)
    elif name == "expand":
        where = draw.integer(0, x.ndim)
        wide = x.unsqueeze(where)
        x = wide.expand([3 if i == where else -1 for i in range(wide.ndim)])
    elif name == "repeat":
        x = x.repeat([2 if i == axis else 1 for i in range(x.ndim)])
    elif name == "merge":
        x = x.flatten(axis)
    else:
        factors = [f for f in range(1, size + 1) if size % f == 0]
        inner = draw.pick(factors)
        x = x.reshape((*x.shape[:axis], size // inner, inner, *x.shape[axis + 1 :]))
    return Value(x, bound, value.digits) if 0 < x.size <= MAX_ELEMENTS else value


def unary(draw: Draw, value: Value) -> Value:
    """Apply a function of one value."""
    x, bound, digits = value.tensor, value.bound, value.digits
    if x.dtype is dt.bool_:
        return Value(x.logical_not(), 1.0)
    if not x.dtype.is_float:
        return _of_integers(draw, x, bound)
    if value.exact and draw.flag():
        return _of_exact_floats(draw, x, bound)
    name = draw.pick(["neg", "abs", "relu", "exp", "tanh", "sqrt", "sigmoid", "erf"])
    if name in ("neg", "abs", "relu"):
        return Value(-x if name == "neg" else getattr(x, name)(), bound, digits)
    safe = x.clip(-4, 4) if name == "exp" else x.abs() if name == "sqrt" else x
    return Value(getattr(safe, name)(), max(60.0, bound), None)


def _of_integers(draw: Draw, x: Tensor, bound: float) -> Value:
    name = draw.pick(["neg", "abs", "float", "bool", "shift", "invert"])
    if name == "float":
        return Value(x.float(), bound)
    if name == "bool":
        return Value(x.bool(), 1.0)
    if x.dtype is dt.uint8:
        return Value(x.cast(dt.int32), bound)
    if name == "shift":
        return Value(x >> draw.integer(0, 3), bound)
    if name == "invert":
        return Value(x ^ -1, bound + 1)
    return Value(-x if name == "neg" else x.abs(), bound)


def _of_exact_floats(draw: Draw, x: Tensor, bound: float) -> Value:
    name = draw.pick(["floor", "ceil", "round", "trunc", "int", "byte", "sign"])
    if name == "int":
        return Value(x.int(), bound)
    if name == "byte":
        return Value(x.clip(0, 255).cast(dt.uint8), 255.0)
    return Value(getattr(x, name)(), max(1.0, bound + 1))


def binary(draw: Draw, a: Value, b: Value) -> Value:
    """Combine two values; where shapes do not broadcast, the second is summed up first."""
    x, y = a.tensor, b.tensor
    bound_y, digits_y = b.bound, b.digits
    try:
        shape = np.broadcast_shapes(x.shape, y.shape)
    except ValueError:
        bound_y *= y.size
        y, shape = y.float().sum() if y.dtype.is_float else y.cast(dt.int32).sum(), x.shape
        digits_y = None if digits_y is None else digits_y
    if prod(shape) > MAX_ELEMENTS or bound_y > 2**20:
        return a
    kind = dt.promote(x.dtype, y.dtype)
    second = Value(y, bound_y, digits_y)
    both = None if a.digits is None or second.digits is None else max(a.digits, second.digits)
    sharp = kind is not dt.float32 or (a.exact and second.exact)
    if kind is dt.bool_:
        name = draw.pick(["and", "or", "xor", "ne", "max", "mul"])
        return Value(_apply(name, x, y), 1.0)
    names = ["add", "sub", "mul", "max", "min", "div"]
    names += ["lt", "eq", "le", "where"] if sharp else ["max", "min"]
    name = draw.pick(names)
    if name in ("lt", "eq", "le"):
        return Value(_apply(name, x, y), 1.0)
    if name == "where":
        return Value((x < y).where(x, y), max(a.bound, bound_y), both)
    if name == "div":
        if kind is dt.float32:
            return Value(x / (y.abs() + 1.0), a.bound, None)
        return Value(x.trunc_div(y) if draw.flag() else x.trunc_mod(y), 4 * a.bound + 1)
    product = a.bound * bound_y
    if name == "mul" and product < 2**20:
        digits = None if a.digits is None or digits_y is None else a.digits + digits_y
        return Value(x * y, product, digits)
    if name in ("add", "sub") and kind is not dt.uint8:
        return Value(_apply(name, x, y), a.bound + bound_y, both)
    return Value(_apply("max", x, y), max(a.bound, bound_y), both)


def _apply(name: str, x: Tensor, y: Tensor) -> Tensor:
    table: dict[str, Callable[[], Tensor]] = {
        "add": lambda: x + y,
        "sub": lambda: x - y,
        "mul": lambda: x * y,
        "max": lambda: x.maximum(y),
        "lt": lambda: x < y,
        "le": lambda: x <= y,
        "eq": lambda: x.eq(y),
        "ne": lambda: x.ne(y),
        "and": lambda: x & y,
        "or": lambda: x | y,
        "xor": lambda: x ^ y,
    }
    return table[name]()


def reduction(draw: Draw, value: Value) -> Value:
    """Reduce one axis, some axes or all."""
    x = value.tensor
    axes = draw.some(range(x.ndim), 2) if x.ndim else []
    keep = draw.flag()
    count = prod(x.shape[a] for a in axes)
    if draw.flag():
        name = draw.pick(["max", "min"])
        return Value(getattr(x, name)(sorted(axes), keepdim=keep), value.bound, value.digits)
    if value.bound * count > 2**20:
        return value
    if x.dtype.is_float and draw.flag():
        return Value(x.mean(sorted(axes), keepdim=keep), value.bound, None)
    return Value(x.sum(sorted(axes), keepdim=keep), value.bound * count, value.digits)


def gather(draw: Draw, value: Value, other: Value) -> Value:
    """Pick rows at constant places, or at places computed by the program itself."""
    x = value.tensor
    if x.ndim == 0:
        return value
    axis = draw.integer(0, x.ndim - 1)
    size = x.shape[axis]
    if other.tensor.dtype is dt.int32 and other.tensor.ndim <= 2 and draw.flag():
        index = other.tensor.clip(-size, size - 1)
    else:
        rows = [draw.integer(-size, size - 1) for _ in range(draw.integer(1, 4))]
        index = Tensor.weight(np.array(rows, draw.pick([np.int32, np.int64])))
    if x.size // size * index.size > MAX_ELEMENTS:
        return value
    return Value(x.gather(index, axis), value.bound, value.digits)


def push_state(draw: Draw, program: Program, value: Value) -> Value:
    """Shift a row of a value into a new queue; return the queue before or after the push."""
    x = value.tensor
    row = x.reshape(-1)[: min(4, x.size)]
    queue = Tensor.state(f"q{len(program.writes)}", (3, row.size), x.dtype)
    after = queue.assign(Tensor.cat([queue[1:], row.unsqueeze(0)]))
    program.writes.append(after)
    return Value(draw.pick([queue, after]), value.bound, value.digits)


def programs(steps: int = 12, *, states: bool = True) -> st.SearchStrategy[Program]:
    """Random programs of at most `steps` operations and up to three outputs.

    Fewer steps are a prefix of the same program, so that a failing one gets shorter.
    """
    seeds = st.integers(0, 2**32 - 1)
    return st.builds(build, seeds, st.integers(1, steps), states=st.just(states))


def build(seed: int, steps: int, *, states: bool = True) -> Program:
    """Return the program of a seed."""
    draw = Draw(seed)
    program = Program()
    shape = shapes(draw)
    program.values.append(fresh(draw, program, shape, draw.pick(KINDS)))
    for _ in range(steps):
        # Mostly the newest value, so that programs get deep.
        a = draw.pick([*program.values, *program.values[-1:] * 4])
        b = draw.pick(program.values)
        kind = draw.pick(STEPS)
        if kind == "move":
            result = movement(draw, a)
        elif kind == "unary":
            result = unary(draw, a)
        elif kind == "binary":
            result = binary(draw, a, b)
        elif kind == "reduce":
            result = reduction(draw, a)
        elif kind == "gather":
            result = gather(draw, a, b)
        elif kind == "state" and states:
            result = push_state(draw, program, a)
        else:
            # Mostly of the shape of another value, so that the two can be combined.
            other = a.tensor.shape if draw.flag() else shapes(draw)
            result = fresh(draw, program, other, draw.pick(KINDS))
        program.values.append(result)
    chosen = [draw.pick(program.values) for _ in range(draw.integer(0, 2))]
    for i, value in enumerate([program.values[-1], *chosen]):
        program.outputs[f"y{i}"] = value.tensor
    return program
