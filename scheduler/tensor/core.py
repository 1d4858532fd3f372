"""`TensorCore`: the base class of Tensor, a handle on a Node of the graph.

It has constructors, type conversions and evaluation by the numpy interpreter. `rounds_once` makes a
method of several operations compute fp16 tensors in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from math import prod
from numbers import Real
from operator import index
from typing import Any, Self, TypeVar
from weakref import ref

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import ModelError, TensorIndexError, TensorTypeError
from scheduler.ir import dtype as dt
from scheduler.ir import interp
from scheduler.ir.build import as_type, peel
from scheduler.ir.dtype import DType, as_dtype
from scheduler.ir.node import Buffer, Node, const, make, toposort
from scheduler.ir.ops import ROUNDED, Op, Shape
from scheduler.tensor.eager import SESSION

Scalar = float | int | bool
AUTO = "auto"
NO_GRADIENTS = "gradients are not supported: this compiler runs models, it does not train them"


Data = NDArray[Any] | Scalar | Sequence[Any]
F = TypeVar("F", bound=Callable[..., Any])


class TensorCore:
    """A lazy array of static shape.

    Args:
        data: values; an array or a list becomes a realized buffer, a scalar a constant.
        dtype: element type; by default an array's own, int32 for int, float32 for float.
        device: name of the device for the values; by default the device of the program.
        requires_grad: must not be true, because there is no training.

    Raises:
        ModelError: the type is not supported, or gradients are requested.
    """

    __slots__ = ("__weakref__", "_owner", "node")
    __array_priority__ = 1000  # numpy arrays on the left defer to us
    __array_ufunc__ = None
    __hash__ = object.__hash__

    node: Node
    _owner: ref[TensorCore] | None

    def __init__(
        self,
        data: Data,
        dtype: DType | Any = None,
        *,
        device: str | None = None,
        requires_grad: bool | None = None,
    ) -> None:
        if requires_grad:
            raise ModelError(NO_GRADIENTS)
        self._owner = None
        values = _as_array(data, dtype)
        if isinstance(values, Node):
            self.node = values
        else:
            buffer = Buffer("input", "", values.shape, dt.from_numpy(values.dtype), values)
            buffer.device = _device_name(device)
            self.node = make(Op.BUFFER, buffer.dtype, (), buffer)
            SESSION.handles.hold(buffer, self)
        SESSION.handles.register(self)

    @classmethod
    def of(cls, node: Node) -> Self:
        """Return a tensor for a node."""
        tensor = cls.__new__(cls)
        tensor.node, tensor._owner = node, None
        SESSION.handles.register(tensor)
        return tensor

    @classmethod
    def weight(cls, data: Data, dtype: DType | Any = None) -> Self:
        """Return a tensor of constant values, which the compiler can fold and pack.

        An array is not copied and must not change afterwards.
        """
        values = _as_array(data, dtype, copy=False)
        if isinstance(values, Node):
            return cls.of(values)
        own = dt.from_numpy(values.dtype)
        return cls.of(make(Op.BUFFER, own, (), Buffer("weight", "", values.shape, own, values)))

    @classmethod
    def input(
        cls, name: str, shape: Sequence[int], dtype: DType = dt.float32, *, partial: bool = False
    ) -> Self:
        """Return an input of the program, whose value each run supplies by name.

        A run can supply only the first bytes of a `partial` input; the rest then has the value of
        some earlier run. Raises ModelError if a partial input is not uint8 with one axis.
        """
        if partial and (len(shape) != 1 or dtype is not dt.uint8):
            raise ModelError(
                f'input "{name}": expected uint8 with one axis for a partial input, found '
                f"{dtype.name}{list(shape)}; give such an input whole"
            )
        buffer = Buffer("input", name, tuple(shape), dtype)
        buffer.partial = partial
        return cls.of(make(Op.BUFFER, dtype, (), buffer))

    @classmethod
    def state(cls, name: str, shape: Sequence[int], dtype: DType = dt.float32) -> Self:
        """Return a buffer on the device that keeps its value between runs and starts as zeros."""
        return cls.of(make(Op.BUFFER, dtype, (), Buffer("state", name, tuple(shape), dtype)))

    @classmethod
    def variable(cls, name: str, low: int, high: int, value: int) -> Self:
        """Return an int32 input with a value in [low, high], or raise ModelError.

        It cannot be used as a size.
        """
        if not low <= value <= high:
            raise ModelError(f'variable "{name}": {value} is outside [{low}, {high}]; bind another')
        data = np.asarray(value, np.int32)
        return cls.of(make(Op.BUFFER, dt.int32, (), Buffer("input", name, (), dt.int32, data)))

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

    @property
    def device(self) -> str:
        """Name of the device of the values, or "auto" for the device of the program."""
        found = [n.arg.device for n in toposort([self.node]) if n.op is Op.BUFFER]
        return next((name for name in found if name), AUTO)

    def to(self, device: str) -> Self:
        """Return this tensor on a device; on its own device, this tensor.

        Raises ModelError if a tensor that is not realized would have to move.
        """
        if _device_name(device) == _device_name(self.device):
            return self
        if self.node.op is not Op.BUFFER or not self.node.arg.is_realized:
            raise ModelError(f'to("{device}"): {self!r} is not realized; call realize() first')
        old = self.node.arg
        moved = Buffer("input", old.name, old.shape, old.dtype, old.data)
        moved.device = _device_name(device)
        return self.of(make(Op.BUFFER, old.dtype, (), moved))

    def detach(self) -> Self:
        """Return this tensor; for compatibility, as there are no gradients."""
        return self

    def contiguous_backward(self) -> Self:
        """Return this tensor; for compatibility, as there is no backward pass."""
        return self

    @property
    def requires_grad(self) -> bool:
        """Always false, because there is no training."""
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value:
            raise ModelError(NO_GRADIENTS)

    def backward(self) -> None:
        """Raise ModelError, because there is no training."""
        raise ModelError(NO_GRADIENTS)

    def cast(self, dtype: DType | Any) -> Self:
        """Return values converted to a type; floats become integers by truncation."""
        dtype = as_dtype(dtype)
        if dtype is self.dtype:
            return self
        if self.node.op is Op.CONST and (dtype.is_float or not self.dtype.is_float):
            return self.of(const(self.node.arg, dtype))
        return self.of(make(Op.CAST, dtype, (self.node,), ROUNDED if dtype is dt.float16 else None))

    def as_half(self) -> Self:
        """Return an fp16 operation's result as fp16; passes can leave out the rounding."""
        return self.of(as_type(self.node, dt.float16))

    def as_type(self, dtype: DType) -> Self:
        """Return the result of an operation in its type; fp16 results as in `as_half`."""
        return self.as_half() if dtype is dt.float16 else self.cast(dtype)

    def bitcast(self, dtype: DType | Any) -> Self:
        """Return the same bits as another type; raise ModelError if the widths differ."""
        dtype = as_dtype(dtype)
        if dtype is self.dtype:
            return self
        if dtype.itemsize != self.dtype.itemsize:
            raise ModelError(f"bitcast: {self.dtype} and {dtype} differ in width")
        return self.of(make(Op.BITCAST, dtype, (self.node,)))

    def contiguous(self) -> Self:
        """Return this value with a kernel boundary after it, so that it is stored in memory.

        A tensor that is a complete buffer is returned unchanged.
        """
        if self.node.op is Op.CONTIGUOUS or _is_whole_buffer(self.node):
            return self
        return self.of(make(Op.CONTIGUOUS, self.dtype, (self.node,)))

    def clone(self) -> Self:
        """Return a copy in a new buffer."""
        return self.of(make(Op.CONTIGUOUS, self.dtype, (self.node,)))

    def view_as(self, node: Node) -> Self:
        """Return a tensor for a view of this one; writes to it go to this tensor's owner."""
        view = self.of(node)
        view._owner = self._owner or ref(self)
        return view

    @property
    def owner(self) -> TensorCore | None:
        """The tensor of which this is a view, or None if there is none or it was freed."""
        return self._owner() if self._owner else None

    def interp(self, inputs: Mapping[str, NDArray[Any]] | None = None) -> NDArray[Any]:
        """Return the values from the numpy interpreter; `inputs` are as for `evaluate`."""
        return evaluate([self], inputs)[0]

    def unary(self, op: Op) -> Self:
        """Return an elementwise function of this tensor."""
        return self.of(make(op, self.dtype, (self.node,)))

    def operand(self, value: Self | Data) -> Self:
        """Return the other operand of an operation as a tensor.

        A Python scalar takes this tensor's type, unless it has a fraction or is out of range.
        Raises TensorTypeError if the operand is neither a tensor nor numbers.
        """
        if isinstance(value, TensorCore):
            return value
        if isinstance(value, np.generic) or not isinstance(value, int | float):
            return self.weight(value)
        if isinstance(value, float) and not self.dtype.is_float:
            return type(self)(value, dt.float32)
        if isinstance(value, int) and not self.dtype.is_float and not dt.holds(self.dtype, value):
            return type(self)(value, dt.int32 if dt.holds(dt.int32, value) else dt.int64)
        if self.dtype is dt.bool_ and not isinstance(value, bool):
            return type(self)(value, dt.int32)
        return type(self)(value, self.dtype)


