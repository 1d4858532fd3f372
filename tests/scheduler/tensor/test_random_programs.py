"""Random programs on realized tensors: computed, pinned, run and written to in any order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from scheduler import Tensor

Array = NDArray[Any]

STEPS = 24


@dataclass
class Pair:
    """A tensor and what it must be; exact, because all values are small whole numbers."""

    tensor: Tensor
    value: Array


@dataclass
class Machine:
    """Some pairs, and a generator that decides what happens to them."""

    rng: np.random.Generator
    pairs: list[Pair] = field(default_factory=list)

    def pick(self) -> Pair:
        return self.pairs[self.rng.integers(len(self.pairs))]

    def several(self) -> list[Pair]:
        return [self.pick() for _ in range(self.rng.integers(1, 4))]

    def leaf(self) -> None:
        value = self.rng.integers(-3, 4, (4, 4)).astype(np.float32)
        self.pairs.append(Pair(Tensor(value), value))

    def compute(self) -> None:
        a, b = self.pick(), self.pick()
        ways: list[Callable[[Any, Any], Any]] = [
            lambda x, y: x + y,
            lambda x, y: x - y,
            lambda x, y: x.T + y[::-1],
            lambda x, y: x.sum(1).reshape(4, 1) + y,
            lambda x, y: (x > y) * 1.0 + y * 0.0,
            lambda x, y: x[1:3][[1, 0, 1, 0]] + y,
        ]
        made = ways[self.rng.integers(6)]
        value = np.asarray(made(a.value, b.value), np.float32)
        if np.abs(value).max() < 2**20:
            self.pairs.append(Pair(made(a.tensor, b.tensor), value))

    def assign(self) -> None:
        target, source = self.pick(), self.pick()
        if target.tensor.owner is not None:  # it would write to another pair as well
            return
        if self.rng.random() < 0.5:
            target.tensor.assign(source.tensor + 1.0)
            target.value = source.value + 1
            return
        keys: list[Any] = [np.s_[1:3], np.s_[:, 2], np.s_[::2, ::-1], np.s_[[3, 0]], np.s_[1]]
        key = keys[self.rng.integers(5)]
        part, changed = source.value[key], target.value.copy()
        changed[key] = part
        target.tensor[key] = source.tensor[key]
        target.value = changed

    def kernelize(self) -> None:
        first, *more = self.several()
        first.tensor.kernelize(*(p.tensor for p in more))

    def realize(self) -> None:
        first, *more = self.several()
        first.tensor.schedule(*(p.tensor for p in more))
        first.tensor.realize(*(p.tensor for p in more))
        assert first.tensor.schedule(*(p.tensor for p in more)).launches == []

    def drop(self) -> None:
        if len(self.pairs) > 3:
            self.pairs.pop(int(self.rng.integers(len(self.pairs))))


@pytest.mark.opencl
@pytest.mark.parametrize("seed", range(12))
def test_a_tensor_is_always_the_value_it_was_given(seed: int) -> None:
    machine = Machine(np.random.default_rng(seed))
    machine.leaf()
    machine.leaf()
    weights = {"leaf": 1, "compute": 6, "assign": 4, "kernelize": 3, "realize": 3, "drop": 1}
    names = [n for n, count in weights.items() for _ in range(count)]
    history = []
    for _ in range(STEPS):
        name = names[machine.rng.integers(len(names))]
        history.append(name)
        getattr(machine, name)()
        for pair in machine.pairs:
            np.testing.assert_array_equal(pair.tensor.interp(), pair.value, err_msg=str(history))
    for pair in machine.pairs:
        np.testing.assert_array_equal(pair.tensor.numpy(), pair.value, err_msg=str(history))
