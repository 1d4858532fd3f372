"""NodeContext: what a translator sees of one ONNX node.

Values are either arrays, known while importing, or Tensors, known at run time. A translator asks
for the kind it needs: `tensor` always succeeds, `const` only for what is known while importing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from scheduler.errors import ModelError
from scheduler.tensor import Tensor

Array = NDArray[Any]
Value = Tensor | Array


@dataclass(frozen=True, slots=True)
class NodeContext:
    """One node with its inputs resolved.

    Attributes:
        node: the ONNX node.
        opset: version of its domain.
        inputs: values; None for an optional input that is left out.
        tensors: constants already turned into Tensors, by name, shared by the whole import.
    """

    node: onnx.NodeProto
    opset: int
    inputs: tuple[Value | None, ...]
    tensors: dict[str, Tensor] = field(repr=False)

    @property
    def count(self) -> int:
        """Number of inputs, trailing optional ones included as written."""
        return len(self.inputs)

    @property
    def outputs(self) -> int:
        """Number of outputs that are asked for (up to the last named one)."""
        names = list(self.node.output)
        while names and not names[-1]:
            names.pop()
        return len(names)

    def has(self, index: int) -> bool:
        """Return whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def value(self, index: int) -> Value:
        """Return input `index`, whichever kind it is.

        Raises:
            ModelError: it is left out.
        """
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise ModelError(f"input {index} is required but left out")
        return found

    def tensor(self, index: int) -> Tensor:
        """Return input `index` as a Tensor; a constant becomes one weight for all its readers."""
        found = self.value(index)
        if isinstance(found, Tensor):
            return found
        name = self.node.input[index]
        if name not in self.tensors:
            self.tensors[name] = as_tensor(found)
        return self.tensors[name]

    def const(self, index: int, what: str) -> Array:
        """Return input `index` as an array.

        Args:
            index: of the input.
            what: the input's role, for the message.

        Raises:
            ModelError: it is left out or depends on run-time data.
        """
        found = self.value(index)
        if isinstance(found, Tensor):
            raise ModelError(
                f'its {what} ("{self.node.input[index]}") depends on run-time data; expected a '
                "constant: export the model with fixed shapes"
            )
        return found

    def ints(self, index: int, what: str) -> list[int]:
        """Return input `index` as a list of ints (a shape, axes, pads); a scalar gives one."""
        return [int(v) for v in self.const(index, what).reshape(-1)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value (int, float, str, list, TensorProto) or the default."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def number(self, name: str, default: float) -> float:
        """Return a float attribute or the default."""
        return float(self.attribute(name, default))

    def integer(self, name: str, default: int) -> int:
        """Return an int attribute or the default."""
        return int(self.attribute(name, default))

    def text(self, name: str, default: str) -> str:
        """Return a string attribute or the default."""
        return str(self.attribute(name, default))

    def ints_attribute(self, name: str) -> list[int] | None:
        """Return a list-of-ints attribute, None if it is not there."""
        value = self.attribute(name)
        return None if value is None else [int(v) for v in value]

    def ints_either(self, name: str, index: int, since: int) -> list[int] | None:
        """Return ints: attribute `name` before opset `since`, input `index` from it on."""
        if self.opset < since:
            return self.ints_attribute(name)
        return self.ints(index, name) if self.has(index) else None


def as_tensor(value: Value) -> Tensor:
    """Return a value as a Tensor: a scalar, repeated or not, as a constant, others as a weight."""
    if isinstance(value, Tensor):
        return value
    if value.size and all(
        n == 1 or s == 0 for n, s in zip(value.shape, value.strides, strict=True)
    ):
        return Tensor.weight(np.asarray(value.flat[0])).broadcast_to(value.shape)
    return Tensor.weight(np.ascontiguousarray(value))


def normal_axis(axis: int, ndim: int) -> int:
    """Return a non-negative axis.

    Raises:
        ModelError: the axis is outside [-ndim, ndim).
    """
    if not -ndim <= axis < ndim:
        raise ModelError(f"axis {axis} is out of range for a tensor of {ndim} axes")
    return axis % ndim


def normal_axes(axes: Sequence[int], ndim: int) -> list[int]:
    """Return non-negative, distinct axes in the given order.

    Raises:
        ModelError: an axis is out of range or named twice.
    """
    normal = [normal_axis(a, ndim) for a in axes]
    if len(set(normal)) != len(normal):
        raise ModelError(f"axes {list(axes)} name an axis twice")
    return normal
