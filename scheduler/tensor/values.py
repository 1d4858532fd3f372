"""TensorValues adds scheduling, pinning and computing of values on an OpenCL device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from numpy.typing import NDArray

from scheduler.context import CompileContext, context_for
from scheduler.emit.schedule import Schedule
from scheduler.errors import ModelError
from scheduler.tensor import realize as running
from scheduler.tensor.assign import TensorAssign
from scheduler.tensor.eager_plan import make_plan, unbound
from scheduler.tensor.pin import pin
from scheduler.tensor.session import SESSION


class TensorValues(TensorAssign):
    """From graphs to values, on an OpenCL device."""

    __slots__ = ()

    def schedule(self, *more: TensorAssign, context: CompileContext | None = None) -> Schedule:
        """Return what realizing these tensors together would run; nothing runs, nothing changes.

        Views of buffers, constants and values that were computed before need no kernel. What was
        made before is returned again if the very same nodes are asked for.

        Args:
            more: other tensors.
            context: what to compile for; by default the row `cpu` with the environment's flags.

        Raises:
            SchedulerError: a value cannot be compiled.
        """
        context = context or context_for()
        plan = make_plan([self.node, *(t.node for t in more)], context.flags)
        return SESSION.schedules.schedule(plan.graph, context)

    def kernelize(self, *more: TensorAssign, context: CompileContext | None = None) -> Self:
        """Pin the kernel boundaries of these tensors without running anything; return this tensor.

        What the compiler would store becomes ASSIGN(BUFFER, value) in every tensor that contains
        it, and is loaded, never computed again, by what is built on it later.

        Args:
            more: other tensors.
            context: as for `schedule`.
        """
        pin([self.node, *(t.node for t in more)], context or context_for())
        return self

    def realize(self, *more: TensorAssign, context: CompileContext | None = None) -> Self:
        """Compute these tensors together; afterwards they are buffers, or views of buffers.

        Args:
            more: other tensors.
            context: what to compile for; by default the device, with the environment's flags.

        Raises:
            SchedulerError: a value cannot be compiled, or depends on an input without a value.
            RuntimeFault: there is no device.
        """
        running.realize([self.node, *(t.node for t in more)], context=context)
        return self

    def numpy(
        self,
        inputs: Mapping[str, NDArray[Any]] | None = None,
        context: CompileContext | None = None,
    ) -> NDArray[Any]:
        """Return the values, computed on an OpenCL device.

        A tensor of realized buffers is realized by this. One that reads inputs or states is
        compiled and run once, and stays as it is.

        Args:
            inputs: values of input buffers by name; states are zeros.
            context: as for `realize`.

        Raises:
            SchedulerError: it cannot be compiled.
            RuntimeFault: there is no device, or an input does not fit.
        """
        if inputs or unbound([self.node]):
            return running.run([self.node], inputs, context=context)[0]
        self.realize(context=context)
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
