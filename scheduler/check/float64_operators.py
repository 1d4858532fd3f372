"""Replacements for operators of onnx's evaluator that narrow, or differ from their version.

Each is written anew after the text of the operator, with numpy alone: `DoubleEvaluator` gives them
to the evaluator in place of its own (onnx 1.23). A test compares every operator case in double.

    Erf, Gelu                     rounded to float32 there
    Softmax, LogSoftmax           before version 13 they work on two dimensions; a logarithm of a
                                  softmax that became 0 is infinite there
    Pow                           a square root for an exponent of 0.5: NaN of -inf there
    BatchNormalization            versions 9 to 13 take the statistics of the data there
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx.reference.op_run import OpRun

Array = NDArray[Any]

# Softmax, LogSoftmax: from here on, one axis, the last by default.
ONE_AXIS = 13

_erf = np.vectorize(math.erf, otypes=[np.float64])


class Erf(OpRun):
    """Error function."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (_erf(x) if x.size else x,)


class Gelu(OpRun):
    """x times the normal distribution function of x, or the approximation by tanh."""

    op_domain = ""

    def _run(self, x: Array, approximate: str | None = None) -> tuple[Array]:
        if approximate == "tanh":
            inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
            return (0.5 * x * (1 + np.tanh(inner)),)
        return (0.5 * x * (1 + _erf(x / math.sqrt(2))) if x.size else x,)


def _exponents(op: OpRun, x: Array, axis: int | None) -> tuple[Array, Array]:
    """Return x below its maximum, and its sums of exponentials, along what the version says."""
    given = any(attribute.name == "axis" for attribute in op.onnx_node.attribute)
    if op.run_params["opsets"][""] >= ONE_AXIS:
        axes: tuple[int, ...] = (axis if given and axis is not None else -1,)
    else:
        first = (axis if given and axis is not None else 1) % max(x.ndim, 1)
        axes = tuple(range(first, x.ndim))
    below = x - x.max(axes, keepdims=True, initial=-np.inf)
    return below, np.exp(below).sum(axes, keepdims=True)


class Softmax(OpRun):
    """Exponentials as shares of their sum."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        below, sums = _exponents(self, x, axis)
        return (np.exp(below) / sums,)


class LogSoftmax(OpRun):
    """Its logarithm, without the detour through what may become 0."""

    op_domain = ""

    def _run(self, x: Array, axis: int | None = None) -> tuple[Array]:
        below, sums = _exponents(self, x, axis)
        return (below - np.log(sums),)


class BatchNormalization(OpRun):
    """With the statistics given; training is refused."""

    op_domain = ""

    def _run(self, *inputs: Array, **attributes: Any) -> tuple[Array]:
        if attributes.get("training_mode") or attributes.get("spatial") == 0:
            raise NotImplementedError("BatchNormalization that trains, or is not by channel")
        x, scale, bias, mean, variance = inputs
        scale, bias, mean, variance = (
            part.reshape(-1, *(1,) * (x.ndim - 2)) for part in (scale, bias, mean, variance)
        )
        deviation = np.sqrt(variance + attributes["epsilon"])
        return (scale * (x - mean) / deviation + bias,)


class Pow(OpRun):
    """Powers element by element: of one exponent for all numpy takes roots, of -inf too."""

    op_domain = ""

    def _run(self, x: Array, exponents: Array) -> tuple[Array]:
        shape = np.broadcast_shapes(x.shape, exponents.shape)
        each = np.array(np.broadcast_to(exponents, shape))
        return (np.power(x, each).astype(x.dtype),)


OPERATORS: list[type[OpRun]] = [BatchNormalization, Erf, Gelu, LogSoftmax, Pow, Softmax]
