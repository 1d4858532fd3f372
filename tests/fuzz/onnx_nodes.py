"""Random legal nodes: attributes, shapes, element types and opsets, for comparison with others.

    case_of("Slice", 7)   ->   one node with its inputs, the same for the same seed

What onnxruntime itself gets wrong is not drawn: reductions of empty axes, SAME padding of strides
beyond the kernel.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import helper

from tests.fuzz.draw import Draw
from tests.scheduler.onnx_import.onnx_cases.case import Case, Const

Array = NDArray[Any]
FLOAT, DOUBLE, HALF = np.float32, np.float64, np.float16
INT, LONG, BYTE, SMALL = np.int32, np.int64, np.uint8, np.int8


class OnnxDraw(Draw):
    """Choices of nodes and of what they read."""

    def one(self, *options: Any) -> Any:
        return self.pick(options)

    def shape(self, low: int = 0, high: int = 4, most: int = 5) -> tuple[int, ...]:
        return tuple(self.integer(1, most) for _ in range(self.integer(low, high)))

    def axis(self, rank: int) -> int:
        return self.integer(-rank, rank - 1)

    def array(self, shape: Sequence[int], kind: Any = FLOAT) -> Array:
        dtype = np.dtype(kind)
        if dtype.kind == "f":
            return np.asarray(self._rng().standard_normal(shape) * 2).astype(dtype)
        low, high = {"b": (0, 1), "u": (0, 9)}.get(dtype.kind, (-9, 9))
        return self.ints(shape, low, high, dtype)

    def ints(self, shape: Sequence[int], low: int, high: int, kind: Any = LONG) -> Array:
        return np.asarray(self._rng().integers(low, high + 1, shape)).astype(kind)

    def _rng(self) -> np.random.Generator:
        return np.random.default_rng(self.integer(0, 2**32 - 1))

    def narrower(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Return a shape that broadcasts to another."""
        kept = shape[self.integer(0, len(shape)) :]
        return tuple(1 if self.flag(0.3) else n for n in kept)

    def maybe_known(self, array: Array) -> Array | Const:
        return Const(array) if self.flag(0.25) else array

    def spread(self, rank: int, low: int, high: int) -> list[int]:
        return [self.integer(low, high) for _ in range(rank)]


Generator = Callable[[OnnxDraw, str], Case]
GENERATORS: dict[str, Generator] = {}


def _draws(*ops: str) -> Callable[[Generator], Generator]:
    def register(made: Generator) -> Generator:
        GENERATORS.update(dict.fromkeys(ops, made))
        return made

    return register


def case_of(op: str, seed: int) -> Case:
    return GENERATORS[op](OnnxDraw(f"{op} {seed}"), op)


def _known(values: Sequence[int] | int, kind: Any = LONG) -> Const:
    return Const(np.array(values, kind))


@_draws("Add", "Sub", "Mul", "Max", "Min", "Less", "Greater", "Equal")
def _binary(d: OnnxDraw, op: str) -> Case:
    kind, shape = d.one(FLOAT, DOUBLE, INT, LONG), d.shape()
    pair = [d.array(shape, kind), d.array(d.narrower(shape), kind)]
    a, b = (d.maybe_known(pair[i]) for i in d.order(2))
    return Case(op, (a, b), opset=d.one(13, 17))


@_draws("Div", "Mod")
def _division(d: OnnxDraw, op: str) -> Case:
    kind, shape = d.one(FLOAT, INT, LONG, SMALL, BYTE), d.shape()
    divisor = d.array(d.narrower(shape), kind)
    divisor = np.where(divisor == 0, 3, divisor).astype(kind)
    whole = {"fmod": 1 if kind is FLOAT else d.integer(0, 1)}
    return Case(op, (d.array(shape, kind), divisor), whole if op == "Mod" else {}, 14)


@_draws("Where")
def _where(d: OnnxDraw, op: str) -> Case:
    kind, shape = d.one(FLOAT, LONG, BYTE), d.shape()
    parts = [d.array(d.narrower(shape), t) for t in (bool, kind, kind)]
    return Case(op, tuple(d.maybe_known(p) for p in parts), opset=16)


