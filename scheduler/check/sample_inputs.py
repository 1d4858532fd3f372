"""Seeded random inputs for a model, by element type.

    floats                     standard normal, rounded to the type; or special values
                               (`adversarial_inputs`)
    bool                       even odds
    8 bits and fewer           the whole range of the type: images, quantised values
    wider integers             0 to 15
    integers that pick rows    0 to the number of rows: inputs that reach the indices of Gather,
                               GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter,
                               OneHot or the labels of a loss through casts, movement and Where
    integers to divide by      never 0: those that reach the divisor of Div or Mod in this way

Called by `self_check`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from scheduler.check.adversarial_inputs import Kind, special_floats, units_of
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.element_types import CARRIED
from scheduler.onnx_import.inference import infer

Array = NDArray[Any]
Shape = tuple[int, ...]

# Integers of 16 bits and more are below this, so that products of a few do not wrap. By hand.
SMALL_INTEGERS = 16
# What leaves the values of an input as they are.
_PASSES = frozenset(
    {"Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze"}
    | {"Tile", "Transpose", "Unsqueeze", "Where"}
)
_DIVIDES = frozenset({"Div", "Mod"})


def sample_inputs(
    model: OnnxModel,
    shapes: Mapping[str, Shape],
    rng: np.random.Generator,
    kind: Kind = Kind.NORMAL,
) -> dict[str, Array]:
    """Return an array for each input, in the element type of the model (bfloat16, ... too).

    Args:
        model: whose inputs they are.
        shapes: of the inputs, by name, symbolic dimensions bound; inputs not named are left out.
        rng: where values come from.
        kind: what floats are.
    """
    units = units_of(model) if kind is Kind.GRID else ()
    roles = integer_roles(model, shapes)
    made = {}
    for value in model.inputs:
        if value.name in shapes:
            code, shape = value.type.tensor_type.elem_type, shapes[value.name]
            if is_float(code):
                made[value.name] = _floats(code, special_floats(kind, shape, units, rng))
                continue
            array = _values(code, shape, roles.limits.get(value.name), rng)
            if value.name in roles.divisors:
                array = np.where(array == 0, 1, array).astype(array.dtype)
            made[value.name] = array
    return made


def is_float(code: int) -> bool:
    """Tell whether an element type of ONNX is one of floats, of any width."""
    carried = CARRIED.get(code)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    return dtype.kind == "f" or (carried is not None and carried.format is not None)


def _floats(code: int, values: Array) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(np.float32).astype(dtype))


def _values(code: int, shape: Shape, limit: int | None, rng: np.random.Generator) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    carried = CARRIED.get(code)
    if dtype == np.bool_:
        return rng.integers(0, 2, shape).astype(np.bool_)
    if limit is not None:
        return rng.integers(0, max(limit, 1), shape).astype(dtype)
    if carried is not None:
        low = 0 if carried.carrier.is_unsigned else -(1 << carried.bits - 1)
        return rng.integers(low, low + (1 << carried.bits), shape).astype(dtype)
    if dtype.itemsize > 1:
        return rng.integers(0, SMALL_INTEGERS, shape).astype(dtype)
    info = np.iinfo(dtype)
    return rng.integers(info.min, int(info.max) + 1, shape).astype(dtype)


@dataclass(frozen=True, slots=True)
class Roles:
    """The roles of integer inputs.

    Attributes:
        limits: input name -> how many rows it picks from.
        divisors: inputs that something is divided by.
    """

    limits: dict[str, int]
    divisors: frozenset[str]


def integer_roles(model: OnnxModel, shapes: Mapping[str, Shape]) -> Roles:
    """Return which integer inputs are indices, and which are divisors.

    Only the main graph is looked at: what goes into the bodies of loops keeps small values.
    """
    integers = {v.name for v in model.inputs if _is_integer(v)}
    if not integers:
        return Roles({}, frozenset())
    known = {name: array.shape for name, array in model.constants.items()}
    known |= {name: shape for name, (shape, _) in infer(model, shapes).items()}
    known |= shapes
    sources: dict[str, frozenset[str]] = {name: frozenset({name}) for name in integers}
    limits: dict[str, int] = {}
    divisors: frozenset[str] = frozenset()
    for node in model.proto.graph.node:
        reached = [sources.get(name, frozenset[str]()) for name in node.input]
        index, rows = _PICKS.get(node.op_type, (len(reached), None))
        count = rows(node, known, model) if rows and index < len(reached) else None
        for name in reached[index] if count is not None else ():
            limits[name] = min(limits.get(name, count or 0), count or 0)
        if node.op_type in _DIVIDES and len(reached) > 1:
            divisors |= reached[1]
        if node.op_type in _PASSES:
            sources |= dict.fromkeys(node.output, frozenset[str]().union(*reached))
    return Roles(limits, divisors)


def _is_integer(value: onnx.ValueInfoProto) -> bool:
    code = value.type.tensor_type.elem_type
    return code not in CARRIED and np.dtype(helper.tensor_dtype_to_np_dtype(code)).kind in "iu"


Rows = Callable[[onnx.NodeProto, Mapping[str, Sequence[int]], OnnxModel], int | None]


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(a.i) for a in node.attribute if a.name == name), default)


def _along_axis(default: int) -> Rows:
    def rows(node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]], _: OnnxModel) -> int | None:
        shape = shapes.get(node.input[0])
        axis = _attribute(node, "axis", default)
        return shape[axis] if shape and -len(shape) <= axis < len(shape) else None

    return rows


def _leading(node: onnx.NodeProto, shapes: Mapping[str, Sequence[int]], _: OnnxModel) -> int | None:
    """The last axis of the indices counts how many axes of the data they address."""
    data, indices = shapes.get(node.input[0]), shapes.get(node.input[1])
    batch = _attribute(node, "batch_dims", 0)
    if not data or not indices:
        return None
    return min(data[batch : batch + indices[-1]], default=None)


def _depth(node: onnx.NodeProto, _: Mapping[str, Sequence[int]], model: OnnxModel) -> int | None:
    depth = model.constants.get(node.input[1])
    return None if depth is None or depth.size != 1 else int(depth.reshape(-1)[0])


# Operator -> which input is the indices, and how many rows they pick from.
_PICKS: Mapping[str, tuple[int, Rows]] = {
    "Gather": (1, _along_axis(0)),
    "GatherElements": (1, _along_axis(0)),
    "GatherND": (1, _leading),
    "NegativeLogLikelihoodLoss": (1, _along_axis(1)),
    "OneHot": (0, _depth),
    "Scatter": (1, _along_axis(0)),
    "ScatterElements": (1, _along_axis(0)),
    "ScatterND": (1, _leading),
    "SoftmaxCrossEntropyLoss": (1, _along_axis(1)),
    "TensorScatter": (2, _along_axis(-2)),
}
