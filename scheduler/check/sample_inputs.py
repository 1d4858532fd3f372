"""Creates seeded random inputs for a model, by element type.

floats                     standard normal, rounded to the type; or special values
                           (`special_floats`)
bool                       even odds
8 bits and fewer           the whole range of the type, as for images and quantized values
wider integers             0 to 15
integers that pick rows    less than the number of rows: inputs that reach the indices of Gather,
                           GatherElements, GatherND, ScatterElements, ScatterND, TensorScatter,
                           OneHot or the labels of a loss through casts, movement and Where
integers to divide by      never 0: inputs that reach the divisor of Div or Mod in this way
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.element_types import CARRIED
from scheduler.onnx_import.importer import infer

# --- Special values, which expose errors that random noise does not ----------------------------
#
#     GRID       integers, halves and zeros of both signs, in units of the model's own constants.
#                Floor(x / 41), for example, is most sensitive to errors if x is a multiple of 41:
#                there a quotient that is slightly too small is off by 1
#     EXTREME    the largest and smallest floats, and floats so large that they have no fraction
#     INFINITE   infinities among standard normals

# The largest multiple of a unit. Sums of products stay as well conditioned as with noise.
MOST_STEPS = 16
# The share of values that are halfway between two multiples.
HALVES = 1 / 4
# The range of units. Constants outside are epsilons, or substitutes for infinity in a mask.
UNITS = (2.0**-10, 2.0**10)
# Maximum number of units, chosen by hand. Each row of an input has one, so each must get enough
# rows.
MOST_UNITS = 8
# Constants with more elements than this are tables or weights, not units.
MOST_NUMBERS = 4
# Share of zeros in GRID and of infinities in INFINITE, chosen by hand.
ZEROS = 1 / 8
INFINITIES = 1 / 16
# GRID has as many sets of inputs as give this number of values, within the limits (min, max).
GRID_VALUES, GRID_SETS = 4096, (2, 8)
# Operators that sum products. Their translators add the terms one by one, so the imported graph
# does not show it.
_WEIGHS = frozenset({"Resize", "Upsample"})
# Operations of the largest model that gets EXTREME and INFINITE. In larger models infinities spread
# everywhere, and the evaluation in float64 takes long.
MOST_FLOPS = 1_000_000_000

_FLOAT = np.finfo(np.float32)
# Rounding, fp16 and conversions have their limits at powers of two.
_EXTREMES = (
    *(float(_FLOAT.max), float(_FLOAT.max) / 2, 1e30, 1e-30, float(_FLOAT.tiny)),
    *(2.0**23 - 0.5, 2.0**23 + 1, 2.0**24 + 2, 2.0**31, 2.0**32, 2.0**63),
)


class Kind(Enum):
    """The kind of floats in a set of inputs; the values are display names."""

    NORMAL = "standard normals"
    GRID = "whole numbers and halves"
    EXTREME = "extreme values"
    INFINITE = "infinities"


def units_of(model: OnnxModel) -> tuple[float, ...]:
    """Return 1 and a model's small constants, such as scales, each with its reciprocal."""
    units = [1.0]
    for array in (*model.constants.values(), *_constant_nodes(model)):
        if array.dtype.kind == "f" and 0 < array.size <= MOST_NUMBERS:
            for number in np.abs(array.astype(np.float64)).reshape(-1).tolist():
                units += [number, 1 / number] if number else []
    known = dict.fromkeys(unit for unit in units if UNITS[0] <= unit <= UNITS[1])
    return tuple(known)[:MOST_UNITS]


def _constant_nodes(model: OnnxModel) -> Iterator[Array]:
    for node in model.proto.graph.node:
        for attribute in node.attribute if node.op_type == "Constant" else ():
            if attribute.name == "value":
                yield numpy_helper.to_array(attribute.t)
            elif attribute.name in ("value_float", "value_floats"):
                yield np.array(attribute.floats or [attribute.f])


def special_floats(
    kind: Kind, shape: Sequence[int], units: Sequence[float], rng: np.random.Generator
) -> Array:
    """Return float64 values of a kind. In GRID, each row has one random unit from `units`."""
    noise = rng.standard_normal(tuple(shape))
    if kind is Kind.GRID:
        rows = (*shape[:-1], 1) if len(shape) > 1 else tuple(shape)
        steps = rng.integers(-MOST_STEPS, MOST_STEPS + 1, noise.shape) + 0.0
        steps = np.where(rng.random(noise.shape) < HALVES, steps + 0.5, steps)
        values = steps * rng.choice(np.asarray(units), rows)
        zeros = rng.choice(np.array([0.0, -0.0]), values.shape)
        return np.asarray(np.where(rng.random(values.shape) < ZEROS, zeros, values))
    if kind is Kind.EXTREME:
        special = rng.choice(np.asarray(_EXTREMES), noise.shape)
        special = np.copysign(special, noise)
        return np.where(rng.random(noise.shape) < 1 / 2, special, noise)
    if kind is Kind.INFINITE:
        chosen = rng.random(noise.shape) < INFINITIES
        chosen.reshape(-1)[:2] = True
        return np.where(chosen, np.copysign(np.inf, noise), noise)
    return noise


