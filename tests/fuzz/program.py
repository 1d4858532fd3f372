"""Random programs of every type and operation, judged as they grow.

A step whose result is too large, or of which too little is known, is not taken; so what a program
computes mostly means something, however deep it is. The same seed with fewer steps is a prefix.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.debug.pretty import pretty
from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.draw import Draw
from tests.fuzz.judge import Judge
from tests.fuzz.values import array

Array = NDArray[Any]
# Elements of a value: of most programs, and of those that are long enough to be reduced in stages.
SMALL: Final = 2000
LARGE: Final = 150_000
# Share of the elements of a result that may be unknown; with more, a step is not taken.
MAX_UNDECIDED: Final = 0.4
SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 16, 17, 19, 33)
LONG_SIZES: Final = (*SIZES, 64, 257, 1024, 4099, 33_000, 70_001)
COMMON: Final = (dt.float32,) * 5 + (dt.float16,) * 3 + (dt.int32,) * 3 + (dt.bool_,)
KINDS: Final = (*COMMON, *dt.ALL)
# States hold eighths up to this, so that a run starts from exact values of the run before it.
STATE_KINDS: Final = (dt.float32, dt.float16, dt.int32)
STATE_BOUND: Final = 64
STATE_PROFILE: Final = "halves"
MOST_STATES: Final = 4


@dataclass(repr=False)
class Program:
    """A program as it grows.

    Attributes:
        draw: decides everything.
        float64: the target has it.
        profile: of its values.
        most: elements of a value.
        stateful: states are among its leaves.
        kinds: types of new values.
        inputs: what a run gives.
        values: all tensors so far.
        ranges: by position in `values`, smallest and largest value of those that have limits.
        states: by name.
        writes: new values of states, by name.
        outputs: by name.
        output_ranges: limits of outputs that have some, by name.
        reached: names of the steps whose results were taken.
    """

    draw: Draw
    float64: bool = True
    profile: str = "whole"
    most: int = SMALL
    stateful: bool = False
    kinds: Sequence[dt.DType] = KINDS
    inputs: dict[str, Array] = field(default_factory=dict)
    values: list[Tensor] = field(default_factory=list)
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)
    states: dict[str, Tensor] = field(default_factory=dict)
    writes: dict[str, Tensor] = field(default_factory=dict)
    outputs: dict[str, Tensor] = field(default_factory=dict)
    output_ranges: dict[str, tuple[int, int]] = field(default_factory=dict)
    reached: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        # While a program grows its states hold any values: they are zeros in the first run only.
        self._imagined: dict[str, Array] = {}
        given: ChainMap[str, Array] = ChainMap(self.inputs, self._imagined)
        self.judge = Judge(given)

    def __repr__(self) -> str:
        roots = [t.node for t in (*self.outputs.values(), *self.writes.values())]
        return f"\n{pretty(roots)}\n"

    @property
    def tensors(self) -> list[Tensor]:
        """Outputs and new states."""
        return [*self.outputs.values(), *self.writes.values()]

    def feed(self, turn: int) -> dict[str, Array]:
        return {n: np.roll(v.reshape(-1), turn).reshape(v.shape) for n, v in self.inputs.items()}

    # leaves

    def kind(self) -> dt.DType:
        found = self.draw.pick(self.kinds)
        return dt.float32 if found is dt.float64 and not self.float64 else found

    def shape(self) -> tuple[int, ...]:
        rank = self.draw.pick([2, 3, 1, 4, 2, 3, 2, 0])
        sizes = SIZES if self.most == SMALL else LONG_SIZES
        found = [self.draw.pick(sizes) for _ in range(rank)]
        while prod(found) > self.most // 2:
            found.pop(0)
        return tuple(found)

    def leaf(self, shape: tuple[int, ...], kind: dt.DType) -> Tensor:
        """Return an input, a weight, a state or one value repeated."""
        sources = ["input", "input", "weight", "full", *["state"] * self.stateful]
        source = self.draw.pick(sources)
        if source == "state" and kind in STATE_KINDS and len(self.states) < MOST_STATES:
            return self.state(shape, kind)
        data = array(self.draw, shape, kind, self.profile)
        if source == "full":
            return Tensor.full(shape, array(self.draw, (), kind, self.profile).item(), kind)
        if source == "weight" and shape:
            return Tensor.weight(data)
        return self.input(data, kind)

    def input(self, data: Array, kind: dt.DType) -> Tensor:
        """Return a new input that is given these values."""
        name = f"x{len(self.inputs)}"
        self.inputs[name] = data
        return Tensor.input(name, data.shape, kind)

    def state(self, shape: tuple[int, ...], kind: dt.DType) -> Tensor:
        """Return a new state, to which nothing is assigned yet."""
        name = f"s{len(self.states)}"
        self._imagined[name] = array(self.draw, shape, kind, STATE_PROFILE)
        self.states[name] = Tensor.state(name, shape, kind)
        return self.states[name]

    # states

    def assign(self, state: Tensor, value: Tensor) -> Tensor:
        """Assign to a state what it can hold of a value; return its new value."""
        new = state.assign(self.storable(value, state.shape, state.dtype))
        self.write(state, new)
        return new

    def write(self, state: Tensor, new: Tensor) -> None:
        (name,) = (n for n, t in self.states.items() if t is state)
        self.writes[name] = new

    def storable(self, value: Tensor, shape: tuple[int, ...], kind: dt.DType) -> Tensor:
        """Return a value of this shape that a state holds exactly, a new input if it is not."""
        x = value.cast(kind)
        if x.shape != shape:
            count = prod(shape)
            x = x.flatten().repeat([-(-count // x.size)])[:count].reshape(shape)
        x = x.clip(-STATE_BOUND, STATE_BOUND)
        known = self.judge.of(x.node)
        eighths = known.value.astype(np.float64) * 8
        exact = not known.error.any() and bool((eighths == np.rint(eighths)).all())
        return x if exact else self.input(array(self.draw, shape, kind, STATE_PROFILE), kind)

    # values

    def keep(self, made: Tensor, limits: tuple[int, int] | None = None) -> bool:
        """Add a value, if it is of use; return whether it is."""
        if not 0 < made.size <= self.most or made.ndim > 8:
            return False
        if made.dtype is dt.float64 and not self.float64:
            return False
        known = self.judge.of(made.node)
        if known.undecided > MAX_UNDECIDED and limits is None:
            return False
        if limits is not None:
            self.ranges[len(self.values)] = limits
        self.values.append(made)
        return True

    def output(self, made: Tensor | None) -> None:
        """Add a value, if it is of use, and return it from the program."""
        if made is not None and self.keep(made):
            self.outputs[f"o{len(self.outputs)}"] = made

    def finite(self, x: Tensor) -> bool:
        """Whether no element is an infinity or NaN."""
        return bool(np.isfinite(self.judge.of(x.node).value.astype(np.float64)).all())

    def partner(self, x: Tensor) -> Tensor:
        """Return a value of the same type that broadcasts with another: often a new one."""
        fits = [v for v in self.values if v.dtype is x.dtype and self.broadcast(v, x)]
        if fits and self.draw.integer(0, 2):
            return self.draw.pick(fits)
        shape = x.shape[self.draw.integer(0, x.ndim) :] if self.draw.flag() else x.shape
        shape = tuple(1 if self.draw.integer(0, 4) == 0 else s for s in shape)
        return self.leaf(shape, x.dtype)

    def axis(self, x: Tensor) -> int:
        """Return one of the axes of a value that has some."""
        return self.draw.integer(0, x.ndim - 1)

    def axes(self, x: Tensor) -> list[int]:
        """Return one or two axes of a value that has some, in order."""
        return sorted(self.draw.some(range(x.ndim), 2))

    def broadcast(self, a: Tensor, b: Tensor) -> bool:
        """Whether two shapes broadcast to one that is small enough."""
        try:
            return prod(np.broadcast_shapes(a.shape, b.shape)) <= self.most
        except ValueError:
            return False

    # growth

    def grow(self, steps: int, pool: Sequence[Step]) -> None:
        """Take some steps that are of use, mostly from the newest value, so that it gets deep."""
        while not self.values:
            self.keep(self.leaf(self.shape(), self.kind()))
        for _ in range(steps):
            x = self.draw.pick([*self.values, *self.values[-1:] * 4])
            self.take(self.draw.pick(pool), x)

    def take(self, step: Step, x: Tensor) -> None:
        """Take one step from a value."""
        before = len(self.values)
        made = step(self, x)
        if made is not None:
            self.keep(made)
        if len(self.values) > before:
            self.reached.add(step.__name__)

    def finish(self, draw: Draw) -> None:
        """Assign to the states that nothing was assigned to, and choose some outputs."""
        for name, state in self.states.items():
            if name not in self.writes:
                self.assign(state, draw.pick(self.values))
        last = range(max(0, len(self.values) - 6), len(self.values))
        for i in dict.fromkeys([*self.ranges, len(self.values) - 1, *draw.some(last, 3)]):
            self.outputs[f"y{i}"] = self.values[i]
            if i in self.ranges:
                self.output_ranges[f"y{i}"] = self.ranges[i]


Step = Callable[[Program, Tensor], Tensor | None]