@_draws("Clip")
def _clip(d: OnnxDraw, op: str) -> Case:
    kind = d.one(FLOAT, HALF, SMALL, INT, LONG)
    low, high = np.sort(d.array((2,), kind))
    bounds = [d.maybe_known(np.array(v, kind)) if d.flag(0.7) else None for v in (low, high)]
    return Case(op, (d.array(d.shape(), kind), *bounds), opset=13)


@_draws("Cast")
def _cast(d: OnnxDraw, op: str) -> Case:
    kinds = (bool, FLOAT, DOUBLE, HALF, INT, LONG, BYTE, SMALL)
    source, target = d.one(*kinds), d.one(*kinds)
    values = d.array(d.shape(), source)
    values = np.abs(values) if target is BYTE and source is not bool else values
    return Case(op, (values,), {"to": int(helper.np_dtype_to_tensor_dtype(np.dtype(target)))})


@_draws("ReduceSum", "ReduceMean", "ReduceMax", "ReduceLogSumExp", "ReduceL2", "ReduceSumSquare")
def _reduce(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(0, 5), d.one(FLOAT, DOUBLE))
    given = [i - d.one(0, x.ndim) for i in d.order(x.ndim)[: d.integer(0, x.ndim)]]
    attributes: dict[str, Any] = {"keepdims": d.integer(0, 1)}
    if d.flag():
        attributes["noop_with_empty_axes"] = d.integer(0, 1)
    return Case(op, (x, _known(given)) if given or d.flag() else (x,), attributes, 18)


@_draws("ArgMax", "ArgMin")
def _extreme(d: OnnxDraw, op: str) -> Case:
    x = np.round(d.array(d.shape(1, 4)))  # has ties
    flags = {name: d.integer(0, 1) for name in ("keepdims", "select_last_index")}
    return Case(op, (x,), {"axis": d.axis(x.ndim), **flags}, 13)


@_draws("Softmax", "LogSoftmax", "Hardmax", "Flatten")
def _by_axis(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 4))
    opset = d.one(11, 13)
    # Without an axis the default counts, which changed; the old one needs two axes.
    named = d.flag(0.7) or x.ndim < 2
    return Case(op, (x,), {"axis": d.axis(x.ndim)} if named else {}, opset)


@_draws("CumSum")
def _cumulative(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 3, d.one(5, 70)), d.one(FLOAT, LONG))
    flags = {name: d.integer(0, 1) for name in ("exclusive", "reverse")}
    return Case(op, (x, _known(d.axis(x.ndim))), flags, 14)


@_draws("TopK")
def _topk(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 3, d.one(6, 30)), d.one(FLOAT, LONG))
    axis = d.axis(x.ndim)
    flags = {"axis": axis, "largest": d.integer(0, 1)}
    return Case(op, (x, _known([d.integer(1, x.shape[axis])])), flags, 11, outputs=2)


@_draws("Slice")
def _slice(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 4, 6), d.one(FLOAT, LONG, BYTE))
    axes = d.order(x.ndim)[: d.integer(1, x.ndim)]
    starts, ends = ([d.integer(-8, 8) * d.one(1, 1, 50) for _ in axes] for _ in range(2))
    steps = [d.one(1, 1, 2, 3, -1, -2, 90, -90) for _ in axes]
    named = [a - d.one(0, x.ndim) for a in axes]
    kind = d.one(INT, LONG)
    given = (starts, ends, named, steps) if d.flag(0.8) else (starts, ends, named)
    return Case(op, (x, *(_known(v, kind) for v in given)), opset=13)


@_draws("Pad")
def _pad(d: OnnxDraw, op: str) -> Case:
    mode = d.one("constant", "reflect", "edge", "wrap")
    x = d.array(d.shape(1, 4), d.one(FLOAT, LONG))
    axes = d.order(x.ndim)[: d.integer(1, x.ndim)]
    widths = [d.integer(0, min(3, x.shape[a] - (mode == "reflect"))) for a in axes * 2]
    if mode == "constant" and d.flag(0.3):
        widths[0] = -d.integer(0, x.shape[axes[0]] - 1)
    fill = d.maybe_known(d.array((), x.dtype)) if d.flag() else None
    return Case(op, (x, _known(widths), fill, _known(axes)), {"mode": mode}, 19)


