"""Situations that decide what is fused: shared reductions, joins of them, states, stored halves.

Each is a step like those of `steps`, of several operations at once; some add outputs, or write
states whose old and new values the program goes on with.
"""

from typing import Final

import numpy as np

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.program import MOST_STATES, STATE_KINDS, Program, Step
from tests.fuzz.steps import STEPS, binary, boundary, unary
from tests.fuzz.values import array


def minus(p: Program, a: Tensor, b: Tensor) -> Tensor:
    """Return a - b, or the larger of both bools; b where the two do not fit."""
    if a.dtype is not b.dtype or not p.broadcast(a, b):
        return b
    return a.maximum(b) if a.dtype is dt.bool_ else a - b


def shared_reductions(p: Program, x: Tensor) -> Tensor | None:
    """Several reductions of one value, and results that use some of them, broadcast or not."""
    if x.ndim == 0 or x.dtype is dt.bool_:
        return None
    axes = p.axes(x)
    names = p.draw.some(["sum", "max", "min", "mean", "sum"], 3)
    reduced = [getattr(x, name)(axes, keepdim=True) for name in names]
    used = [binary(p, row) if p.draw.flag() else row for row in reduced]
    results = [minus(p, x, row) for row in used if row is not None]
    for result in results[:2]:
        p.output(result)
    return results[-1]


def joined_reductions(p: Program, x: Tensor) -> Tensor | None:
    """Join reductions of one value over different axes, and perhaps something else."""
    if x.ndim == 0 or x.dtype is dt.bool_:
        return None
    names = [p.draw.pick(["sum", "max", "min"]) for _ in range(p.draw.integer(2, 3))]
    parts = [getattr(x, name)(p.axes(x)).reshape(-1) for name in names]
    if p.draw.flag():
        parts.append(p.leaf((3,), x.dtype))
    return Tensor.cat([part.cast(x.dtype) for part in parts])


def joined(p: Program, x: Tensor) -> Tensor | None:
    """Join a value with what was made of it."""
    if x.ndim == 0:
        return None
    axis = p.axis(x)
    parts = [x, x.flip(axis)]
    other = binary(p, x)
    if other is not None and (other.shape, other.dtype) == (x.shape, x.dtype):
        parts.insert(p.draw.integer(0, 2), other)
    return Tensor.cat(parts, axis)


def one_hot(p: Program, x: Tensor) -> Tensor | None:
    """Pick rows by a comparison with an iota, summed up; an index of all rows picks none."""
    if x.ndim == 0 or x.dtype is not dt.float32 or x.size * 3 > p.most or not p.finite(x):
        return None
    size, rest = x.shape[0], (1,) * (x.ndim - 1)
    rows = Tensor.weight(np.array([p.draw.integer(0, size) for _ in range(3)], np.int32))
    hot = rows.reshape((3, 1)).eq(Tensor.arange(size)).float()
    return (hot.reshape((3, size, *rest)) * x.unsqueeze(0)).sum(1)


def _full(p: Program, x: Tensor, new: int = 1) -> bool:
    """Whether a program has as many states as it may, or a value is of a type that none has."""
    return x.dtype not in STATE_KINDS or len(p.states) + new > MOST_STATES


def queue(p: Program, x: Tensor) -> Tensor | None:
    """Push a row of a value into a queue; go on with the queue before or after."""
    if _full(p, x):
        return None
    width = min(4, x.size)
    row = x.reshape(-1)[:width].reshape((1, width))
    old = p.state((p.draw.integer(2, 4), width), x.dtype)
    pushed = Tensor.cat([old[1:], row] if p.draw.flag() else [row, old[:-1]])
    return p.draw.pick([old, p.assign(old, pushed)])


def update(p: Program, x: Tensor) -> Tensor | None:
    """Assign to a state what is made of its old value, element by element or turned round."""
    if _full(p, x) or not x.ndim:
        return None
    unwritten = [t for name, t in p.states.items() if name not in p.writes]
    chosen = p.draw.pick(unwritten) if unwritten and p.draw.flag() else p.state(x.shape, x.dtype)
    turned = chosen.ndim > 0 and p.draw.integer(0, 2) == 0
    old = chosen.flip(p.axis(chosen)) if turned else chosen
    new = p.assign(chosen, minus(p, old, x))
    return p.draw.pick([chosen, new, new])


def write_parts(p: Program, x: Tensor) -> Tensor | None:
    """Write one or two slices of a state, each from a value; the rest stays."""
    if _full(p, x):
        return None
    shape = (p.draw.integer(2, 6), p.draw.pick([1, 3, 4, 17]))
    old = now = p.state(shape, x.dtype)
    for _ in range(p.draw.integer(1, 2)):
        axis = p.draw.integer(0, 1)
        start = p.draw.integer(0, shape[axis] - 1)
        piece = slice(start, p.draw.integer(start + 1, shape[axis]), p.draw.integer(1, 2))
        key = (piece, slice(None)) if axis == 0 else (slice(None), piece)
        part = p.storable(p.draw.pick([x, now]), now[key].shape, x.dtype)
        now = now[key].assign(part)
    p.write(old, now)
    return p.draw.pick([old, now])


def exchange(p: Program, x: Tensor) -> Tensor | None:
    """Two states of which each takes the other's old value, and something of the new one."""
    if _full(p, x, new=2):
        return None
    shape = p.shape()[:2]
    a, b = p.state(shape, x.dtype), p.state(shape, x.dtype)
    p.assign(a, b - p.input(array(p.draw, shape, x.dtype, p.profile), x.dtype))
    return binary(p, p.assign(b, a))


def as_half(p: Program, x: Tensor) -> Tensor | None:
    """Store a value as float16 and read it back."""
    if x.dtype is not dt.float32:
        return None
    half = x.half()
    return (half.contiguous() if p.draw.flag() else half).float()


def half_input(p: Program, _: Tensor) -> Tensor | None:
    return p.input(array(p.draw, p.shape(), dt.float16, p.profile), dt.float16).float()


def several_outputs(p: Program, x: Tensor) -> Tensor | None:
    """Independent results of one shape: what may share a launch."""
    for _ in range(p.draw.integer(2, 3)):
        p.output(unary(p, p.input(array(p.draw, x.shape, x.dtype, p.profile), x.dtype)))
    return None


# Those that write states.
STATEFUL: Final[tuple[Step, ...]] = (queue, update, exchange, write_parts)
MOTIFS: Final[tuple[Step, ...]] = (
    *(shared_reductions, joined_reductions, joined) * 2,
    *(one_hot, as_half, half_input, several_outputs, boundary),
)
# Half of a program of situations is single steps, which the situations are made of.
SITUATIONS: Final[tuple[Step, ...]] = (*MOTIFS * 2, *STATEFUL * 2, *STEPS)
