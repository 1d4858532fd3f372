"""Arrays that have the methods of Tensor, each written with numpy: rows run on both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.scheduler.fusion.reference import np_elu, np_layernorm, np_relu, np_softmax


def _method(function: Callable[..., Any]) -> Any:
    """Return a method that applies a function to the array."""
    return lambda self, *args, **given: plain(function(np.asarray(self), *args, **given))


def _reduction(function: Callable[..., Any]) -> Any:
    """Return a method that reduces axes, and keeps them where it is asked to by `keepdim`."""

    def reduce(self: Plain, axis: Any = None, *, keepdim: bool = False) -> Plain:
        return plain(function(np.asarray(self), axis=axis, keepdims=keepdim))

    return reduce


class Plain(np.ndarray[Any, Any]):
    """An array of numpy; indices and arithmetic are numpy's own."""

    sum = _reduction(np.sum)
    max = _reduction(np.max)
    min = _reduction(np.min)
    mean = _reduction(np.mean)
    argmax = _reduction(np.argmax)
    argmin = _reduction(np.argmin)
    std = _reduction(lambda v, **how: np.std(v, ddof=1, **how))
    var = _reduction(lambda v, **how: np.var(v, ddof=1, **how))
    exp, exp2, log, log2 = (_method(f) for f in (np.exp, np.exp2, np.log, np.log2))
    sin, cos, tanh, abs = (_method(f) for f in (np.sin, np.cos, np.tanh, np.abs))
    sqrt, square, reciprocal = (_method(f) for f in (np.sqrt, np.square, np.reciprocal))
    rsqrt = _method(lambda v: 1 / np.sqrt(v))
    sigmoid = _method(lambda v: 1 / (1 + np.exp(-v)))
    relu, elu, softmax = (_method(f) for f in (np_relu, np_elu, np_softmax))
    layernorm = _method(np_layernorm)
    log_softmax = _method(lambda v, axis=-1: np.log(np_softmax(v, axis)))
    half = _method(lambda v: v.astype(np.float16))
    int = _method(lambda v: v.astype(np.int32))
    float = _method(lambda v: v.astype(np.float64))
    contiguous = _method(np.copy)
    permute = _method(lambda v, *axes: v.transpose(axes))
    expand = _method(lambda v, *shape: np.broadcast_to(v, shape))
    flip = _method(np.flip)
    unsqueeze = _method(np.expand_dims)
    pad = _method(lambda v, widths, fill=0.0: np.pad(v, widths, constant_values=fill))
    shrink = _method(lambda v, bounds: v[tuple(slice(*b) for b in bounds)])
    eq = _method(np.equal)
    realize = kernelize = _method(lambda v: v)

    def where(self, yes: Any, no: Any) -> Plain:
        return plain(np.where(self, yes, no))

    def assign(self, value: Any) -> Plain:
        self[...] = value
        return self

    def split(self, sizes: Sequence[Any], axis: Any = 0) -> list[Plain]:
        return [plain(v) for v in np.split(self, np.cumsum(sizes)[:-1], axis)]


def plain(value: Any) -> Plain:
    """Return an array with the methods of Tensor."""
    return np.asarray(value).view(Plain)


def result(value: Any) -> NDArray[Any]:
    """Return the array of numpy again."""
    return np.asarray(value).view(np.ndarray)
