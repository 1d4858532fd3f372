"""Kind `eager`: random programs of eager tensors, compared with numpy: `run_program`.

Tensors are computed, viewed, written to in whole and in part, pinned, copied and run, in any order;
views and results are kept, so old values live beside new ones. All values are whole numbers small
enough to be exact in every type, so nothing but equality is accepted.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from scheduler import Tensor
from scheduler.ir import interp
from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import Op
from scheduler.tensor import realize
from scheduler.tensor.eager import EagerPlan
from tests.fuzz.batch import Outcome
from tests.fuzz.eager_functions import BINARY, UNARY

Array = NDArray[Any]

LARGEST = 2**20  # of a value: sums of a few of them are exact in float32
MOST = 14  # live tensors
SHAPES = ((6, 4), (6, 4), (6, 4), (4, 6), (8,), (2, 3, 4), (1, 5), (12, 12))
KINDS = (np.float32, np.float32, np.int32)


@dataclass(eq=False)
class Item:
    """A tensor, what it must be, and what it is a view of.

    Attributes:
        tensor: under test.
        value: what it must be.
        stored: whether it was made from an array, so that it has a buffer whatever was run.
        root: what it is a view of; its own item otherwise.
        places: flat positions in the root of the elements of a view.
        version: how often the root had been written to when both last agreed.
        writes: how often this item was written to.
    """

    tensor: Tensor
    value: Array
    stored: bool = False
    root: Item | None = None
    places: Array | None = None
    version: int = 0
    writes: int = 0


@dataclass
class Machine:
    """Some items, a generator that decides what happens to them, and what has happened."""

    rng: np.random.Generator
    items: list[Item] = field(default_factory=list)
    history: list[str] = field(default_factory=list)
    names: dict[Item, str] = field(default_factory=dict)

    # choices

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def pick(self, wanted: Callable[[Item], bool] = lambda _: True) -> Item | None:
        """Return a random item, newer ones more often; None if none is wanted."""
        found = [item for item in self.items if wanted(item)]
        if not found:
            return None
        recent = found[-4:] if self.chance(0.5) else found
        return recent[self.rng.integers(len(recent))]

    def any(self) -> Item:
        return self.items[self.rng.integers(len(self.items))]

    def several(self) -> list[Item]:
        return list(dict.fromkeys(self.any() for _ in range(self.rng.integers(1, 5))))

    def name(self, *items: Item) -> str:
        return ", ".join(self.names.setdefault(i, f"t{len(self.names)}") for i in items)

    def say(self, text: str) -> None:
        self.history.append(text)

    def add(self, item: Item, text: str) -> None:
        if item.value.size and np.abs(item.value.astype(np.float64)).max() > LARGEST:
            return
        self.items.append(item)
        self.say(f"{self.name(item)} = {text}")

    # what happens

    def leaf(self) -> None:
        shape = SHAPES[self.rng.integers(len(SHAPES))]
        kind = KINDS[self.rng.integers(len(KINDS))]
        value = self.rng.integers(-3, 4, shape).astype(kind)
        self.add(Item(Tensor(value), value, stored=True), f"Tensor({kind.__name__}{list(shape)})")

    def unary(self) -> None:
        a = self.any()
        text, ours, numpys = UNARY[self.rng.integers(len(UNARY))]
        if a.value.ndim < 2 and "sum(1)" in text:
            return
        value = np.asarray(numpys(a.value), a.value.dtype)
        self.add(Item(ours(a.tensor), value), text.replace("x", self.name(a)))

    def binary(self) -> None:
        a = self.any()
        b = self.pick(lambda i: i.value.shape == a.value.shape and i.value.dtype == a.value.dtype)
        assert b is not None
        text, ours = BINARY[self.rng.integers(len(BINARY))]
        made, value = ours(a.tensor, b.tensor, Tensor), ours(a.value, b.value, np)
        value = np.asarray(value, a.value.dtype)
        self.add(Item(made.cast(a.tensor.dtype), value), f"{text}: {self.name(a, b)}")

    def gather(self) -> None:
        a = self.any()
        rows = self.rng.integers(0, a.value.shape[0], self.rng.integers(1, 8))
        rows -= a.value.shape[0] * self.rng.integers(0, 2, rows.size)  # from the end, too
        made = a.tensor[self.index(rows)]
        self.add(Item(made, a.value[rows]), f"{self.name(a)}[{rows.tolist()}]")

    def index(self, rows: Array) -> Any:
        """Return an index as a list, a stored tensor, or a computed one."""
        way = self.rng.integers(3)
        if way == 0:
            return rows.tolist()
        stored = Tensor(rows.astype(np.int32))
        return stored if way == 1 else stored * 2 - stored

    def view(self) -> None:
        a = self.any()
        root = a.root or a
        text, take = self.part(a.value.shape) if self.chance(0.6) else self.moved(a.value.shape)
        value = take(a.value)
        if value.size == 0 or value.ndim == 0 or (made := take(a.tensor)) is a.tensor:
            return
        own = a.places if a.root else np.arange(a.value.size).reshape(a.value.shape)
        version = a.version if a.root else a.writes
        item = Item(made, value, root=root, places=take(own), version=version)
        self.add(item, f"{self.name(a)}{text}")

    def part(self, shape: tuple[int, ...]) -> tuple[str, Callable[[Any], Any]]:
        key: Any = self.key(shape)
        return f"[{key}]", lambda x: x[key]

    def moved(self, shape: tuple[int, ...]) -> tuple[str, Callable[[Any], Any]]:
        size = int(np.prod(shape))
        ways: list[tuple[str, Callable[[Any], Any]]] = [
            (".T", lambda x: x.T),
            (".reshape(-1)", lambda x: x.reshape(-1)),
            ("[::-1]", lambda x: x[::-1]),
            (f".reshape(1, {size})", lambda x: x.reshape(1, size)),
        ]
        if size % 2 == 0:
            ways.append((".reshape(2, -1)", lambda x: x.reshape(2, -1)))
        return ways[self.rng.integers(len(ways))]

    def key(self, shape: tuple[int, ...], *, ints: bool = True) -> tuple[Any, ...]:
        """Return a random basic index: of every axis a slice of any step, or an int."""
        parts: list[Any] = []
        for size in shape[: self.rng.integers(1, len(shape) + 1)]:
            begin, end = sorted(self.rng.integers(0, size + 1, 2).tolist())
            way = self.rng.integers(6)
            if way == 0 and ints and len(shape) > 1:
                parts.append(int(self.rng.integers(-size, size)))
            elif way == 1:
                parts.append(slice(None))
            elif way == 2:
                parts.append(slice(None, None, int(self.rng.choice([-2, -1, 2]))))
            else:
                parts.append(slice(begin, end))
        return tuple(parts)

    def value_for(self, target: Item, shape: tuple[int, ...]) -> tuple[Any, Any, str]:
        """Return a value to write, ours and numpy's: a number, or made of any item of the type."""
        kind = target.value.dtype
        size = int(np.prod(shape))
        source = self.pick(
            lambda i: i is not target and i.value.dtype == kind and i.value.size >= size
        )
        if source is None or self.chance(0.2):
            number = int(self.rng.integers(-3, 4))
            return number, number, str(number)
        if source.value.shape == shape:
            if self.chance(0.4):
                return source.tensor, source.value, self.name(source)
            one = kind.type(1)
            made = source.tensor + Tensor(1, source.tensor.dtype)
            return made, source.value + one, f"{self.name(source)} + 1"
        at = int(self.rng.integers(0, source.value.size - size + 1))
        made = source.tensor.reshape(-1)[at : at + size].reshape(shape)
        text = f"{self.name(source)}.reshape(-1)[{at}:{at + size}].reshape({shape})"
        return made, source.value.reshape(-1)[at : at + size].reshape(shape), text

    def write(self) -> None:
        """Write to the whole, to a slice, or to rows that an index names."""
        a = self.any()
        before = a.tensor.node
        way = self.rng.integers(4)
        if way == 0:
            given, value, text = self.value_for(a, a.value.shape)
            a.tensor.assign(given)
            self.wrote(a, before, ..., value, f".assign({text})")
        elif way == 1:
            axis = int(self.rng.integers(a.value.ndim))
            size = a.value.shape[axis]
            rows = self.rng.permutation(size)[: self.rng.integers(1, size + 1)]
            key: Any = (*[slice(None)] * axis, rows)
            given, value, text = self.value_for(a, a.value[key].shape)
            a.tensor[(*[slice(None)] * axis, self.index(rows))] = given
            self.wrote(a, before, key, value, f"[axis {axis}: {rows.tolist()}] = {text}")
        elif way == 2 and a.value.shape[0] > 1:  # of itself, overlapping
            n, step = a.value.shape[0], int(self.rng.integers(1, a.value.shape[0]))
            to, start = (slice(step, n), slice(0, n - step))[:: self.rng.choice([-1, 1])]
            part = a.value[start].copy()
            a.tensor[to] = a.tensor[start]
            self.wrote(a, before, (to,), part, f"[{to}] = itself[{start}]")
        else:
            key = self.key(a.value.shape)
            if a.value[key].size == 0 or a.value[key].ndim == 0:
                return
            given, value, text = self.value_for(a, a.value[key].shape)
            a.tensor[key] = given
            self.wrote(a, before, key, value, f"[{key}] = {text}")

    def wrote(self, a: Item, before: Node, key: Any, value: Any, text: str) -> None:
        """Take note of a write: a view of what was not written since writes through."""
        self.say(f"{self.name(a)}{text}")
        changed = a.value.copy()
        changed[key] = value
        if a.tensor.node is before:  # what is assigned to itself is not written
            np.testing.assert_array_equal(changed, a.value, "a write that was left out")
            return
        a.value = changed
        a.writes += 1
        root = a.root
        if root is None or a.places is None:
            return
        if a.version != root.writes:  # from here on it is what its own views write to
            a.root = None
            return
        through = root.value.copy()
        through.reshape(-1)[a.places] = changed
        # What has no buffer is not written through its views, and who has one is up to what ran.
        if not root.stored and np.array_equal(root.tensor.interp(), root.value):
            a.root = None
            return
        root.value = through
        root.writes += 1
        a.version = root.writes

    def kernelize(self) -> None:
        first, *more = self.several()
        self.say(f"{self.name(first)}.kernelize({self.name(*more)})")
        first.tensor.kernelize(*(i.tensor for i in more))

    def realize(self) -> None:
        first, *more = self.several()
        self.say(f"{self.name(first)}.realize({self.name(*more)})")
        others = [i.tensor for i in more]
        if self.chance(0.3):
            first.tensor.schedule(*others)
        first.tensor.realize(*others)
        assert first.tensor.schedule(*others).launches == [], "what was realized runs again"

    def numpy(self) -> None:
        a = self.any()
        self.say(f"{self.name(a)}.numpy()")
        np.testing.assert_array_equal(a.tensor.numpy(), a.value)

    def copy(self) -> None:
        a = self.any()
        if self.chance(0.5):
            self.add(Item(a.tensor.clone(), a.value), f"{self.name(a)}.clone()")
            return
        made = a.tensor.contiguous()
        if made is not a.tensor:
            self.add(Item(made, a.value), f"{self.name(a)}.contiguous()")

    def drop(self) -> None:
        if len(self.items) > 3:
            gone = self.items.pop(int(self.rng.integers(len(self.items))))
            self.say(f"del {self.name(gone)}")
            for item in self.items:
                if item.root is gone:  # views of one that is gone are on their own
                    item.root = None

    def check(self) -> None:
        for item in self.items:
            np.testing.assert_array_equal(item.tensor.interp(), item.value, self.name(item))


