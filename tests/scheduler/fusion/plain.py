"""Arrays that have the methods of Tensor, each written with numpy: rows run on both.

`instead_of_tensors(f, ...)` calls a function in whose module, and in that of random weights,
`Tensor` means `Plain`: `Tensor.cat` is numpy's then, and a weight an array of float64.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from scheduler.ir import dtype as dt
from tests.scheduler.support import values

Array = NDArray[Any]


def _sum(x: Array, **how: Any) -> Array:
    return np.asarray(np.sum(x, dtype=np.int32 if x.dtype in (bool, np.int32) else None, **how))


def _softmax(x: Array, axis: int = -1) -> Array:
    e = np.exp(x - x.max(axis, keepdims=True))
    return np.asarray(e / e.sum(axis, keepdims=True))


def _layernorm(x: Array, axis: Any = -1, eps: float = 1e-5) -> Array:
    variance = x.var(axis, keepdims=True)
    return np.asarray((x - x.mean(axis, keepdims=True)) / np.sqrt(variance + eps))


def _batchnorm(x: Array, *statistics: Array) -> Array:
    s, b, m, v = (a.reshape(1, -1, 1, 1) for a in statistics)
    return np.asarray((x - m) / np.sqrt(v + 1e-5) * s + b)


_erf = np.vectorize(math.erf)


def _gelu(x: Array, approximate: str = "none") -> Array:
    if approximate == "tanh":
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return np.asarray(x / 2 * (1 + np.tanh(inner)))
    return np.asarray(x / 2 * (1 + _erf(x / math.sqrt(2))))


def _window(x: Array, axis: int, size: int, stride: int = 1) -> Array:
    """Replace an axis by (position, offset)."""
    count = (x.shape[axis] - size) // stride + 1
    return np.take(x, np.arange(count)[:, None] * stride + np.arange(size), axis)


def _windows(x: Array, kernel: Any, stride: Any, padding: int) -> Array:
    """Return (N, C, oh, ow, kh, kw) of (N, C, H, W), which is padded with zeros."""
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    seen = np.lib.stride_tricks.sliding_window_view(padded, kernel, axis=(2, 3))
    down, right = np.broadcast_to(stride, 2)
    return seen[:, :, ::down, ::right]


def _conv2d(
    x: Array, w: Array, b: Any = 0.0, stride: int = 1, padding: int = 0, *, groups: int = 1
) -> Array:
    parts = []
    for mine, weight in zip(np.split(x, groups, 1), np.split(w, groups), strict=True):
        seen = _windows(mine, w.shape[2:], stride, padding)
        parts.append(np.tensordot(seen, weight, ((1, 4, 5), (1, 2, 3))).transpose(0, 3, 1, 2))
    return np.asarray(np.concatenate(parts, 1) + np.reshape(b, (-1, 1, 1)))


def _conv_transpose2d(y: Array, w: Array) -> Array:
    (batch, _, rows, columns), (_, channels, *kernel) = y.shape, w.shape
    x = np.zeros((batch, channels, rows + kernel[0] - 1, columns + kernel[1] - 1))
    for i, j in np.ndindex(*kernel):
        x[:, :, i : i + rows, j : j + columns] += np.einsum("nohw,oc->nchw", y, w[:, :, i, j])
    return x


def _pool(x: Array, function: Any, kernel: Any, stride: Any = None, padding: int = 0) -> Array:
    size = tuple(np.broadcast_to(kernel, 2))
    stride = size if stride is None else stride
    return np.asarray(function(_windows(x, size, stride, padding), axis=(4, 5)))


def _method(function: Callable[..., Any]) -> Any:
    """Return a method that applies a function to the array."""
    return lambda self, *args, **given: Plain(function(np.asarray(self), *args, **given))


def _made(function: Callable[..., Any]) -> Any:
    """Return a static method that makes an array."""
    return staticmethod(lambda *args, **given: Plain(function(*args, **given)))


def _reduction(function: Callable[..., Any]) -> Any:
    """Return a method that reduces axes, and keeps them where it is asked to by `keepdim`."""

    def reduce(self: Plain, axis: Any = None, *, keepdim: bool = False, **given: Any) -> Plain:
        return Plain(function(np.asarray(self), axis=axis, keepdims=keepdim, **given))

    return reduce


def _moments(function: Any) -> Any:
    return lambda v, correction=1, **how: function(v, ddof=correction, **how)


class Plain(np.ndarray[Any, Any]):
    """An array of numpy; indices and arithmetic are numpy's own."""

    def __new__(cls, value: Any) -> Plain:
        return np.asarray(value).view(cls)

    sum, mean, max, min = (_reduction(f) for f in (_sum, np.mean, np.max, np.min))
    argmax, argmin = _reduction(np.argmax), _reduction(np.argmin)
    std, var = _reduction(_moments(np.std)), _reduction(_moments(np.var))
    exp, exp2, log, log2 = (_method(f) for f in (np.exp, np.exp2, np.log, np.log2))
    sin, cos, tanh, abs = (_method(f) for f in (np.sin, np.cos, np.tanh, np.abs))
    erf = _method(_erf)
    sqrt, square, reciprocal = (_method(f) for f in (np.sqrt, np.square, np.reciprocal))
    rsqrt = _method(lambda v: 1 / np.sqrt(v))
    sigmoid = _method(lambda v: 1 / (1 + np.exp(-v)))
    silu = _method(lambda v: v / (1 + np.exp(-v)))
    relu = _method(lambda v: np.maximum(v, 0))
    elu = _method(lambda v: np.where(v > 0, v, np.exp(np.minimum(v, 0)) - 1))
    gelu, softmax = _method(_gelu), _method(_softmax)
    layernorm, batchnorm = _method(_layernorm), _method(_batchnorm)
    logical_not = _method(np.logical_not)
    log_softmax = _method(lambda v, axis=-1: np.log(_softmax(v, axis)))
    half = _method(lambda v: v.astype(np.float16))
    int = _method(lambda v: v.astype(np.int32))
    float = _method(lambda v: v.astype(np.float64))
    contiguous = _method(np.copy)
    permute = _method(lambda v, *axes: v.transpose(axes))
    transpose = _method(lambda v, first=-2, second=-1: np.swapaxes(v, first, second))
    expand = _method(lambda v, *shape: np.broadcast_to(v, shape))
    repeat = _method(lambda v, *counts: np.tile(v, counts[0] if len(counts) == 1 else counts))
    flip, unsqueeze, window = _method(np.flip), _method(np.expand_dims), _method(_window)
    pad = _method(lambda v, widths, fill=0.0: np.pad(v, widths, constant_values=fill))
    shrink = _method(lambda v, bounds: v[tuple(slice(*b) for b in bounds)])
    gather = _method(lambda v, index, axis=0: np.take(v, index, axis))
    conv2d, conv_transpose2d = _method(_conv2d), _method(_conv_transpose2d)
    max_pool2d = _method(lambda v, *how, **given: _pool(v, np.max, *how, **given))
    avg_pool2d = _method(lambda v, *how, **given: _pool(v, np.mean, *how, **given))
    eq, ne = _method(np.equal), _method(np.not_equal)
    maximum, minimum = _method(np.maximum), _method(np.minimum)
    realize = kernelize = _method(lambda v: v)
    to = _method(lambda v, _: v)
    cat = _made(lambda parts, axis=0: np.concatenate(parts, axis))
    stack = _made(lambda parts, axis=0: np.stack(parts, axis))
    arange = _made(lambda count: np.arange(count, dtype=np.int32))
    full = _made(lambda shape, value: np.full(shape, value, np.float32))
    einsum = _made(np.einsum)
    ones, zeros = _made(lambda *shape: np.ones(shape)), _made(lambda *shape: np.zeros(shape))
    empty = zeros  # as it is defined here
    weight = _made(lambda value: np.asarray(value, np.float64))
    variable = _made(lambda *bound: np.int32(bound[-1]))  # a name, two bounds, the value

    def cast(self, dtype: dt.DType) -> Plain:
        return Plain(self if dtype is dt.float32 else self.astype(dtype.np))

    def where(self, yes: Any, no: Any) -> Plain:
        return Plain(np.where(self, yes, no))

    def assign(self, value: Any) -> Plain:
        self[...] = value
        return self

    def split(self, sizes: Sequence[Any], axis: Any = 0) -> list[Plain]:
        return [Plain(v) for v in np.split(self, np.cumsum(sizes)[:-1], axis)]


def instead_of_tensors(function: Callable[..., Any], *given: Array) -> list[Array]:
    """Return what a function of Tensors makes of arrays: its results, as plain arrays of numpy."""
    text = function.func if isinstance(function, partial) else function
    with ExitStack() as patches:
        for module in {values, sys.modules[text.__module__]}:
            patches.enter_context(mock.patch.object(module, "Tensor", Plain))
        made = function(*map(Plain, given))
    listed = made if isinstance(made, list | tuple) else [made]
    return [np.asarray(value).view(np.ndarray) for value in listed]
