"""The interface between an ONNX node and its translator: inputs, attributes, opset.

A translator is a function that takes a `NodeContext` and returns the node's outputs. Each value is
an array if it is known at import, or a Tensor if it is computed at run time. `tensor` returns
either kind as a Tensor; `const` accepts only arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from scheduler.errors import DynamicInputError, ModelError
from scheduler.ir import dtype as dt
from scheduler.ir.node import toposort
from scheduler.ir.ops import Op
from scheduler.onnx_import.element_types import CARRIED, carried, graph_array, weight_of
from scheduler.onnx_import.files.tensor_data import tensor_array
from scheduler.tensor.tensor import Tensor

Array = NDArray[Any]
Value = Tensor | Array


@dataclass(frozen=True, slots=True)
class ValueList:
    """An ONNX sequence or optional, whose length is known at import."""

    values: tuple[AnyValue, ...]  # elements of a sequence in order; an optional has one or none


AnyValue = Value | ValueList


class GraphRunner(Protocol):
    """Translates a graph in an attribute of a node, such as a branch of `If`."""

    def __call__(
        self, graph: onnx.GraphProto, arguments: Sequence[AnyValue], name: str, /
    ) -> list[AnyValue]:
        """Return the outputs of a graph; `name` identifies it in messages ("iteration 3")."""


@dataclass(frozen=True, slots=True)
class NodeContext:
    """One node with the values of its inputs."""

    node: onnx.NodeProto  # the ONNX node
    opset: int  # version of the default operator domain
    inputs: tuple[AnyValue | None, ...]  # values; None for an optional input that is left out
    weights: WeightCache = field(repr=False)  # constants as Tensors, shared by the whole import
    # ONNX element types by value name, for values of a carried type (see `element_types`) only.
    types: Mapping[str, int] = field(repr=False)
    run_graph: GraphRunner = field(repr=False)  # translates the graphs among the attributes
    wide: bool = False  # whether fp16 inputs are converted to float32 (see `rounds_once`)

    @property
    def count(self) -> int:
        """Number of inputs, including those that are left out."""
        return len(self.inputs)

    @property
    def outputs(self) -> int:
        """Number of requested outputs, up to the last one with a name."""
        names = list(self.node.output)
        while names and not names[-1]:
            names.pop()
        return len(names)

    def has(self, index: int) -> bool:
        """Return whether input `index` is given."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def any_value(self, index: int) -> AnyValue:
        """Return input `index`, which can be a list; raise ModelError if it is left out."""
        found = self.inputs[index] if index < len(self.inputs) else None
        if found is None:
            raise ModelError(f"input {index} is required but left out")
        return found

    def value(self, index: int) -> Value:
        """Return input `index`, a Tensor or an array; raise ModelError if it is a list."""
        found = self._given(index)
        if not self.wide or found.dtype not in (dt.float16, np.float16):
            return found
        return found.float() if isinstance(found, Tensor) else found.astype(np.float32)

    def _given(self, index: int) -> Value:
        found = self.any_value(index)
        if isinstance(found, ValueList):
            raise ModelError(f"input {index} is a sequence or an optional; expected a tensor")
        return found

    def tensor(self, index: int) -> Tensor:
        """Return input `index` as a Tensor; all readers of a constant share one weight."""
        found = self._given(index)
        if not isinstance(found, Tensor):
            found = self.weights.of(found, self.element_type(index))
        return found.float() if self.wide and found.dtype is dt.float16 else found

    def element_type(self, index: int) -> int:
        """Return the ONNX element type of input `index`."""
        return self._type_of(self.node.input[index], self.value(index))

    def _type_of(self, name: str, value: Value) -> int:
        found = self.types.get(name)
        if found in CARRIED:
            return found
        dtype = value.dtype.np if isinstance(value, Tensor) else value.dtype
        return int(helper.np_dtype_to_tensor_dtype(dtype))

    def const(self, index: int, what: str) -> Array:
        """Return input `index` as an array; `what` is the input's role, for messages.

        Raises ModelError if it is left out, and DynamicInputError if it depends on run-time data.
        """
        found = self.value(index)
        if isinstance(found, Tensor):
            raise DynamicInputError(
                f'its {what} ("{self.node.input[index]}") depends on run-time data; expected a '
                "constant: export the model with fixed shapes",
                self.node.input[index],
                run_time_inputs(found),
            )
        return found

    def ints(self, index: int, what: str) -> list[int]:
        """Return constant input `index` (a shape, axes, pads) as a flat list of ints."""
        return [int(v) for v in self.const(index, what).reshape(-1)]

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute's value (int, float, str, list, TensorProto) or the default."""
        for attribute in self.node.attribute:
            if attribute.name == name:
                value = helper.get_attribute_value(attribute)
                return value.decode() if isinstance(value, bytes) else value
        return default

    def array_attribute(self, name: str) -> Array | None:
        """Return a tensor attribute in the type used in the graph, or None if it is missing."""
        value = self.attribute(name)
        return None if value is None else graph_array(tensor_array(value, f"its {name}"))

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
        """Return a list-of-ints attribute, or None if it is missing."""
        value = self.attribute(name)
        return None if value is None else [int(v) for v in value]

    def ints_either(self, name: str, index: int, since: int) -> list[int] | None:
        """Return ints from attribute `name`, or from input `index` since opset `since`."""
        if self.opset < since:
            return self.ints_attribute(name)
        return self.ints(index, name) if self.has(index) else None