def sets_of(kind: Kind, values: int) -> int:
    """Return the number of input sets of a kind for a model with `values` input values."""
    if kind is Kind.GRID:
        return int(np.clip(GRID_VALUES // max(values, 1), *GRID_SETS))
    return 1


def unsuited(
    kind: Kind, operators: Collection[str], outputs: Iterable[Node], *, half: bool, flops: int
) -> str:
    """Return the reason not to give a model a kind of inputs, or "" (docs/numerics.md).

    `operators` are the ONNX types of its nodes, `outputs` the nodes of the imported model's
    outputs, `flops` the operations of the program; `half` tells whether it stores fp16.
    """
    nodes = toposort(list(outputs))
    if kind is Kind.GRID and any(map(_is_power_of_integers, nodes)):
        return "fractional powers of integers are computed in float32"
    if kind in (Kind.NORMAL, Kind.GRID):
        return ""
    if flops > MOST_FLOPS:
        return "in a network of this size they spread everywhere"
    if any(node.op is Op.CUSTOM for node in nodes):
        return "sorting and scattering do not define their result"
    if any(_drops_fraction(node) for node in nodes):
        return "their conversion to integers is undefined"
    if kind is Kind.INFINITE:
        is_weighted = any(_sums_products(node) for node in nodes) or _WEIGHS & set(operators)
        return "sums of products may skip terms with 0" if is_weighted else ""
    if "Mod" in operators:
        return "Mod is exact for quotients below 2^24"
    if half:
        return "fp16 ends at 65504"
    if any(map(_sums, nodes)):
        return "overflow depends on summation order"
    return ""


def _drops_fraction(node: Node) -> bool:
    return node.op is Op.CAST and node.dtype.is_int and node.src[0].dtype.is_float


def _is_power_of_integers(node: Node) -> bool:
    if node.op is not Op.POW:
        return False
    base = node.src[0]
    while base.op in MOVEMENT:
        base = base.src[0]
    return base.op is Op.CAST and base.src[0].dtype.is_int


def _sums(node: Node) -> bool:
    if node.op in (Op.ADD, Op.SUB):
        return not any(_is_known(operand) for operand in node.src)
    return node.op is Op.REDUCE and node.arg[0] in (Op.ADD, Op.MUL)


def _is_known(node: Node) -> bool:
    while node.op in MOVEMENT or node.op is Op.CAST:
        node = node.src[0]
    return node.op is Op.CONST or (node.op is Op.BUFFER and node.arg.kind != "input")


def _sums_products(node: Node) -> bool:
    if node.op is not Op.REDUCE or node.arg[0] is not Op.ADD:
        return False
    summed = node.src[0]
    while summed.op in MOVEMENT or summed.op is Op.CAST:
        summed = summed.src[0]
    return summed.op is Op.MUL


Array = NDArray[Any]
Shape = tuple[int, ...]

# Integers of 16 bits and more are below this, so that small products do not wrap. Chosen by hand.
SMALL_INTEGERS = 16
# Operators that pass the values of an input on unchanged.
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
    """Return an array for each input, in the model's element type (including bfloat16).

    `shapes` have bound symbolic dimensions; inputs without a shape are left out. `kind` applies to
    floats.
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
    """Return whether an ONNX element type is a float type of any width."""
    carried = CARRIED.get(code)
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    return dtype.kind == "f" or (carried is not None and carried.format is not None)


def _floats(code: int, values: Array) -> Array:
    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(code))
    with np.errstate(over="ignore"):
        return np.asarray(values.astype(np.float32).astype(dtype))


def _values(code: int, shape: Shape, limit: int | None, rng: np.random.Generator) -> Array:
    """Return random integers or bools; `limit` is the number of rows they pick from, if any."""
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
    """The roles of integer inputs."""

    limits: dict[str, int]  # number of rows that each input picks from, by name
    divisors: frozenset[str]  # names of inputs that are used as divisors


def integer_roles(model: OnnxModel, shapes: Mapping[str, Shape]) -> Roles:
    """Return which integer inputs of the main graph are indices, and which are divisors.

    Follows each input through operators that pass its values on, to the operators that use them.
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
    """Return the smallest axis that GatherND or ScatterND indices address, None if unknown."""
    data, indices = shapes.get(node.input[0]), shapes.get(node.input[1])
    batch = _attribute(node, "batch_dims", 0)
    if not data or not indices:
        return None
    return min(data[batch : batch + indices[-1]], default=None)


def _depth(node: onnx.NodeProto, _: Mapping[str, Sequence[int]], model: OnnxModel) -> int | None:
    depth = model.constants.get(node.input[1])
    return None if depth is None or depth.size != 1 else int(depth.reshape(-1)[0])


# Operator -> position of its index input, and a function that returns the number of rows.
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
