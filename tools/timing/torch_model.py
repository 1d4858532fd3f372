"""Runs an ONNX model in torch, operator by operator, for comparison in benchmarks.

torch itself cannot read ONNX. Each operator is one call of a torch function, so that the times are
those of torch's kernels. Only the operators of the example models are supported.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import torch
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from torch.nn import functional as f

from tools.errors import ToolError

Values = Mapping[str, Any]


class OperatorError(ToolError):
    """A model has an unsupported operator."""


@dataclass(frozen=True, slots=True)
class _Call:
    """A call of an operator: its node and its input values."""

    node: onnx.NodeProto
    given: Sequence[Any]  # tensor of each input; None if it is omitted
    known: Sequence[NDArray[Any] | None]  # value of each constant input; None for others
    attributes: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an attribute or the default."""
        return self.attributes.get(name, default)

    def ints(self, number: int, name: str = "") -> list[int] | None:
        """Return constant input `number` as integers, or attribute `name` of older versions."""
        if number < len(self.known) and self.known[number] is not None:
            return [int(value) for value in np.ravel(self.known[number])]  # type: ignore[arg-type]
        found = self.get(name)
        return None if found is None else list(found)


class TorchModel:
    """An ONNX model with its weights on a torch device.

    Raises:
        OperatorError: the model has an unsupported operator.
    """

    def __init__(self, path: Path, device: str) -> None:
        graph = onnx.load(str(path)).graph
        self._nodes, self.outputs = list(graph.node), [o.name for o in graph.output]
        unknown = {n.op_type for n in self._nodes} - OPERATORS.keys() - {"Constant"}
        if unknown:
            raise OperatorError(f"{path.name}: {', '.join(sorted(unknown))}: not supported")
        self._known = {t.name: np.array(numpy_helper.to_array(t)) for t in graph.initializer}
        for node in self._nodes:
            if node.op_type == "Constant":
                (value,) = node.attribute
                self._known[node.output[0]] = np.array(numpy_helper.to_array(value.t))
        self._held = {n: torch.from_numpy(v).to(device) for n, v in self._known.items()}
        self._attributes = [
            {a.name: helper.get_attribute_value(a) for a in node.attribute} for node in self._nodes
        ]

    def __call__(self, inputs: Values) -> dict[str, Any]:
        """Run the model and return the outputs by name. All tensors are on the model's device."""
        values = {**self._held, **inputs}
        for node, attributes in zip(self._nodes, self._attributes, strict=True):
            if node.op_type == "Constant":
                continue
            given = [values[name] if name else None for name in node.input]
            known = [self._known.get(name) for name in node.input]
            found = OPERATORS[node.op_type](_Call(node, given, known, attributes))
            several = found if isinstance(found, tuple | list) else (found,)
            values.update(zip(node.output, several, strict=True))
        return {name: values[name] for name in self.outputs}


