"""TensorProtocols adds what Python and numpy ask of a sequence, a number and an array.

    len(t), t[i], for row in t, 3 in t          a sequence of rows
    float(t), int(t), bool(t), f"{t:.3f}"       a number, where there is one element
    np.asarray(t), np.sum(t), np.from_dlpack(t) an array: values are computed, numpy does the rest

Operators between a tensor and numpy's objects, on either side, make tensors. A value that depends
on an input refuses to be a number, and no tensor is a size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from scheduler.errors import TensorCopyError, TensorTypeError
from scheduler.ir.node import is_weight
from scheduler.tensor import realize as running
from scheduler.tensor.eager_plan import unbound
from scheduler.tensor.values import TensorValues

# DLDeviceType of host memory, and the only device of that type (dlpack.h).
_DLPACK_HOST = (1, 0)


class TensorProtocols(TensorValues):
    """The special methods that let a tensor stand where Python and numpy expect theirs."""

    __slots__ = ()

    # --- a sequence of rows -------------------------------------------------------------------

    def __len__(self) -> int:
        if not self.shape:
            raise TensorTypeError(f"len: {self!r} has no axes")
        return self.shape[0]

    def __iter__(self) -> Iterator[Self]:
        if not self.shape:
            raise TensorTypeError(f"iteration: {self!r} has no axes")
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: object) -> bool:
        return (value.numpy() if isinstance(value, TensorValues) else value) in self.numpy()

    # --- a number -----------------------------------------------------------------------------

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
        """Return the value of the only element; raise TensorTypeError if there is none."""
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

    # --- an array -----------------------------------------------------------------------------

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the values as numpy's protocol has it, for the caller to change.

        With `copy` False it is a view that cannot be written to. Raises TensorCopyError if there is
        none in this type.
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
        """Run a function of numpy on the values of all tensors among its arguments."""
        if not all(issubclass(kind, TensorValues | np.ndarray) for kind in types):
            return NotImplemented
        return function(*_as_arrays(tuple(args)), **_as_arrays(kwargs))

    def __dlpack_device__(self) -> tuple[int, int]:
        return _DLPACK_HOST

    def __dlpack__(self, *, copy: bool | None = None, **options: Any) -> Any:
        """Return the values, in host memory, as a capsule; `options` as numpy takes them.

        Raises TensorCopyError if `copy` is False, and no array holds these values.
        """
        given = {name: value for name, value in options.items() if value is not None}
        return np.asarray(self, copy=False if copy is False else None).__dlpack__(**given)

    # --- an object ----------------------------------------------------------------------------

    def __copy__(self) -> Self:
        return self.view_as(self.node)

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.clone()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the values: graphs share their nodes with the process that made them.

        Raises TensorTypeError if they depend on what a program is given; compile it to an artifact.
        """
        missing = unbound([self.node])
        if missing:
            raise TensorTypeError(
                f"{self!r} has no values to pickle before {missing[0]} is given; an artifact keeps "
                "graphs"
            )
        device = self.device
        return _restore, (type(self), self.numpy(), is_weight(self.node), device)

    # --- operators that only Python's own syntax reaches --------------------------------------

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


def _restore(kind: type[Any], values: NDArray[Any], is_constant: bool, device: str) -> Any:
    """Make a tensor again from what `__reduce__` kept of it."""
    return kind.weight(values) if is_constant else kind(values, device=device)


def _as_arrays(value: Any) -> Any:
    """Return arguments of a function with the values of tensors in their place."""
    if isinstance(value, TensorValues):
        return value.numpy()
    if isinstance(value, list | tuple):
        return type(value)(_as_arrays(item) for item in value)
    if isinstance(value, dict):
        return {name: _as_arrays(item) for name, item in value.items()}
    return value
