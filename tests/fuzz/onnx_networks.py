"""Random small networks: a dozen nodes on values of any rank, branches and loops among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from tests.fuzz.onnx_nodes import Draw

Array = NDArray[Any]
Shape = tuple[int, ...]
FLOAT, LONG, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
# Values stay small, so that a network compiles in a moment.
MAX_ELEMENTS = 500


class Network:
    """A network grown node by node from one seed.

    Attributes:
        feeds: values of its inputs, by name.
    """

    def __init__(self, seed: int) -> None:
        self.feeds: dict[str, Array] = {}
        self._d = Draw(2024, seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []
        self._values: list[tuple[str, Shape]] = []
        for i in range(self._d.whole(1, 2)):
            array = self._d.array(self._d.shape(1, 4, 4))
            self.feeds[f"in{i}"] = array
            self._values.append((f"in{i}", array.shape))
        while len(self._nodes) < 12:
            self._d.one(*_STEPS)(self)

    def model(self) -> onnx.ModelProto:
        """Return the model; the last value and some before it are outputs."""
        made = [name for name, _ in self._values if name not in self.feeds]
        shown = [name for name in made[:-1] if self._d.flag(0.25)] + made[-1:]
        infos = [helper.make_tensor_value_info(n, FLOAT, a.shape) for n, a in self.feeds.items()]
        ports = [onnx.ValueInfoProto(name=name) for name in shown]
        graph = helper.make_graph(self._nodes, "net", infos, ports, self._weights)
        opset = [helper.make_opsetid("", 18)]
        return onnx.shape_inference.infer_shapes(
            helper.make_model(graph, opset_imports=opset, ir_version=10)
        )

    def known(self, values: Any, kind: Any = np.int64) -> str:
        """Return the name of a new initializer."""
        name = f"w{len(self._weights)}"
        self._weights.append(numpy_helper.from_array(np.asarray(values, kind), name))
        return name

    def weight(self, shape: Shape) -> str:
        return self.known(self._d.array(shape), np.float32)

    def node(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Add a node; return the name of its only output."""
        name = f"v{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, inputs, [name], **attributes))
        return name

    def give(self, name: str, shape: Sequence[int]) -> None:
        """Let later nodes read a value."""
        if prod(shape) <= MAX_ELEMENTS and len(shape) <= 6:
            self._values.append((name, tuple(shape)))

    def value(self, least_rank: int = 0, most_rank: int = 6) -> tuple[str, Shape]:
        """Return one of the values so far; of the wanted rank by a Reshape, if need be."""
        fits = [v for v in self._values if least_rank <= len(v[1]) <= most_rank]
        if fits:
            return self._d.one(*fits)  # type: ignore[no-any-return] # one of the values
        name, old = self._d.one(*self._values)
        shape = (*(1,) * (least_rank - len(old)), *old) if len(old) < least_rank else (prod(old),)
        return self.node("Reshape", [name, self.known(shape)]), shape

    def unary(self) -> None:
        name, shape = self.value()
        op = self._d.one("Relu", "Sigmoid", "Tanh", "Neg", "Abs", "Erf", "LeakyRelu", "Identity")
        self.give(self.node(op, [name]), shape)

    def binary(self) -> None:
        (a, shape), (b, other) = self.value(), self.value()
        try:
            result = np.broadcast_shapes(shape, other)
        except ValueError:
            b, result = self.weight(self._d.narrower(shape)), shape
        op = self._d.one("Add", "Sub", "Mul", "Max")
        self.give(self.node(op, [b, a] if self._d.flag() else [a, b]), result)

    def move(self) -> None:
        name, shape = self.value(1)
        order = self._d.order(len(shape))
        moved = [shape[i] for i in order]
        name = self.node("Transpose", [name], perm=order)
        # The batch comes from the shape at run time, as exporters write it.
        first = self.node("Slice", [self.node("Shape", [name]), self.known([0]), self.known([1])])
        target = self.node("Concat", [first, self.known([-1])], axis=0)
        self.give(name, moved)
        self.give(self.node("Reshape", [name, target]), (moved[0], prod(moved[1:])))

    def join(self) -> None:
        name, shape = self.value(1)
        axis = self._d.axis(len(shape))
        parts = [name, name, self.weight(shape)]
        used = [parts[i] for i in self._d.order(3)[: self._d.whole(1, 3)]]
        result = list(shape)
        result[axis] *= len(used)
        self.give(self.node("Concat", used, axis=axis), result)

    def part(self) -> None:
        name, shape = self.value(1)
        axis = self._d.whole(0, len(shape) - 1)
        n = shape[axis]
        start, step = (0, self._d.whole(1, 2)) if self._d.flag() else (-1, -self._d.whole(1, 2))
        bounds = [self.known([v]) for v in (start, 99 if step > 0 else -99, axis, step)]
        result = [len(range(0, n, abs(step))) if i == axis else s for i, s in enumerate(shape)]
        self.give(self.node("Slice", [name, *bounds]), result)

    def pad(self) -> None:
        name, shape = self.value(1)
        before, after = (self._d.spread(len(shape), 0, 1) for _ in range(2))
        result = [sum(sizes) for sizes in zip(shape, before, after, strict=True)]
        mode = self._d.one("constant", "edge")
        self.give(self.node("Pad", [name, self.known(before + after)], mode=mode), result)

    def reduce(self) -> None:
        name, shape = self.value(1)
        axis, kept = self._d.whole(0, len(shape) - 1), self._d.whole(0, 1)
        op = self._d.one("ReduceSum", "ReduceMean", "ReduceMax", "ReduceL2", "ReduceLogSumExp")
        result = [*shape[:axis], *[1] * kept, *shape[axis + 1 :]]
        self.give(self.node(op, [name, self.known([axis])], keepdims=kept), result)

    def along(self) -> None:
        name, shape = self.value(1)
        if self._d.flag():
            axis = self.known(self._d.axis(len(shape)))
            self.give(self.node("CumSum", [name, axis], reverse=self._d.whole(0, 1)), shape)
        else:
            op = self._d.one("Softmax", "LogSoftmax")
            self.give(self.node(op, [name], axis=self._d.axis(len(shape))), shape)

    def product(self) -> None:
        name, shape = self.value(2)
        columns = self._d.whole(1, 4)
        result = (*shape[:-1], columns)
        self.give(self.node("MatMul", [name, self.weight((shape[-1], columns))]), result)

    def convolve(self) -> None:
        name, shape = self.value(3, 4)
        rank, out = len(shape) - 2, self._d.whole(1, 3)
        weight = self.weight((out, shape[1], *(3,) * rank))
        result = (shape[0], out, *shape[2:])
        self.give(self.node("Conv", [name, weight], pads=[1] * 2 * rank), result)

    def pick(self) -> None:
        name, shape = self.value(1)
        axis = self._d.whole(0, len(shape) - 1)
        index = self.node("ArgMax", [name], axis=axis, keepdims=0)
        rest = (*shape[:axis], *shape[axis + 1 :])
        result = (*shape[:axis], *rest, *shape[axis + 1 :])
        self.give(self.node("Gather", [name, index], axis=axis), result)

    def choose(self) -> None:
        name, shape = self.value()
        test = self.node("Less", [name, self.weight(())])
        other = self.weight(self._d.narrower(shape))
        self.give(self.node("Where", [test, name, other]), shape)

    def branch(self) -> None:
        name, shape = self.value()
        total = self.node("ReduceSum", [name], keepdims=0)
        test = self.node("Greater", [total, self.weight(())])
        ways = {f"{way}_branch": self._body(name, shape, []) for way in ("then", "else")}
        self.give(self.node("If", [test], **ways), shape)

    def loop(self) -> None:
        name, shape = self.value()
        count = self._d.whole(1, 3)
        info = helper.make_tensor_value_info
        given = [info("step", LONG, []), info("on", BOOL, []), info("state", FLOAT, shape)]
        body = self._body("state", shape, given)
        self.give(self.node("Loop", [self.known(count), "", name], body=body), shape)

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


_STEPS: tuple[Callable[[Network], None], ...] = (
    *(Network.unary, Network.binary, Network.move, Network.join, Network.part, Network.pad),
    *(Network.reduce, Network.along, Network.product, Network.convolve, Network.pick),
    *(Network.choose, Network.branch, Network.loop),
)