def axis_of(axis: Any, ndim: int) -> int:
    """Return an axis counted from the front; negative ones count from the end.

    Raises TensorIndexError if there is no such axis, and TensorTypeError if it is not an integer.
    """
    try:
        position = index(axis)
    except TypeError:
        raise TensorTypeError(f"axis: expected an integer, found {axis!r}") from None
    if not -ndim <= position < ndim:
        raise TensorIndexError(f"axis {position} is outside of {ndim} axes")
    return position % ndim


def _as_array(data: Any, dtype: DType | Any, *, copy: bool = True) -> NDArray[Any] | Node:
    """Return values as an array, a read-only copy by default; a scalar as a constant node."""
    target = None if dtype is None else as_dtype(dtype)
    if isinstance(data, TensorCore) and copy:
        return data.clone().cast(target or data.dtype).node
    is_array = hasattr(data, "__array__")
    if isinstance(data, str | bytes) or not (is_array or isinstance(data, Real | Sequence)):
        raise TensorTypeError(
            f"expected numbers, an array, a list or a tensor, found {type(data).__name__}"
        )
    if isinstance(data, Sequence):
        # Python numbers in lists become float32 or int32 if they fit.
        values = np.asarray(data)
        if values.dtype.kind == "f":
            values = values.astype(np.float32)
        elif values.dtype.kind == "i" and np.array_equal(values.astype(np.int32), values):
            values = values.astype(np.int32)
    elif is_array:
        values = np.asarray(data)
    else:
        kind = target or _scalar_dtype(data)
        _check_range(np.asarray(data), kind)
        return const(data, kind)
    if isinstance(data, Sequence) and target is not None:
        _check_range(values, target)
    own = dt.from_numpy(values.dtype)
    if values.ndim == 0:
        return const(values.item(), target or own)
    values = np.array(values, (target or own).np, order="C", copy=copy or None)
    if copy:
        values.flags.writeable = False
    return values


