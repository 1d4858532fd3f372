"""Tensor: the lazy, numpy-like front end. Importer, driving program and users write graphs with it.

A Tensor is an immutable handle on a Node; every operation makes nodes and computes nothing. The
class is written in four files that build on each other: tensor_core (what it is), tensor_shape
(movement), tensor_math (arithmetic, reductions), tensor_nn (neural network operations).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler import dtype as dt
from scheduler.dtype import DType
from scheduler.errors import ModelError
from scheduler.node import make
from scheduler.ops import Op
from scheduler.realize import run
from scheduler.tensor_core import Scalar, evaluate
from scheduler.tensor_nn import TensorNeural
from scheduler.tensor_shape import shape_of

__all__ = ["Tensor", "evaluate"]

T = TypeVar("T", bound=TensorNeural)


class Tensor(TensorNeural):
    """A lazy array of static shape: constructors and joins on top of the operations."""

    __slots__ = ()

    @classmethod
    def full(cls, shape: Sequence[int], value: Scalar, dtype: DType | None = None) -> Self:
        """Return one value repeated to a shape."""
        return cls(value, dtype).broadcast_to(tuple(shape))

    @classmethod
    def zeros(cls, *shape: int | Sequence[int], dtype: DType = dt.float32) -> Self:
        """Return zeros."""
        return cls.full(shape_of(shape), 0, dtype)

    @classmethod
    def ones(cls, *shape: int | Sequence[int], dtype: DType = dt.float32) -> Self:
        """Return ones."""
        return cls.full(shape_of(shape), 1, dtype)

    @classmethod
    def arange(
        cls, start: int, stop: int | None = None, step: int = 1, dtype: DType = dt.int32
    ) -> Self:
        """Return start, start+step, ... below stop (or 0 .. start-1)."""
        first, last = (0, start) if stop is None else (start, stop)
        count = max(0, -(-(last - first) // step))
        ramp = cls.of(make(Op.IOTA, dt.int32, (), count))
        return (ramp * step + first).cast(dtype)

    @classmethod
    def eye(cls, n: int, dtype: DType = dt.float32) -> Self:
        """Return the identity matrix (n, n)."""
        ramp = cls.arange(n)
        return ramp.unsqueeze(1).eq(ramp.unsqueeze(0)).cast(dtype)

    @classmethod
    def rand(cls, *shape: int | Sequence[int], dtype: DType = dt.float32, seed: int = 0) -> Self:
        """Return uniform values in [0, 1) from a seeded generator, made on the host."""
        values = np.random.default_rng(seed).random(shape_of(shape), dtype=np.float64)
        return cls(values.astype(dtype.np))

    @classmethod
    def empty(cls, *shape: int | Sequence[int], dtype: DType = dt.float32) -> Self:
        """Return zeros: unspecified values would make runs differ."""
        return cls.zeros(shape_of(shape), dtype=dtype)

    @classmethod
    def cat(cls, tensors: Sequence[Self], axis: int = 0) -> Self:
        """Join tensors along an axis.

        Raises:
            ModelError: no tensor is given, or their types differ.
        """
        if not tensors or len({t.dtype for t in tensors}) != 1:
            raise ModelError(f"cat: expected tensors of one type, found {list(tensors)}")
        axis = axis % tensors[0].ndim
        parts = [t.node for t in tensors if t.shape[axis] > 0] or [tensors[0].node]
        if len(parts) == 1:
            return cls.of(parts[0])
        return cls.of(make(Op.CAT, parts[0].dtype, tuple(parts), axis))

    @classmethod
    def stack(cls, tensors: Sequence[Self], axis: int = 0) -> Self:
        """Join tensors along a new axis."""
        axis = axis % (tensors[0].ndim + 1)
        return cls.cat([t.unsqueeze(axis) for t in tensors], axis)

    def numpy(self, inputs: Mapping[str, NDArray[Any]] | None = None) -> NDArray[Any]:
        """Compile, run once on an OpenCL device and return the values.

        Args:
            inputs: values of input buffers by name; states are zeros.

        Raises:
            SchedulerError: it cannot be compiled.
            RuntimeFault: there is no device, or an input does not fit.
        """
        return run([self], inputs)[0]

    def item(self) -> Any:
        """Return the value of a tensor of one element as a Python scalar."""
        return self.numpy().item()

    @classmethod
    def einsum(cls, formula: str, *operands: Self) -> Self:
        """Return a sum of products in Einstein's notation, with an explicit or implicit result.

        Raises:
            ModelError: the formula does not fit the operands.
        """
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


def _align(x: T, term: str, letters: list[str]) -> T:
    """Put the axes named by `term` in the order of `letters`, size 1 where a letter is missing."""
    if len(set(term)) != len(term):
        raise ModelError(f"einsum: a repeated index within {term!r} (a diagonal) is not supported")
    order = sorted(range(len(term)), key=lambda i: letters.index(term[i]))
    sizes = {c: x.shape[i] for i, c in enumerate(term)}
    return x.permute(order).reshape(tuple(sizes.get(c, 1) for c in letters))
