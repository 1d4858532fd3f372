"""TensorValues adds scheduling, pinning and computing of values on an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from numpy.typing import NDArray

from scheduler.errors import ModelError
from scheduler.pipeline import Schedule
from scheduler.tensor import realize as running
from scheduler.tensor.assign import TensorAssign
from scheduler.tensor.eager_plan import make_plan, unbound
from scheduler.tensor.pin import pin


class TensorValues(TensorAssign):
    """From graphs to values, on an OpenCL device."""

    __slots__ = ()

    def schedule(self, *more: TensorAssign) -> Schedule:
        """Return what realizing these tensors together would run; nothing runs, nothing changes.

        Views of buffers, constants and values that were computed before need no kernel.

        Raises:
            SchedulerError: a value cannot be compiled.
        """
        return make_plan([self.node, *(t.node for t in more)]).schedule()

    def kernelize(self, *more: TensorAssign) -> Self:
        """Pin the kernel boundaries of these tensors without running anything; return this tensor.

        What the compiler would store becomes ASSIGN(BUFFER, value) in every tensor that contains
        it, and is loaded, never computed again, by what is built on it later.
        """
        pin([self.node, *(t.node for t in more)])
        return self

    def realize(self, *more: TensorAssign) -> Self:
        """Compute these tensors together; afterwards they are buffers, or views of buffers.

        Raises:
            SchedulerError: a value cannot be compiled, or depends on an input without a value.
            RuntimeFault: there is no device.
        """
        running.realize([self.node, *(t.node for t in more)])
        return self

    def numpy(self, inputs: Mapping[str, NDArray[Any]] | None = None) -> NDArray[Any]:
        """Return the values, computed on an OpenCL device.

        A tensor of realized buffers is realized by this. One that reads inputs or states is
        compiled and run once, and stays as it is.

        Args:
            inputs: values of input buffers by name; states are zeros.

        Raises:
            SchedulerError: it cannot be compiled.
            RuntimeFault: there is no device, or an input does not fit.
        """
        if inputs or unbound([self.node]):
            return running.run([self.node], inputs)[0]
        self.realize()
        return running.values_of(self.node)

    def item(self) -> Any:
        """Return the value of a tensor of one element as a Python scalar.

        Raises:
            ModelError: there is not exactly one.
        """
        if self.size != 1:
            raise ModelError(f"item: expected one element, found {self!r}")
        return self.numpy().item()

    def tolist(self) -> Any:
        """Return the values as nested lists of Python scalars."""
        return self.numpy().tolist()