def run_time_inputs(tensor: Tensor) -> tuple[str, ...]:
    """Return the names of the program inputs that a Tensor depends on, in graph order."""
    buffers = (node.arg for node in toposort([tensor.node]) if node.op is Op.BUFFER)
    return tuple(dict.fromkeys(b.name for b in buffers if b.kind == "input"))


class WeightCache:
    """Converts constant arrays to Tensors, with one Tensor for all readers of an array."""

    def __init__(self) -> None:
        # Keys contain the array's id, so the arrays are kept: ids of freed objects are reused.
        self._found: dict[tuple[int, int], tuple[Array, Tensor]] = {}

    def of(self, array: Array, code: int) -> Tensor:
        """Return the Tensor of a constant array; `code` is its ONNX element type."""
        key = id(array), code
        if key not in self._found:
            kind = carried(code)
            known = array.size > 1 and kind is not None
            made = weight_of(array, kind) if known and kind else as_tensor(array)
            self._found[key] = array, made
        return self._found[key][1]


def as_tensor(value: Value) -> Tensor:
    """Return a value as a Tensor; an array becomes a weight, stored once if it repeats a scalar."""
    if isinstance(value, Tensor):
        return value
    if value.size and all(
        n == 1 or s == 0 for n, s in zip(value.shape, value.strides, strict=True)
    ):
        return Tensor.weight(np.asarray(value.flat[0])).broadcast_to(value.shape)
    return Tensor.weight(np.asarray(value, order="C"))


def normal_axis(axis: int, ndim: int) -> int:
    """Return a non-negative axis; raise ModelError if the axis is outside [-ndim, ndim)."""
    if not -ndim <= axis < ndim:
        raise ModelError(f"axis {axis} is out of range for a tensor of {ndim} axes")
    return axis % ndim


def normal_axes(axes: Sequence[int], ndim: int) -> list[int]:
    """Return non-negative, distinct axes in the given order, or raise ModelError."""
    normal = [normal_axis(a, ndim) for a in axes]
    if len(set(normal)) != len(normal):
        raise ModelError(f"axes {list(axes)} name an axis twice")
    return normal


# --- fp16 operators that compute in float32 and round once, at the end ------------------------

Translator = Callable[[NodeContext], AnyValue | Sequence[AnyValue]]


def rounds_once(translator: Translator) -> Translator:
    """Return a translator that computes in float32 and rounds its results if input 0 is fp16."""

    def translate(ctx: NodeContext) -> AnyValue | Sequence[AnyValue]:
        if not is_half(ctx.any_value(0)):
            return translator(ctx)
        results = translator(replace(ctx, wide=True))
        if isinstance(results, Sequence):
            return [narrow(value) for value in results]
        return narrow(results)

    return translate


def is_half(value: AnyValue | None) -> bool:
    """Return whether a value is an fp16 tensor or array."""
    return isinstance(value, Tensor | np.ndarray) and value.dtype in (dt.float16, np.float16)


def wide(value: AnyValue | None) -> AnyValue | None:
    """Return fp16 values as float32, and other values unchanged."""
    if isinstance(value, Tensor):
        return value.float() if value.dtype is dt.float16 else value
    if isinstance(value, np.ndarray) and value.dtype == np.float16:
        return value.astype(np.float32)
    return value


def narrow(value: AnyValue) -> AnyValue:
    """Return float32 values as fp16, and other values unchanged."""
    if isinstance(value, Tensor):
        return value.as_half() if value.dtype is dt.float32 else value
    if isinstance(value, np.ndarray) and value.dtype == np.float32:
        return value.astype(np.float16)
    return value
