"""TensorCore: the handle on a Node, how it is made, typed and evaluated; part of `tensor`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scheduler import dtype as dt
from scheduler import interp
from scheduler.dtype import DType
from scheduler.errors import ModelError
from scheduler.node import Buffer, Node, const, make, toposort
from scheduler.ops import Op, Shape

Scalar = float | int | bool


class TensorCore:
    """A lazy array of static shape.

    Args:
        data: values; an array becomes a weight buffer (constant for the compiler), a scalar a
            constant.
        dtype: target type; by default an array's own, int32 for int, float32 for float.
    """

    __slots__ = ("node",)
    __array_priority__ = 1000  # numpy arrays on the left defer to us
    __array_ufunc__ = None

    node: Node

    def __init__(self, data: NDArray[Any] | Scalar, dtype: DType | None = None) -> None:
        if isinstance(data, np.ndarray | np.generic):
            values = np.ascontiguousarray(data)
            own = dt.from_numpy(values.dtype)
            if values.ndim == 0 or np.ndim(data) == 0:
                self.node = const(np.asarray(data).item(), dtype or own)
                return
            if dtype is not None and dtype is not own:
                values, own = values.astype(dtype.np), dtype
            self.node = make(Op.BUFFER, own, (), Buffer("weight", "", values.shape, own, values))
            return
        self.node = const(data, dtype or _scalar_dtype(data))

    @classmethod
    def of(cls, node: Node) -> Self:
        """Return the handle of a node."""
        tensor = cls.__new__(cls)
        tensor.node = node
        return tensor

    @classmethod
    def input(cls, name: str, shape: Sequence[int], dtype: DType = dt.float32) -> Self:
        """Return a value given at every run under this name."""
        return cls.of(make(Op.BUFFER, dtype, (), Buffer("input", name, tuple(shape), dtype)))

    @classmethod
    def state(cls, name: str, shape: Sequence[int], dtype: DType = dt.float32) -> Self:
        """Return a buffer that lives on the device between runs and starts as zeros."""
        return cls.of(make(Op.BUFFER, dtype, (), Buffer("state", name, tuple(shape), dtype)))

    @property
    def shape(self) -> Shape:
        """Sizes of the axes."""
        return self.node.shape

    @property
    def dtype(self) -> DType:
        """Element type."""
        return self.node.dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.node.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.node.shape)

    def __repr__(self) -> str:
        return f"Tensor({self.node!r})"

    def __len__(self) -> int:
        return self.shape[0]

    def cast(self, dtype: DType) -> Self:
        """Convert values to a type; floats to integers truncate towards zero."""
        if dtype is self.dtype:
            return self
        if self.node.op is Op.CONST and (dtype.is_float or not self.dtype.is_float):
            return self.of(const(self.node.arg, dtype))
        return self.of(make(Op.CAST, dtype, (self.node,)))

    def bitcast(self, dtype: DType) -> Self:
        """Reinterpret the bits as a type of the same width.

        Raises:
            ModelError: the widths differ.
        """
        if dtype.itemsize != self.dtype.itemsize:
            raise ModelError(f"bitcast: {self.dtype} and {dtype} differ in width")
        return self.of(make(Op.BITCAST, dtype, (self.node,)))

    def contiguous(self) -> Self:
        """Ask for a kernel boundary here."""
        return self.of(make(Op.CONTIGUOUS, self.dtype, (self.node,)))

    def assign(self, value: Self) -> Self:
        """Return a node that stores `value` in this state when the run ends; its value is `value`.

        Raises:
            ModelError: this is not a state, or shape or type differ.
        """
        if self.node.op is not Op.BUFFER or self.node.arg.kind != "state":
            raise ModelError(f"assign: expected a state, found {self!r}")
        if value.shape != self.shape or value.dtype is not self.dtype:
            raise ModelError(f"assign: {self.node.arg} cannot take {value!r}")
        return self.of(make(Op.ASSIGN, self.dtype, (self.node, value.node)))

    def interp(self, inputs: Mapping[str, NDArray[Any]] | None = None) -> NDArray[Any]:
        """Evaluate with the numpy interpreter; `inputs` by name of input and state buffers."""
        return evaluate([self], inputs)[0]

    def unary(self, op: Op) -> Self:
        """Return an elementwise function of this tensor."""
        return self.of(make(op, self.dtype, (self.node,)))

    def operand(self, value: Self | Scalar | NDArray[Any]) -> Self:
        """Turn the other operand into a tensor.

        A Python scalar takes this tensor's type, unless that would lose its fraction or its range.
        """
        if isinstance(value, TensorCore):
            return value
        if isinstance(value, np.ndarray | np.generic):
            return type(self)(value)
        if isinstance(value, float) and not self.dtype.is_float:
            return type(self)(value, dt.float32)
        if isinstance(value, int) and not self.dtype.is_float and not dt.holds(self.dtype, value):
            return type(self)(value, dt.int32 if dt.holds(dt.int32, value) else dt.int64)
        if self.dtype is dt.bool_ and not isinstance(value, bool):
            return type(self)(value, dt.int32)
        return type(self)(value, self.dtype)


def _scalar_dtype(value: Scalar) -> DType:
    if isinstance(value, bool):
        return dt.bool_
    return dt.int32 if isinstance(value, int) else dt.float32


def evaluate(
    tensors: Sequence[TensorCore], inputs: Mapping[str, NDArray[Any]] | None = None
) -> list[NDArray[Any]]:
    """Evaluate tensors with the numpy interpreter.

    Args:
        tensors: what to compute.
        inputs: values of input and state buffers by name; a state without a value is zeros.

    Raises:
        SchedulerError: an input is missing.
    """
    given = dict(inputs or {})
    buffers: dict[Buffer, NDArray[Any]] = {}
    for node in toposort([t.node for t in tensors]):
        if node.op is not Op.BUFFER or node.arg.kind == "weight":
            continue
        if node.arg.name in given:
            buffers[node.arg] = given[node.arg.name]
        elif node.arg.kind == "state":
            buffers[node.arg] = np.zeros(node.shape, node.dtype.np)
    return interp.evaluate([t.node for t in tensors], buffers)
