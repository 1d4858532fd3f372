"""Tensor is the lazy, numpy-like front end with which all graphs are written.

A Tensor is a handle on a Node; every operation makes nodes and computes nothing. The class is
written in modules that build on each other: core (the handle), movement, arithmetic (with
reductions), power, nn (neural networks), conv_transpose, assign, values (computing) and protocols
(Python's and numpy's).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Self, TypeVar

import numpy as np

from scheduler.errors import ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType, as_dtype
from scheduler.ir.node import make
from scheduler.ir.ops import Op
from scheduler.tensor import realize as running
from scheduler.tensor.assign import TensorAssign
from scheduler.tensor.core import Scalar, axis_of, evaluate
from scheduler.tensor.movement import shape_of
from scheduler.tensor.protocols import TensorProtocols
from scheduler.tensor.session import SESSION

__all__ = ["Tensor", "evaluate"]


T = TypeVar("T", bound=TensorAssign)


class Tensor(TensorProtocols):
    """A lazy array of static shape: constructors and concats on top of the operations."""

    __slots__ = ()

    @classmethod
    def full(cls, shape: int | Sequence[int], value: Scalar, dtype: DType | Any = None) -> Self:
        """Return one value repeated to a shape."""
        return cls(value, dtype).broadcast_to(shape_of((shape,)))

    @classmethod
    def zeros(cls, *shape: int | Sequence[int], dtype: DType | Any = dt.float32) -> Self:
        """Return zeros."""
        return cls.full(shape_of(shape), 0, dtype)

    @classmethod
    def ones(cls, *shape: int | Sequence[int], dtype: DType | Any = dt.float32) -> Self:
        """Return ones."""
        return cls.full(shape_of(shape), 1, dtype)

    @classmethod
    def arange(
        cls,
        start: float,
        stop: float | None = None,
        step: float = 1,
        dtype: DType | Any = None,
    ) -> Self:
        """Return start, start+step, ... below stop (or 0 .. start-1); int32 unless one is a float.

        Raises ModelError if the step is zero.
        """
        first, last = (0, start) if stop is None else (start, stop)
        if step == 0:
            raise ModelError("arange: the step is zero")
        count = max(0, math.ceil((last - first) / step))
        whole = all(isinstance(v, int) for v in (first, last, step))
        iota = cls.of(make(Op.IOTA, dt.int32, (), count))
        iota = iota if whole else iota.cast(dt.float32)
        return (iota * step + first).cast(iota.dtype if dtype is None else dtype)

    @classmethod
    def eye(cls, n: int, dtype: DType | Any = dt.float32) -> Self:
        """Return the identity matrix (n, n)."""
        iota = cls.arange(n)
        return iota.unsqueeze(1).eq(iota.unsqueeze(0)).cast(dtype)

    @classmethod
    def rand(
        cls, *shape: int | Sequence[int], dtype: DType | Any = dt.float32, seed: int | None = None
    ) -> Self:
        """Return uniform values in [0, 1), made on the host.

        Without a seed the calls of a process continue one sequence, the same in every process.
        """
        rng = SESSION.random if seed is None else np.random.default_rng(seed)
        values = np.asarray(rng.random(shape_of(shape), dtype=np.float64))
        return cls(values.astype(as_dtype(dtype).np))

    @classmethod
    def empty(cls, *shape: int | Sequence[int], dtype: DType | Any = dt.float32) -> Self:
        """Return a buffer to be written to; it takes no memory and reads as zeros until then."""
        zero = np.zeros((), as_dtype(dtype).np)
        values = np.broadcast_to(zero, shape_of(shape))
        return cls.of(running.buffer_node(values, cls.zeros(*shape, dtype=dtype).node))

    def cat(self: Any, *others: Any, axis: int = 0) -> Tensor:
        """Concatenate tensors along an axis: `Tensor.cat([a, b], axis)`, or `a.cat(b, axis=0)`.

        Raises ModelError if no tensor is given, or their types differ.
        """
        tensors, axis = _several(self, others, axis)
        if not tensors or len({t.dtype for t in tensors}) != 1:
            raise ModelError(f"cat: expected tensors of one type, found {list(tensors)}")
        axis = axis_of(axis, tensors[0].ndim)
        parts = [t.node for t in tensors if t.shape[axis] > 0] or [tensors[0].node]
        if len(parts) == 1:
            return Tensor.of(parts[0])
        return Tensor.of(make(Op.CAT, parts[0].dtype, tuple(parts), axis))

    def stack(self: Any, *others: Any, axis: int = 0) -> Tensor:
        """Stack tensors along a new axis: `Tensor.stack([a, b], axis)`, or `a.stack(b, axis=0)`."""
        tensors, axis = _several(self, others, axis)
        if not tensors:
            raise ModelError("stack: expected tensors, found none")
        axis = axis_of(axis, tensors[0].ndim + 1)
        return Tensor.cat([t.unsqueeze(axis) for t in tensors], axis)

    @classmethod
    def einsum(cls, formula: str, *operands: Self) -> Self:
        """Return a sum of products in Einstein's notation; raise ModelError for a misfit."""
        inputs, _, output = formula.replace(" ", "").partition("->")
        terms = inputs.split(",")
        if len(terms) != len(operands) or any(
            len(t) != o.ndim for t, o in zip(terms, operands, strict=True)
        ):
            raise ModelError(
                f"einsum: {formula!r} does not fit shapes {[o.shape for o in operands]}"
            )
        letters = sorted(set("".join(terms)))
        if "->" not in formula:
            output = "".join(c for c in letters if inputs.count(c) == 1)
        aligned = [_align(o, t, letters) for o, t in zip(operands, terms, strict=True)]
        product = aligned[0]
        for term in aligned[1:]:
            product = product * term
        dropped = [i for i, c in enumerate(letters) if c not in output]
        summed = product.sum(dropped) if dropped else product
        rest = [c for c in letters if c in output]
        return summed.permute([rest.index(c) for c in output]) if output else summed


def _several(first: Any, others: Sequence[Any], axis: int) -> tuple[list[Any], int]:
    """Return the tensors and the axis of a concat, given as a list or one by one."""
    if not isinstance(first, TensorAssign):
        return list(first), others[0] if others else axis
    if others and not isinstance(others[-1], TensorAssign):
        return [first, *others[:-1]], others[-1]
    return [first, *others], axis


def _align(x: T, term: str, letters: list[str]) -> T:
    """Put the axes named by `term` in the order of `letters`, size 1 where a letter is missing."""
    if len(set(term)) != len(term):
        raise ModelError(f"einsum: a repeated index within {term!r} (a diagonal) is not supported")
    order = sorted(range(len(term)), key=lambda i: letters.index(term[i]))
    sizes = {c: x.shape[i] for i, c in enumerate(term)}
    return x.permute(order).reshape(tuple(sizes.get(c, 1) for c in letters))