@_draws("Concat")
def _concat(d: OnnxDraw, op: str) -> Case:
    kind, shape = d.one(FLOAT, LONG, bool), d.shape(1, 4, 4)
    axis = d.axis(len(shape))
    a = axis % len(shape)
    shapes = [(*shape[:a], d.integer(0, 4), *shape[a + 1 :]) for _ in range(d.integer(1, 4))]
    return Case(op, tuple(d.maybe_known(d.array(s, kind)) for s in shapes), {"axis": axis}, 13)


@_draws("Split")
def _split(d: OnnxDraw, op: str) -> Case:
    shape, count = list(d.shape(1, 4)), d.integer(1, 4)
    axis, opset = d.axis(len(shape)), d.one(11, 13, 18)
    sizes = d.spread(count, 0, 3)
    shape[axis] = sum(sizes)
    x = d.array(shape)
    if opset < 13:
        return Case(op, (x,), {"axis": axis, "split": sizes}, opset, count)
    return Case(op, (x, _known(sizes)), {"axis": axis}, opset, count)


@_draws("Gather")
def _gather(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 4), d.one(FLOAT, LONG, BYTE))
    axis = d.axis(x.ndim)
    n = x.shape[axis]
    index = d.ints(d.shape(0, 3), -n, n - 1, d.one(INT, LONG))
    return Case(op, (x, d.maybe_known(index)), {"axis": axis}, 13)


@_draws("GatherElements", "ScatterElements")
def _elements(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 4), d.one(FLOAT, LONG))
    axis = d.axis(x.ndim)
    n, at = x.shape[axis], axis % x.ndim
    shape = tuple(d.integer(1, 6) if i == at else d.integer(1, s) for i, s in enumerate(x.shape))
    index = d.maybe_known(d.ints(shape, -n, n - 1, d.one(INT, LONG)))
    if op == "GatherElements":
        return Case(op, (x, index), {"axis": axis}, 13)
    how = {"axis": axis, "reduction": d.one("add", "mul", "max", "min")}
    return Case(op, (x, index, d.maybe_known(d.array(shape, x.dtype))), how, 18)


@_draws("GatherND", "ScatterND")
def _tuples(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 4, 4), d.one(FLOAT, LONG))
    depth, shape = d.integer(1, x.ndim), d.shape(0, 2, 3)
    index = np.stack([d.ints(shape, -n, n - 1) for n in x.shape[:depth]], -1)
    if op == "GatherND":
        return Case(op, (x, d.maybe_known(index)), opset=13)
    updates = d.array((*shape, *x.shape[depth:]), x.dtype)
    how = {"reduction": d.one("add", "mul", "max", "min")}
    return Case(op, (x, d.maybe_known(index), d.maybe_known(updates)), how, 18)


@_draws("OneHot")
def _one_hot(d: OnnxDraw, op: str) -> Case:
    depth, index = d.integer(1, 6), d.ints(d.shape(1, 3, 4), -8, 8)
    pair = d.maybe_known(d.array((2,), d.one(FLOAT, LONG)))
    return Case(op, (index, _known(depth), pair), {"axis": d.axis(index.ndim + 1)}, 11)


@_draws("Trilu")
def _trilu(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(2, 4), d.one(FLOAT, LONG))
    return Case(op, (x, d.maybe_known(d.ints((), -7, 7))), {"upper": d.integer(0, 1)})


@_draws("Conv")
def _conv(d: OnnxDraw, op: str) -> Case:
    rank, groups = d.one(1, 2, 2, 3), d.one(1, 1, 2)
    kernel, strides, dilations = (d.spread(rank, 1, m) for m in (3, 3, 2))
    spatial = [(k - 1) * s + d.integer(1, 5) for k, s in zip(kernel, dilations, strict=True)]
    own, other = d.integer(1, 3), d.integer(1, 3)
    attributes = {"strides": strides, "dilations": dilations, "group": groups}
    attributes["pads"] = d.spread(2 * rank, 0, 2)
    x = d.array((d.integer(1, 2), groups * own, *spatial))
    bias = (d.maybe_known(d.array((groups * other,))),) if d.flag() else ()
    weight = d.maybe_known(d.array((groups * other, own, *kernel)))
    return Case(op, (x, weight, *bias), attributes, 11)


