"""The reductions of scatter operators, for updates of one element: add, mul, max, min."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.errors import ModelError
from scheduler.ir.dtype import DType
from scheduler.ir.ops import Op, identity
from scheduler.tensor.tensor import Tensor


@dataclass(frozen=True, slots=True)
class Reduction:
    """A commutative reduction of updates into data."""

    op: Op

    def neutral(self, dtype: DType) -> float | int:
        """Return the value that changes nothing."""
        return identity(self.op, dtype)

    def over(self, x: Tensor, axis: int) -> Tensor:
        """Reduce an axis; the type stays."""
        total = {Op.ADD: x.sum, Op.MUL: x.prod, Op.MAX: x.max, Op.MIN: x.min}[self.op](axis)
        return total.as_type(x.dtype)

    def join(self, x: Tensor, y: Tensor) -> Tensor:
        """Combine two tensors of one shape."""
        return x.binary(self.op, y)


_BY_NAME = {"add": Op.ADD, "mul": Op.MUL, "max": Op.MAX, "min": Op.MIN}


def reduction_named(name: str) -> Reduction | None:
    """Return the reduction of an attribute's value, None for "none"."""
    if name != "none" and name not in _BY_NAME:
        raise ModelError(f"reduction must be none, add, mul, max or min, found {name!r}")
    return None if name == "none" else Reduction(_BY_NAME[name])
