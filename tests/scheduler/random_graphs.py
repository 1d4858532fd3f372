"""Random graphs written twice, with Tensor and with numpy: motifs that decide what is fused.

`strategies` draws single operations; this draws whole situations: several outputs that share
reductions, joins of reductions, states read old and new, queues, broadcasts in the middle, windows,
gathers by computed indices, storage in float16. Every value carries a bound of its magnitude and
the binary digits of its fraction while its arithmetic is exact; exact values must agree bit by bit,
in whatever order a kernel adds them up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from scheduler.ir.node import Node, make, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.ir.rewrite import remake
from scheduler.tensor.tensor import Tensor
from tests.scheduler.strategies import SIZES, Draw, array

Array = NDArray[Any]
MAX_ELEMENTS = 600
MAX_BOUND = 2.0**16
KINDS = (dt.float32, dt.float32, dt.float32, dt.float32, dt.int32, dt.int32, dt.uint8, dt.bool_)
BOUND = {"float32": (4.0, 3), "int32": (20.0, 0), "uint8": (255.0, 0), "bool": (1.0, 0)}
STATE_BOUND = 64.0  # what a state may hold; what is assigned is clipped to it


@dataclass(frozen=True)
class Value:
    """One value of a graph.

    Attributes:
        tensor: ours.
        at: its position in the list of numpy steps.
        bound: of its magnitude.
        digits: binary digits of its fraction; None where arithmetic was rounded.
    """

    tensor: Tensor
    at: int
    bound: float
    digits: int | None

    @property
    def exact(self) -> bool:
        """Whether sums of such values are exact in float32 in any order."""
        return self.digits is not None and self.bound * 2.0**self.digits < 2**23


@dataclass(frozen=True)
class Step:
    """One operation in numpy: what it is called, what it does, and to which earlier results."""

    text: str
    run: Callable[..., Any]
    sources: tuple[int, ...]


@dataclass
class Graph:
    """A program: numpy steps, tensors, outputs and state writes by name."""

    draw: Draw
    steps: list[Step] = field(default_factory=list)
    values: list[Value] = field(default_factory=list)
    inputs: dict[str, Array] = field(default_factory=dict)
    states: dict[str, Value] = field(default_factory=dict)
    outputs: dict[str, Value] = field(default_factory=dict)
    writes: dict[str, Value] = field(default_factory=dict)

    def add(
        self,
        text: str,
        ours: Callable[..., Tensor],
        theirs: Callable[..., Any],
        *sources: Value,
        bound: float | None = None,
        digits: int | None = 0,
    ) -> Value:
        """Apply an operation to values, written for Tensor and for numpy."""
        tensor = ours(*(s.tensor for s in sources))
        names = ", ".join(f"v{s.at}" for s in sources)
        label = f"{text}({names})  # {tensor.dtype}{list(tensor.shape)}"
        self.steps.append(Step(label, theirs, tuple(s.at for s in sources)))
        top = max((s.bound for s in sources), default=1.0) if bound is None else bound
        if not tensor.dtype.is_float:
            digits = 0
        made = Value(tensor, len(self.steps) - 1, top, digits)
        if tensor.dtype.name in BOUND:  # others are only on the way to something
            self.values.append(made)
        return made

    def numpy(self, given: Mapping[str, Array]) -> list[Array]:
        """Return the results of all steps; inputs and states are looked up in `given` by name."""
        found: list[Array] = []
        with np.errstate(all="ignore"):
            for step in self.steps:
                sources: list[Any] = [found[i] for i in step.sources]
                found.append(np.asarray(step.run(given) if not sources else step.run(*sources)))
        return found

    def __repr__(self) -> str:
        lines = [f"v{i} = {step.text}" for i, step in enumerate(self.steps)]
        lines += [f"{name} = v{value.at}" for name, value in self.outputs.items()]
        lines += [f"state {name} <- v{value.at}" for name, value in self.writes.items()]
        return "\n".join(["", *lines])

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The outputs."""
        return {name: value.tensor for name, value in self.outputs.items()}

    @property
    def assigns(self) -> list[Tensor]:
        """The state writes."""
        return [value.tensor for value in self.writes.values()]

    def feed(self, turn: int) -> dict[str, Array]:
        """Return the inputs of one run: others each time."""
        return {n: np.roll(v.reshape(-1), turn).reshape(v.shape) for n, v in self.inputs.items()}