def _device_name(device: str | None) -> str:
    return "" if device in (None, AUTO) else str(device)


def _is_whole_buffer(node: Node) -> bool:
    """Return whether a node is a complete stored buffer; a weight is not, as it can be folded."""
    _, node = peel(node, (Op.RESHAPE,))
    return node.op is Op.ASSIGN or (node.op is Op.BUFFER and node.arg.kind != "weight")


def _scalar_dtype(value: Scalar) -> DType:
    """Return the type of a Python number; for an int the first of three that can represent it."""
    if isinstance(value, bool):
        return dt.bool_
    if not isinstance(value, int):
        return dt.float32
    kinds = (dt.int32, dt.int64, dt.uint64)
    return next((kind for kind in kinds if dt.holds(kind, value)), dt.int64)


def _check_range(values: NDArray[Any], kind: DType) -> None:
    """Raise ModelError if an integer among values is out of range for a type."""
    if not kind.is_int or values.dtype.kind not in "iuO" or not values.size:
        return
    for value in (values.min(), values.max()):
        if not isinstance(value, int | np.integer) or not dt.holds(kind, int(value)):
            raise ModelError(f"{value} is out of range for {kind}; use a wider type or an array")


def evaluate(
    tensors: Sequence[TensorCore], inputs: Mapping[str, NDArray[Any]] | None = None
) -> list[NDArray[Any]]:
    """Return the values of tensors from the numpy interpreter.

    `inputs` has the values of inputs and states by name; states are zeros by default.
    """
    given = dict(inputs or {})
    buffers: dict[Buffer, NDArray[Any]] = {}
    for node in toposort([t.node for t in tensors]):
        if node.op is not Op.BUFFER or node.arg.data is not None:
            continue
        if node.arg.name in given:
            buffers[node.arg] = given[node.arg.name]
        elif node.arg.kind == "state":
            buffers[node.arg] = np.zeros(node.shape, node.dtype.np)
    return interp.evaluate([t.node for t in tensors], buffers)


def rounds_once(method: F) -> F:
    """Return a method that computes fp16 tensors in float32 and rounds its result once.

    Without this, fp16 sums would overflow at 65504. With a wider operand, the result has the wider
    type.
    """

    @wraps(method)
    def wide(*given: Any, **named: Any) -> Any:
        tensors = [v for v in (*given, *named.values()) if isinstance(v, TensorCore)]
        floats = {t.dtype for t in tensors if t.dtype.is_float}
        if dt.float16 not in floats:
            return method(*given, **named)
        result = method(*map(_widened, given), **{k: _widened(v) for k, v in named.items()})
        return result.as_half() if floats == {dt.float16} else result

    return wide  # type: ignore[return-value]  # it takes and returns what the method does


def _widened(value: Any) -> Any:
    is_half = isinstance(value, TensorCore) and value.dtype is dt.float16
    return value.cast(dt.float32) if is_half else value