@_draws("ConvTranspose")
def _conv_transpose(d: OnnxDraw, op: str) -> Case:
    rank, groups, own, other = d.one(1, 2, 2, 3), d.one(1, 1, 2), d.integer(1, 3), d.integer(1, 3)
    sizes = [d.spread(rank, 1, most) for most in (5, 4, 3, 5)]
    aligned = d.flag(0.4)  # all phases have as many taps
    if aligned:
        sizes[0], sizes[2] = [s * d.integer(1, 2) for s in sizes[1]], [1] * rank
    kernel, strides, dilations, spatial = sizes
    # One element of the output stays.
    room = [(n - 1) * s + (k - 1) * far for k, s, far, n in zip(*sizes, strict=True)]
    room = [0] * rank if aligned and d.flag() else room
    before = [d.integer(0, min(most, 6)) for most in room]
    after = [d.integer(0, min(most - cut, 6)) for most, cut in zip(room, before, strict=True)]
    attributes = {"strides": strides, "dilations": dilations, "group": groups}
    attributes["pads"] = before + after
    attributes["output_padding"] = [0 if aligned else d.integer(0, s - 1) for s in strides]
    x = d.array((d.integer(1, 2), groups * own, *spatial))
    bias = (d.maybe_known(d.array((groups * other,))),) if d.flag() else ()
    weight = d.maybe_known(d.array((groups * own, other, *kernel)))
    return Case(op, (x, weight, *bias), attributes, 11)


@_draws("MaxPool", "AveragePool")
def _pool(d: OnnxDraw, op: str) -> Case:
    rank = d.one(1, 2, 2, 3)
    kernel, strides = d.spread(rank, 1, 3), d.spread(rank, 1, 3)
    attributes: dict[str, Any] = {"kernel_shape": kernel, "strides": strides}
    attributes["ceil_mode"] = d.integer(0, 1)
    if all(s <= k for s, k in zip(strides, kernel, strict=True)) and d.flag(0.4):
        attributes["auto_pad"] = d.one("SAME_UPPER", "SAME_LOWER")
    else:
        attributes["pads"] = [d.integer(0, k - 1) for k in kernel * 2]
    outputs = 1
    if op == "AveragePool":
        attributes["count_include_pad"] = d.integer(0, 1)
    else:
        outputs = d.integer(1, 2)
    x = d.array((d.integer(1, 2), d.integer(1, 3), *(k + d.integer(0, 6) for k in kernel)))
    return Case(op, (x,), attributes, 19, outputs)


@_draws("Resize")
def _resize(d: OnnxDraw, op: str) -> Case:
    rank, mode = d.one(1, 2, 2, 3), d.one("nearest", "linear")
    spatial = d.shape(rank, rank, 6)
    how = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
    attributes = {"mode": mode, "coordinate_transformation_mode": d.one(*how)}
    if mode == "nearest":
        attributes["nearest_mode"] = d.one("round_prefer_floor", "floor", "ceil")
    elif d.flag(0.3):
        attributes["antialias"] = 1
    x = d.array((1, d.integer(1, 2), *spatial))
    if d.flag():
        sizes = _known([*x.shape[:2], *d.spread(rank, 1, 9)])
        return Case(op, (x, None, None, sizes), attributes, 18)
    scales = [max(d.one(0.5, 1.0, 1.5, 2.0, 0.7, 3.0), 1.01 / n) for n in spatial]
    return Case(op, (x, None, Const(np.array([1, 1, *scales], FLOAT))), attributes, 18)