def _padded(call: _Call, fill: float) -> tuple[Any, list[int]]:
    """Return the input of a windowed operator, and the symmetric padding for torch's function.

    Asymmetric padding is applied here with `fill`, and the returned padding is 0.
    """
    x, pads = call.given[0], call.get("pads") or [0, 0, 0, 0]
    begin, end = pads[: len(pads) // 2], pads[len(pads) // 2 :]
    if begin == end:
        return x, list(begin)
    both = [p for pair in zip(reversed(begin), reversed(end), strict=True) for p in pair]
    return f.pad(x, both, value=fill), [0] * len(begin)


def _conv(call: _Call) -> Any:
    x, padding = _padded(call, 0.0)
    weight, bias = call.given[1], call.given[2] if len(call.given) > 2 else None
    stride, dilation = call.get("strides", 1), call.get("dilations", 1)
    return f.conv2d(x, weight, bias, stride, padding, dilation, call.get("group", 1))


def _conv_transpose(call: _Call) -> Any:
    x, padding = _padded(call, 0.0)
    weight, bias = call.given[1], call.given[2] if len(call.given) > 2 else None
    options = {"dilation": call.get("dilations", 1), "groups": call.get("group", 1)}
    return f.conv_transpose2d(x, weight, bias, call.get("strides", 1), padding, **options)


def _max_pool(call: _Call) -> Any:
    x, padding = _padded(call, float("-inf"))
    sizes = call.get("kernel_shape"), call.get("strides", 1)
    return f.max_pool2d(x, *sizes, padding, ceil_mode=bool(call.get("ceil_mode", 0)))


def _average_pool(call: _Call) -> Any:
    x, padding = _padded(call, 0.0)
    counted = bool(call.get("count_include_pad", 0))
    sizes = call.get("kernel_shape"), call.get("strides", 1)
    return f.avg_pool2d(x, *sizes, padding, count_include_pad=counted)


def _gemm(call: _Call) -> Any:
    a, b = call.given[:2]
    a, b = (a.T if call.get("transA") else a), (b.T if call.get("transB") else b)
    if len(call.given) < 3:
        return call.get("alpha", 1.0) * (a @ b)
    return torch.addmm(
        call.given[2], a, b, beta=call.get("beta", 1.0), alpha=call.get("alpha", 1.0)
    )


def _batch_norm(call: _Call) -> Any:
    x, scale, bias, mean, variance = call.given
    return f.batch_norm(x, mean, variance, scale, bias, eps=call.get("epsilon", 1e-5))


def _layer_norm(call: _Call) -> Any:
    x, scale = call.given[:2]
    bias = call.given[2] if len(call.given) > 2 else None
    shape = x.shape[call.get("axis", -1) :]
    return f.layer_norm(x, shape, scale, bias, call.get("epsilon", 1e-5))


def _reshape(call: _Call) -> Any:
    x, shape = call.given[0], call.ints(1) or []
    return x.reshape([x.shape[i] if n == 0 else n for i, n in enumerate(shape)])


def _slice(call: _Call) -> Any:
    x, starts, ends = call.given[0], call.ints(1) or [], call.ints(2) or []
    axes, steps = call.ints(3) or range(len(starts)), call.ints(4) or [1] * len(starts)
    at = [slice(None)] * x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        at[axis] = slice(start, min(end, 1 << 40), step)
    return x[tuple(at)]


def _split(call: _Call) -> Any:
    x, axis = call.given[0], call.get("axis", 0)
    parts = len(call.node.output)
    return torch.split(x, call.ints(1, "split") or x.shape[axis] // parts, axis)


def _gather(call: _Call) -> Any:
    x, index = call.given
    axis = call.get("axis", 0) % x.ndim
    index = torch.where(index < 0, index + x.shape[axis], index)
    found = torch.index_select(x, axis, index.reshape(-1))
    return found.reshape(*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])


def _reduced(call: _Call, name: str) -> Any:
    axes = call.ints(1, "axes") or list(range(call.given[0].ndim))
    return getattr(call.given[0], name)(axes, keepdim=bool(call.get("keepdims", 1)))


def _squeeze(call: _Call) -> Any:
    axes = call.ints(1, "axes")
    return call.given[0].squeeze() if axes is None else call.given[0].squeeze(axes)


def _unsqueeze(call: _Call) -> Any:
    x, axes = call.given[0], call.ints(1, "axes") or []
    for axis in sorted(a % (x.ndim + len(axes)) for a in axes):
        x = x.unsqueeze(axis)
    return x


def _cast(call: _Call) -> Any:
    kind = helper.tensor_dtype_to_np_dtype(call.get("to"))
    return call.given[0].to(torch.from_numpy(np.zeros(1, kind)).dtype)


def _hard_sigmoid(call: _Call) -> Any:
    return (call.given[0] * call.get("alpha", 0.2) + call.get("beta", 0.5)).clamp(0.0, 1.0)


OPERATORS: Final[Mapping[str, Callable[[_Call], Any]]] = {
    "Add": lambda c: c.given[0] + c.given[1],
    "AveragePool": _average_pool,
    "BatchNormalization": _batch_norm,
    "Cast": _cast,
    "Concat": lambda c: torch.cat(list(c.given), c.get("axis")),
    "Conv": _conv,
    "ConvTranspose": _conv_transpose,
    "Div": lambda c: c.given[0] / c.given[1],
    "Elu": lambda c: f.elu(c.given[0], c.get("alpha", 1.0)),
    "Erf": lambda c: torch.erf(c.given[0]),
    "Flatten": lambda c: c.given[0].flatten(c.get("axis", 1)),
    "Gather": _gather,
    "Gemm": _gemm,
    "GlobalAveragePool": lambda c: c.given[0].mean((2, 3), keepdim=True),
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": lambda c: f.hardswish(c.given[0]),
    "LayerNormalization": _layer_norm,
    "MatMul": lambda c: c.given[0] @ c.given[1],
    "MaxPool": _max_pool,
    "Mul": lambda c: c.given[0] * c.given[1],
    "PRelu": lambda c: torch.where(c.given[0] < 0, c.given[0] * c.given[1], c.given[0]),
    "ReduceMax": lambda c: _reduced(c, "amax"),
    "ReduceMean": lambda c: _reduced(c, "mean"),
    "ReduceSum": lambda c: _reduced(c, "sum"),
    "Relu": lambda c: f.relu(c.given[0]),
    "Reshape": _reshape,
    "Sigmoid": lambda c: torch.sigmoid(c.given[0]),
    "Slice": _slice,
    "Softmax": lambda c: f.softmax(c.given[0], c.get("axis", -1)),
    "Split": _split,
    "Squeeze": _squeeze,
    "Sub": lambda c: c.given[0] - c.given[1],
    "Tanh": lambda c: torch.tanh(c.given[0]),
    "Transpose": lambda c: c.given[0].permute(c.get("perm")),
    "Unsqueeze": _unsqueeze,
}
