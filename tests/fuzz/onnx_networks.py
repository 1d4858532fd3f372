"""Random small networks: a dozen nodes on values of any rank, branches and loops among them."""

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.onnx_nodes import OnnxDraw
from tests.scheduler.onnx_import.exported.net import Net

Array = NDArray[Any]
Shape = tuple[int, ...]
FLOAT, LONG, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL


class Network(Net):
    """A network grown node by node from one seed.

    Attributes:
        feeds: values of its inputs, by name.
        most: elements of a value; few, so that a network compiles in a moment.
    """

    most = 500

    def __init__(self, seed: int) -> None:
        super().__init__(opset=18, ir_version=10, constants_as_nodes=False)
        self.feeds: dict[str, Array] = {}
        self._d = OnnxDraw(f"network {seed}")
        self._values: list[tuple[str, Shape]] = []
        self.grow()

    def grow(self) -> None:
        """Draw inputs and nodes."""
        for i in range(self._d.integer(1, 2)):
            self.feed(f"in{i}", self._d.array(self._d.shape(1, 4, 4)))
        while len(self.nodes) < 12:
            self._d.one(*STEPS)(self)

    def feed(self, name: str, array: Array) -> None:
        """Add an input that is given these values."""
        self.feeds[name] = array
        self._values.append((self.input(name, array.shape, array.dtype), array.shape))

    def proto(self) -> onnx.ModelProto:
        """Return the model; the last value and some before it are outputs."""
        made = [name for name, _ in self._values if name not in self.feeds]
        shown = [name for name in made[:-1] if self._d.flag(0.25)] + made[-1:]
        return self.model({f"out{i}": name for i, name in enumerate(shown)})

    def drawn(self, shape: Shape) -> str:
        """Return an array stored with the graph."""
        return self.initializer(self._d.array(shape))

    def give(self, name: str, shape: Sequence[int]) -> None:
        """Let later nodes read a value."""
        if prod(shape) <= self.most and len(shape) <= 6:
            self._values.append((name, tuple(shape)))

    def value(self, least_rank: int = 0, most_rank: int = 6) -> tuple[str, Shape]:
        """Return one of the values so far; of the wanted rank by a Reshape, if need be."""
        fits = [v for v in self._values if least_rank <= len(v[1]) <= most_rank]
        if fits:
            return self._d.one(*fits)  # type: ignore[no-any-return] # one of the values
        name, old = self._d.one(*self._values)
        sizes = old if len(old) < least_rank else (prod(old),)
        shape = (*(1,) * (least_rank - len(sizes)), *sizes)
        return self.Reshape(name, list(shape)), shape

    def unary(self) -> None:
        name, shape = self.value()
        op = self._d.one("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "LeakyRelu", "Identity")
        self.give(self.ops(op, 1, name)[0], shape)

    def binary(self) -> None:
        (a, shape), (b, other) = self.value(), self.value()
        try:
            result = np.broadcast_shapes(shape, other)
        except ValueError:
            b, result = self.drawn(self._d.narrower(shape)), shape
        op = self._d.one("Add", "Sub", "Mul", "Max")
        self.give(self.ops(op, 1, *([b, a] if self._d.flag() else [a, b]))[0], result)

    def move(self) -> None:
        name, shape = self.value(1)
        order = self._d.order(len(shape))
        moved = [shape[i] for i in order]
        name = self.Transpose(name, perm=order)
        # The batch comes from the shape at run time, as exporters write it.
        target = self.Concat(self.Slice(self.Shape(name), [0], [1]), [-1], axis=0)
        self.give(name, moved)
        self.give(self.Reshape(name, target), (moved[0], prod(moved[1:])))

    def join(self) -> None:
        name, shape = self.value(1)
        axis = self._d.axis(len(shape))
        parts = [name, name, self.drawn(shape)]
        used = [parts[i] for i in self._d.order(3)[: self._d.integer(1, 3)]]
        result = list(shape)
        result[axis] *= len(used)
        self.give(self.Concat(*used, axis=axis), result)

    def part(self) -> None:
        name, shape = self.value(1)
        axis = self._d.integer(0, len(shape) - 1)
        n = shape[axis]
        start, step = (0, self._d.integer(1, 2)) if self._d.flag() else (-1, -self._d.integer(1, 2))
        end = 99 if step > 0 else -99
        result = [len(range(0, n, abs(step))) if i == axis else s for i, s in enumerate(shape)]
        self.give(self.slice(name, start, end, axis, step), result)

    def pad(self) -> None:
        name, shape = self.value(1)
        before, after = (self._d.spread(len(shape), 0, 1) for _ in range(2))
        result = [sum(sizes) for sizes in zip(shape, before, after, strict=True)]
        mode = self._d.one("constant", "edge")
        self.give(self.Pad(name, before + after, mode=mode), result)

    def reduce(self) -> None:
        name, shape = self.value(1)
        axis, kept = self._d.integer(0, len(shape) - 1), self._d.integer(0, 1)
        op = self._d.one("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp")
        result = [*shape[:axis], *[1] * kept, *shape[axis + 1 :]]
        self.give(self.ops(op, 1, name, [axis], keepdims=kept)[0], result)

    def along(self) -> None:
        name, shape = self.value(1)
        if self._d.flag():
            axis = self._d.axis(len(shape))
            self.give(self.CumSum(name, axis, reverse=self._d.integer(0, 1)), shape)
        else:
            op = self._d.one("Softmax", "LogSoftmax")
            self.give(self.ops(op, 1, name, axis=self._d.axis(len(shape)))[0], shape)

    def product(self) -> None:
        name, shape = self.value(2)
        columns = self._d.integer(1, 4)
        result = (*shape[:-1], columns)
        self.give(self.MatMul(name, self.drawn((shape[-1], columns))), result)

    def convolve(self) -> None:
        name, shape = self.value(3, 4)
        rank, out = len(shape) - 2, self._d.integer(1, 3)
        weight = self.drawn((out, shape[1], *(3,) * rank))
        result = (shape[0], out, *shape[2:])
        self.give(self.Conv(name, weight, pads=[1] * 2 * rank), result)

    def pick(self) -> None:
        name, shape = self.value(1)
        axis = self._d.integer(0, len(shape) - 1)
        index = self.ArgMax(name, axis=axis, keepdims=0)
        rest = (*shape[:axis], *shape[axis + 1 :])
        result = (*shape[:axis], *rest, *shape[axis + 1 :])
        self.give(self.Gather(name, index, axis=axis), result)

    def choose(self) -> None:
        name, shape = self.value()
        test = self.Less(name, self.drawn(()))
        other = self.drawn(self._d.narrower(shape))
        self.give(self.Where(test, name, other), shape)

    def branch(self) -> None:
        name, shape = self.value()
        test = self.Greater(self.ReduceSum(name, keepdims=0), self.drawn(()))
        ways = {f"{way}_branch": self._body(name, shape, []) for way in ("then", "else")}
        self.give(self.If(test, **ways), shape)

    def loop(self) -> None:
        name, shape = self.value()
        count = self._d.integer(1, 3)
        info = helper.make_tensor_value_info
        given = [info("step", LONG, []), info("on", BOOL, []), info("state", FLOAT, shape)]
        body = self._body("state", shape, given)
        self.give(self.Loop(count, "", name, body=body), shape)

    def _body(
        self, name: str, shape: Shape, given: Sequence[onnx.ValueInfoProto]
    ) -> onnx.GraphProto:
        """Return tanh(name * w + name); every body has a weight of the same name."""
        array = self._d.array(self._d.narrower(shape))
        nodes = [
            helper.make_node("Mul", [name, "inner"], ["scaled"]),
            helper.make_node("Add", ["scaled", name], ["moved"]),
            helper.make_node("Tanh", ["moved"], ["result"]),
        ]
        results = [helper.make_tensor_value_info("result", FLOAT, shape)]
        if given:
            nodes.append(helper.make_node("Identity", ["on"], ["still_on"]))
            results.insert(0, helper.make_tensor_value_info("still_on", BOOL, []))
        weights = [numpy_helper.from_array(array, "inner")]
        return helper.make_graph(nodes, "body", list(given), results, weights)


STEPS: tuple[Callable[[Network], None], ...] = (
    *(Network.unary, Network.binary, Network.move, Network.join, Network.part, Network.pad),
    *(Network.reduce, Network.along, Network.product, Network.convolve, Network.pick),
    *(Network.choose, Network.branch, Network.loop),
)
