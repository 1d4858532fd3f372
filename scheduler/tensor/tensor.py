"""`Tensor`: the lazy, numpy-like front end for building graphs.

A Tensor is a handle on a Node. Operations add nodes to the graph and compute nothing. Each module
in this folder adds methods to the class: core (the handle), movement, arithmetic (with reductions),
power, nn (neural networks), conv_transpose, assign, realize (computation). This module adds
constructors, and the protocols of Python and numpy for sequences, numbers and arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError, TensorCopyError, TensorTypeError
from scheduler.ir import dtype as dt
from scheduler.ir.dtype import DType, as_dtype
from scheduler.ir.node import is_weight, make
from scheduler.ir.ops import Op
from scheduler.tensor import realize as running
from scheduler.tensor.core import Scalar, axis_of, evaluate
from scheduler.tensor.eager import SESSION, unbound
from scheduler.tensor.movement import shape_of
from scheduler.tensor.realize import TensorValues

__all__ = ["Tensor", "evaluate"]

T = TypeVar("T", bound="Tensor")
# DLDeviceType of host memory, and the only device of that type (dlpack.h).
_DLPACK_HOST = (1, 0)


class Tensor(TensorValues):
    """A lazy array of static shape.

        len(t), t[i], for row in t, 3 in t          a sequence of rows
        float(t), int(t), bool(t), f"{t:.3f}"       a number, if it has one element
        np.asarray(t), np.sum(t), np.from_dlpack(t) an array with its values

    Operators between a tensor and numpy objects, on either side, return tensors. A tensor that
    depends on an input cannot be converted to a number, and no tensor can be used as a size.
    """

    __slots__ = ()

    @classmethod
    def full(cls, shape: int | Sequence[int], value: Scalar, dtype: DType | Any = None) -> Self:
        """Return a tensor of a shape with one value everywhere."""
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
        """Return start, start+step, ... below stop, or 0 .. start-1 without a stop.

        The type is int32, or float32 if an argument is a float. Raises ModelError if the step is 0.
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
        """Return uniform random values in [0, 1), generated on the host.

        Without a seed, all calls continue one sequence, which is the same in every process.
        """
        rng = SESSION.random if seed is None else np.random.default_rng(seed)
        values = np.asarray(rng.random(shape_of(shape), dtype=np.float64))
        return cls(values.astype(as_dtype(dtype).np))

    @classmethod
    def empty(cls, *shape: int | Sequence[int], dtype: DType | Any = dt.float32) -> Self:
        """Return a buffer of zeros that uses no memory until it is written."""
        zero = np.zeros((), as_dtype(dtype).np)
        values = np.broadcast_to(zero, shape_of(shape))
        return cls.of(running.buffer_node(values, cls.zeros(*shape, dtype=dtype).node))

    def cat(self: Any, *others: Any, axis: int = 0) -> Tensor:
        """Concatenate tensors along an axis: `Tensor.cat([a, b], axis)`, or `a.cat(b, axis=0)`.

        Raises ModelError if there is no tensor, or the types differ.
        """
        tensors, axis = _cat_arguments(self, others, axis)
        if not tensors or len({t.dtype for t in tensors}) != 1:
            raise ModelError(f"cat: expected tensors of one type, found {list(tensors)}")
        axis = axis_of(axis, tensors[0].ndim)
        parts = [t.node for t in tensors if t.shape[axis] > 0] or [tensors[0].node]
        if len(parts) == 1:
            return Tensor.of(parts[0])
        return Tensor.of(make(Op.CAT, parts[0].dtype, tuple(parts), axis))

    def stack(self: Any, *others: Any, axis: int = 0) -> Tensor:
        """Stack tensors along a new axis: `Tensor.stack([a, b], axis)`, or `a.stack(b, axis=0)`."""
        tensors, axis = _cat_arguments(self, others, axis)
        if not tensors:
            raise ModelError("stack: expected tensors, found none")
        axis = axis_of(axis, tensors[0].ndim + 1)
        return Tensor.cat([t.unsqueeze(axis) for t in tensors], axis)

    @classmethod
    def einsum(cls, formula: str, *operands: Self) -> Self:
        """Return a sum of products in Einstein notation; raise ModelError for a misfit."""
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

    # --- sequence protocol --------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TensorTypeError(f"len: {self!r} has no axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise TensorTypeError(f"iteration: {self!r} has no axes")
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return (value.numpy() if isinstance(value, Tensor) else value) in self.numpy()

    # --- number protocol ----------------------------------------------------------------------

    def __index__(self) -> int:
        raise TensorTypeError(
            f"{self!r} is used as a size or a position: shapes are fixed when a graph is built; "
            "use item() for a value that is known now"
        )

    def __bool__(self) -> bool:
        return bool(self._single("truth value"))

    def __int__(self) -> int:
        return int(self._single("int"))

    def __float__(self) -> float:
        return float(self._single("float"))

    def __complex__(self) -> complex:
        return complex(self._single("complex number"))

    def __format__(self, spec: str) -> str:
        return format(self._single("format"), spec) if spec else str(self)

    def _single(self, wanted: str) -> Any:
        """Return the only element, or raise TensorTypeError; `wanted` is for the message."""
        if self.size != 1:
            raise TensorTypeError(
                f"{self!r} has no {wanted}: it has {self.size} elements; use numpy(), or reduce it"
            )
        missing = unbound([self.node])
        if missing:
            raise TensorTypeError(
                f"{self!r} has no {wanted} before {missing[0]} is given; where() chooses between "
                "values when a program runs"
            )
        return self.item()

    # --- array protocols of numpy -------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values as a new array.

        If `copy` is False, return a read-only view, or raise TensorCopyError if there is none in
        this type.
        """
        values = self._shared() if copy is False else self.numpy()
        if dtype is None or values.dtype == dtype:
            return values
        if copy is False:
            raise TensorCopyError(f"{self!r} cannot be {np.dtype(dtype)} without a copy")
        return values.astype(dtype)

    def _shared(self) -> NDArray[Any]:
        values = None if unbound([self.node]) else running.shared_values(self.realize().node)
        if values is None:
            raise TensorCopyError(f"{self!r} cannot be an array without a copy; allow one")
        return values

    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call a numpy function with the values of the tensors among its arguments."""
        if not all(issubclass(kind, Tensor | np.ndarray) for kind in types):
            return NotImplemented
        return function(*_as_arrays(tuple(args)), **_as_arrays(kwargs))

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_HOST

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Return the values in host memory as a capsule; `options` are as for numpy.

        Raises TensorCopyError if `copy` is False and a copy is needed.
        """
        given = {name: value for name, value in options.items() if value is not None}
        return np.asarray(self, copy=False if copy is False else None).__dlpack__(**given)

    # --- copy and pickle ----------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self.view_as(self.node)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values, not the graph.

        Raises TensorTypeError if the values depend on an input; compile such a graph to an
        artifact instead.
        """
        missing = unbound([self.node])
        if missing:
            raise TensorTypeError(
                f"{self!r} has no values to pickle before {missing[0]} is given; an artifact keeps "
                "graphs"
            )
        device = self.device
        return _restore, (type(self), self.numpy(), is_weight(self.node), device)

    # --- other operators ----------------------------------------------------------------------

    def __pos__(self) -> Self:
        return self

    def __abs__(self) -> Self:
        return self.abs()

    def __divmod__(self, other: Any) -> tuple[Self, Self]:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> tuple[Self, Self]:
        return other // self, other % self

    def __rlshift__(self, other: Any) -> Self:
        return self.operand(other) << self

    def __rrshift__(self, other: Any) -> Self:
        return self.operand(other) >> self