STEPS = {
    "leaf": 2,
    "unary": 4,
    "binary": 6,
    "gather": 1,
    "view": 5,
    "write": 9,
    "kernelize": 3,
    "realize": 2,
    "numpy": 1,
    "copy": 2,
    "drop": 2,
}


def _evaluate(
    plan: EagerPlan, inputs: Any, *_compiled_for: object
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Compute a plan with the interpreter: `scheduler.tensor.realize.execute` without a device."""
    given = {**plan.feeds(set(plan.buffers)), **plan.states(), **inputs}
    roots: list[Node] = [*plan.graph.outputs.values(), *plan.graph.states]
    buffers = {
        n.arg: given[n.arg.name]
        for n in toposort(roots)
        if n.op is Op.BUFFER and n.arg.name in given
    }
    values = [np.array(v) for v in interp.evaluate(roots, buffers)]
    count = len(plan.graph.outputs)
    return (
        dict(zip(plan.graph.outputs, values[:count], strict=True)),
        dict(zip(plan.writes, values[count:], strict=True)),
    )


def interpreted() -> AbstractContextManager[object]:
    """Run plans with the interpreter: a hundred times the programs, but none of the kernels."""
    return mock.patch.object(realize, "execute", _evaluate)


def run_program(rng: np.random.Generator, steps: int | None = None) -> None:
    """Run one random program, and compare every tensor with numpy."""
    machine = Machine(rng)
    names = [name for name, weight in STEPS.items() for _ in range(weight)]
    machine.leaf()
    machine.leaf()
    try:
        for _ in range(steps or int(rng.integers(10, 60))):
            getattr(machine, names[rng.integers(len(names))])()
            if len(machine.items) > MOST:
                machine.drop()
            if machine.chance(0.3):
                machine.check()
        for k in rng.permutation(len(machine.items)).tolist():
            item = machine.items[k]
            machine.say(f"{machine.name(item)}.numpy()")
            np.testing.assert_array_equal(item.tensor.numpy(), item.value, machine.name(item))
        machine.check()
    except Exception as error:
        program = "\n".join(machine.history)
        raise AssertionError(f"{program}\n{type(error).__name__}: {error}") from error


def run(outcome: Outcome) -> None:
    """Run a program of the kind `eager`: it decides what is compiled while it runs."""
    run_program(np.random.default_rng(outcome.name.seed), outcome.name.steps or None)
    outcome.counts.exact += 1
