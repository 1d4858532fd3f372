"""Random graphs of every type and operation, judged as they grow.

A step whose result is too large, or of which too little is known, is not taken; so what a program
computes mostly means something, however deep it is. The same seed with fewer steps is a prefix.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import prod
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.tensor.tensor import Tensor
from tests.fuzz.judge import Judge
from tests.fuzz.values import array
from tests.scheduler.strategies import Draw

Array = NDArray[Any]
# Elements of a value: of most programs, and of those that are long enough to be reduced in stages.
SMALL: Final = 2000
LARGE: Final = 150_000
# Of a result; more, and a step is not taken.
MAX_UNDECIDED: Final = 0.4
SIZES: Final = (1, 2, 3, 4, 5, 7, 8, 16, 17, 19, 33)
LONG_SIZES: Final = (*SIZES, 64, 257, 1024, 4099, 33_000, 70_001)
COMMON: Final = (dt.float32,) * 5 + (dt.float16,) * 3 + (dt.int32,) * 3 + (dt.bool_,)
KINDS: Final = (*COMMON, *dt.ALL)


@dataclass
class Typed:
    """A graph as it grows.

    Attributes:
        draw: decides everything.
        float64: the target has it.
        profile: of its values.
        most: elements of a value.
        inputs: what a run gives.
        values: all tensors so far.
        ranges: by position in `values`, smallest and largest value of those that have limits.
    """

    draw: Draw
    float64: bool
    profile: str = "whole"
    most: int = SMALL
    inputs: dict[str, Array] = field(default_factory=dict)
    values: list[Tensor] = field(default_factory=list)
    ranges: dict[int, tuple[int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.judge = Judge(self.inputs)

    def kind(self) -> dt.DType:
        """Return a type."""
        found = self.draw.pick(KINDS)
        return dt.float32 if found is dt.float64 and not self.float64 else found

    def shape(self) -> tuple[int, ...]:
        """Return zero to four axes."""
        rank = self.draw.pick([2, 3, 1, 4, 2, 3, 2, 0])
        sizes = SIZES if self.most == SMALL else LONG_SIZES
        found = [self.draw.pick(sizes) for _ in range(rank)]
        while prod(found) > self.most // 2:
            found.pop(0)
        return tuple(found)

    def leaf(self, shape: tuple[int, ...], kind: dt.DType) -> Tensor:
        """Return an input, a weight or one value repeated."""
        source = self.draw.pick(["input", "input", "weight", "full"])
        data = array(self.draw, shape, kind, self.profile)
        if source == "full":
            return Tensor.full(shape, array(self.draw, (), kind, self.profile).item(), kind)
        if source == "weight" and shape:
            return Tensor.weight(data)
        name = f"x{len(self.inputs)}"
        self.inputs[name] = data
        return Tensor.input(name, shape, kind)

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

    def partner(self, x: Tensor) -> Tensor:
        """Return a value of the same type that broadcasts with another: often a new one."""
        fits = [v for v in self.values if v.dtype is x.dtype and self._broadcasts(v, x)]
        if fits and self.draw.integer(0, 2):
            return self.draw.pick(fits)
        shape = x.shape[self.draw.integer(0, x.ndim) :] if self.draw.flag() else x.shape
        shape = tuple(1 if self.draw.integer(0, 4) == 0 else s for s in shape)
        return self.leaf(shape, x.dtype)

    def axis(self, x: Tensor) -> int:
        """Return one of the axes of a value that has some."""
        return self.draw.integer(0, x.ndim - 1)

    def _broadcasts(self, a: Tensor, b: Tensor) -> bool:
        try:
            return prod(np.broadcast_shapes(a.shape, b.shape)) <= self.most
        except ValueError:
            return False