@_draws("GridSample")
def _grid_sample(d: OnnxDraw, op: str) -> Case:
    x = d.array((2, d.integer(1, 2), *d.shape(2, 2)))
    grid = (d.array((2, *d.shape(2, 2), 2)) * 0.7).astype(FLOAT)
    attributes = {
        "mode": d.one("bilinear", "nearest", "bicubic"),
        "padding_mode": d.one("zeros", "border", "reflection"),
        "align_corners": d.integer(0, 1),
    }
    return Case(op, (x, d.maybe_known(grid)), attributes, 16)


@_draws("MatMul")
def _matmul(d: OnnxDraw, op: str) -> Case:
    batch, inner, kind = d.shape(0, 2, 3), d.integer(1, 5), d.one(FLOAT, DOUBLE, INT)
    a = (inner,) if d.flag(0.2) else (*d.narrower(batch), d.integer(1, 5), inner)
    b = (inner,) if d.flag(0.2) else (*d.narrower(batch), inner, d.integer(1, 5))
    return Case(op, tuple(d.maybe_known(d.array(s, kind)) for s in (a, b)), opset=13)


@_draws("Einsum")
def _einsum(d: OnnxDraw, op: str) -> Case:
    sizes = {letter: d.integer(1, 4) for letter in "abcd"}
    terms = [
        "".join("abcd"[i] for i in d.order(4)[: d.integer(1, 3)]) for _ in range(d.integer(1, 3))
    ]
    used = sorted(set("".join(terms)))
    result = "".join(used[i] for i in d.order(len(used)) if d.flag(0.6))
    arrays = [d.array([sizes[letter] for letter in term]) for term in terms]
    equation = f"{','.join(terms)}->{result}"
    return Case(op, tuple(d.maybe_known(a) for a in arrays), {"equation": equation}, 12)


@_draws("RNN", "GRU", "LSTM")
def _recurrent(d: OnnxDraw, op: str) -> Case:
    steps, batch, inputs, hidden = (d.integer(1, 4) for _ in range(4))
    way = d.one("forward", "reverse", "bidirectional")
    ways, gates = 1 + (way == "bidirectional"), {"RNN": 1, "GRU": 3, "LSTM": 4}[op]
    attributes: dict[str, Any] = {"hidden_size": hidden, "direction": way}
    if op == "GRU":
        attributes["linear_before_reset"] = d.integer(0, 1)
    optional = [
        d.array((ways, 2 * gates * hidden)),
        d.ints((batch,), 1, steps, INT),
        *[d.array((ways, batch, hidden))] * (2 if op == "LSTM" else 1),
    ]
    x = d.array((steps, batch, inputs))
    weights = [d.array((ways, gates * hidden, n)) for n in (inputs, hidden)]
    left = [d.maybe_known(a) if d.flag() else None for a in optional]
    outputs = 3 if op == "LSTM" else 2
    return Case(op, (x, *(d.maybe_known(w) for w in weights), *left), attributes, 14, outputs)


@_draws("LayerNormalization")
def _layer_norm(d: OnnxDraw, op: str) -> Case:
    x = d.array(d.shape(1, 4))
    axis = d.axis(x.ndim)
    own = [d.maybe_known(d.array(x.shape[axis:])) for _ in range(d.integer(1, 2))]
    return Case(op, (x, *own), {"axis": axis, "epsilon": 0.1})


@_draws("QuantizeLinear", "DequantizeLinear")
def _quantize(d: OnnxDraw, op: str) -> Case:
    kind = d.one(BYTE, SMALL)
    x = d.array(d.shape(1, 4), FLOAT if op == "QuantizeLinear" else kind)
    axis, attributes = d.axis(x.ndim), {}
    shape = d.one((), (x.shape[axis],))
    attributes["axis"] = axis
    if d.flag(0.3):
        block, at = d.integer(1, 3), axis % x.ndim
        attributes["block_size"] = block
        shape = tuple(-(-n // block) if i == at else n for i, n in enumerate(x.shape))
    scale = np.abs(d.array(shape)) + FLOAT(0.05)
    zero = [d.maybe_known(d.array(shape, kind))] if d.flag(0.7) or kind is SMALL else []
    return Case(op, (x, d.maybe_known(scale), *zero), attributes, 21)
