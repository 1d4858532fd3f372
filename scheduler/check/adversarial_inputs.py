"""Inputs of special values, which show wrong programs that agree with a reference on noise.

    GRID       whole numbers and halves, zeros of both signs, in units of the model's own
               constants: x / 41 is a whole number where x is a multiple of 41, and only there is
               Floor of it wrong by 1 if it is a little too small
    EXTREME    the largest and the smallest numbers, and where floats have no fractions any more
    INFINITE   infinities among standard normals

Called by `sample_inputs`; `runs` decides which of them a model is given.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from scheduler.ir.node import Node, toposort
from scheduler.ir.ops import MOVEMENT, Op
from scheduler.onnx_import import OnnxModel

Array = NDArray[Any]

# Up to this many units: sums of products stay as well conditioned as those of noise.
MOST_STEPS = 16
# Of these, so many lie halfway between two.
HALVES = 1 / 4
# A constant beyond is no unit: an epsilon, or what stands for infinity in a mask.
UNITS = (2.0**-10, 2.0**10)
# Each row of an input has one unit; more of them would each be tried on few rows. By hand.
MOST_UNITS = 8
# Tables and weights are no units either.
MOST_NUMBERS = 4
# Shares of zeros among GRID and of infinities among INFINITE, chosen by hand.
ZEROS = 1 / 8
INFINITIES = 1 / 16
# Models with small inputs are given more sets, until so many values were tried: at least and at
# most so many sets.
GRID_VALUES, GRID_SETS = 4096, (2, 8)
# Their results are sums of products too, written one by one.
_WEIGHS = frozenset({"Resize", "Upsample"})
# Above, a model meets its infinities everywhere, and float64 takes long to say so.
MOST_FLOPS = 1_000_000_000

_FLOAT = np.finfo(np.float32)
# Rounding, halves and conversions have their borders at the powers of two.
_EXTREMES = (
    *(float(_FLOAT.max), float(_FLOAT.max) / 2, 1e30, 1e-30, float(_FLOAT.tiny)),
    *(2.0**23 - 0.5, 2.0**23 + 1, 2.0**24 + 2, 2.0**31, 2.0**32, 2.0**63),
)


class Kind(Enum):
    """The kind of floats in a set of inputs; the value is for people."""

    NORMAL = "standard normals"
    GRID = "whole numbers and halves"
    EXTREME = "extreme values"
    INFINITE = "infinities"


def units_of(model: OnnxModel) -> tuple[float, ...]:
    """Return 1, and the small constants of a model, with their reciprocals: scales, thresholds."""
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
    """Return float64 values of a kind, to be rounded to the type of an input.

    Of GRID each row has one of the units, see `units_of`.
    """
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
    """Return how many sets of a kind a model is given, by how many values its inputs have."""
    if kind is Kind.GRID:
        return int(np.clip(GRID_VALUES // max(values, 1), *GRID_SETS))
    return 1


def unsuited(
    kind: Kind, operators: Collection[str], outputs: Iterable[Node], *, half: bool, flops: int
) -> str:
    """Return why a model is not given a kind of inputs; "" if it is (docs/numerics.md).

    Args:
        kind: which.
        operators: ONNX types of its nodes.
        outputs: of the model as it was imported.
        half: whether it stores halves.
        flops: operations of the program.
    """
    nodes = toposort(list(outputs))
    if kind is Kind.GRID and any(map(_is_power_of_integers, nodes)):
        return "powers of integers that are not whole go through float32"
    if kind in (Kind.NORMAL, Kind.GRID):
        return ""
    if flops > MOST_FLOPS:
        return "a network of this size meets them everywhere"
    if any(node.op is Op.CUSTOM for node in nodes):
        return "sorting and scattering say nothing about them"
    if any(_drops_fraction(node) for node in nodes):
        return "what becomes an integer of them is not defined"
    if kind is Kind.INFINITE:
        is_weighted = any(_sums_products(node) for node in nodes) or _WEIGHS & set(operators)
        return "sums of products may leave out those with 0" if is_weighted else ""
    if "Mod" in operators:
        return "Mod is exact for quotients below 2^24"
    if half:
        return "halves end at 65504"
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