def _cat_arguments(first: Any, others: Sequence[Any], axis: int) -> tuple[list[Any], int]:
    """Return the tensors and the axis of a `cat` or `stack` call, in either form."""
    if not isinstance(first, Tensor):
        return list(first), others[0] if others else axis
    if others and not isinstance(others[-1], Tensor):
        return [first, *others[:-1]], others[-1]
    return [first, *others], axis


def _align(x: T, term: str, letters: list[str]) -> T:
    """Return x with its axes `term` in the order of `letters`, and size 1 for missing letters."""
    if len(set(term)) != len(term):
        raise ModelError(f"einsum: a repeated index within {term!r} (a diagonal) is not supported")
    order = sorted(range(len(term)), key=lambda i: letters.index(term[i]))
    sizes = {c: x.shape[i] for i, c in enumerate(term)}
    return x.permute(order).reshape(tuple(sizes.get(c, 1) for c in letters))


def _restore(kind: type[Any], values: NDArray[Any], is_constant: bool, device: str) -> Any:
    """Return a tensor from its pickled values."""
    return kind.weight(values) if is_constant else kind(values, device=device)


def _as_arrays(value: Any) -> Any:
    """Return arguments with each tensor replaced by its values, also in lists and dicts."""
    if isinstance(value, Tensor):
        return value.numpy()
    if isinstance(value, list | tuple):
        return type(value)(_as_arrays(item) for item in value)
    if isinstance(value, dict):
        return {name: _as_arrays(item) for name, item in value.items()}
    return value