def agree(got: Array, want: Array, value: Value, scale: float) -> bool:
    """Whether two arrays agree: bit for bit where arithmetic is exact, else to 1e-5 of `scale`."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if value.exact or want.dtype.kind != "f":
        return bool(np.array_equal(got, want))
    return bool(np.allclose(got, want, rtol=1e-5, atol=1e-5 * max(1.0, scale)))


def scale_of(found: Sequence[Array]) -> float:
    """Return the largest magnitude on the way to a result."""
    floats = [float(np.abs(f).max()) for f in found if f.dtype.kind == "f" and f.size]
    return max(floats, default=1.0)


# --- leaves -----------------------------------------------------------------------------------


def leaf(g: Graph, shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Add an input, a weight, a repeated constant or a state."""
    bound, digits = BOUND[kind.name]
    source = g.draw.pick(["input", "input", "input", "weight", "full", "state"])
    if source == "weight" and shape:
        data = array(g.draw, shape, kind)
        return g.add(
            "weight", lambda: Tensor.weight(data), lambda _: data, bound=bound, digits=digits
        )
    if source == "full":
        number = g.draw.integer(0, 1 if kind is dt.bool_ else 3)
        made = Tensor.full(shape, bool(number) if kind is dt.bool_ else number, kind)
        return g.add(f"full {number}", lambda: made, lambda _: np.full(shape, number, kind.np))
    if source == "state" and kind in (dt.float32, dt.int32):
        return state(g, shape, kind)
    name = f"x{len(g.inputs)}"
    g.inputs[name] = array(g.draw, shape, kind)
    made = Tensor.input(name, shape, kind)
    return g.add(f"input {name}", lambda: made, lambda e: e[name], bound=bound, digits=digits)


def state(g: Graph, shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Add a state that nothing is assigned to yet."""
    name = f"s{len(g.states)}"
    made = Tensor.state(name, shape, kind)
    value = g.add(
        f"state {name}",
        lambda: made,
        lambda e: e[name],
        bound=STATE_BOUND,
        digits=BOUND["float32"][1],
    )
    g.states[name] = value
    return value


def shape_of(draw: Draw) -> tuple[int, ...]:
    """Draw one to four axes."""
    shape = [draw.pick(SIZES) for _ in range(draw.pick([2, 3, 1, 4, 2, 3]))]
    while prod(shape) > MAX_ELEMENTS:
        shape.pop()
    return tuple(shape)


def fitted(g: Graph, value: Value, shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Turn a value into one that may be assigned to a state of this shape and type."""
    x = value
    if x.tensor.dtype is not kind:
        cast = kind.np
        x = g.add("cast", lambda t: t.cast(kind), lambda a: a.astype(cast), x, digits=0)
    if x.tensor.shape != shape:
        count = prod(shape)
        times = -(-count // x.tensor.size)
        x = g.add(
            f"refit {shape}",
            lambda t: t.flatten().repeat([times])[:count].reshape(shape),
            lambda a: np.tile(a.reshape(-1), times)[:count].reshape(shape),
            x,
            digits=x.digits,
        )
    if x.bound > STATE_BOUND:
        x = g.add(
            "clip",
            lambda t: t.clip(-int(STATE_BOUND), int(STATE_BOUND)),
            lambda a: np.clip(a, -int(STATE_BOUND), int(STATE_BOUND)),
            x,
            bound=STATE_BOUND,
            digits=x.digits,
        )
    return x


def storable(g: Graph, value: Value, shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Return a value that a state can hold: the next run takes it to be exact whole eighths."""
    new = fitted(g, value, shape, kind)
    if kind.is_float and (not new.exact or (new.digits or 0) > BOUND["float32"][1]):
        return leaf_of(g, shape, kind)
    return new


def assign(g: Graph, name: str, value: Value) -> Value:
    """Assign to a state; the result is its new value."""
    target = g.states[name].tensor
    new = storable(g, value, target.shape, target.dtype)
    made = g.add(
        f"assign {name}",
        target.assign,
        lambda a: a,
        new,
        bound=new.bound,
        digits=new.digits,
    )
    g.writes[name] = made
    return made


def leaf_of(g: Graph, shape: tuple[int, ...], kind: dt.DType) -> Value:
    """Add an input."""
    name = f"x{len(g.inputs)}"
    g.inputs[name] = array(g.draw, shape, kind)
    bound, digits = BOUND[kind.name]
    made = Tensor.input(name, shape, kind)
    return g.add(f"input {name}", lambda: made, lambda e: e[name], bound=bound, digits=digits)


# --- the same without fusion ---------------------------------------------------------------------


def apart(tensors: Sequence[Tensor], *, only: Callable[[Node], bool] | None = None) -> list[Tensor]:
    """Return the same values with every operation in a kernel of its own: nothing is fused.

    Args:
        tensors: outputs and state writes.
        only: ends a kernel at these nodes instead of at all.
    """
    new: dict[Node, Node] = {}
    free = {Op.BUFFER, Op.CONST, Op.IOTA, Op.ASSIGN, Op.CONTIGUOUS} | (MOVEMENT - {Op.CAT, Op.PAD})
    for node in toposort([t.node for t in tensors]):
        made = remake(node, tuple(new[s] for s in node.src)) if node.src else node
        if node.op not in free and (only is None or only(node)):
            made = make(Op.CONTIGUOUS, made.dtype, (made,))
        new[node] = made
    return [Tensor.of(new[t.node]) for t in tensors]


@contextmanager
def told_of(graph: Graph) -> Iterator[None]:
    """Add the program to what is said when something inside fails."""
    try:
        yield
    except Exception as error:
        error.add_note(repr(graph))
        raise
