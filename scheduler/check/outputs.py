"""Compares an output with a reference: the largest error, its position, and whether it is allowed.

The tolerance depends on the element type and on the coarsest rounding inside the model:

float32 and float64      the largest difference is at most 1e-4 of the largest reference value
fp16 storage, float16    2e-2
bfloat16                 1e-1; floats of 8 bits and fewer 3e-1
quantized at run time    5e-2, see `QUANTISED_TOLERANCE`
integers, bool           equal; 8-bit integers at most 1 apart, because a quantized value can round
                         the other way. One element in 1000 (fp16, quantized: one in 50) may differ
                         more, because rounding can change the result of a comparison
NaN, infinities          at the same positions

The reference is usually float32, too, and can itself be wrong. If a comparison fails, `Arbiter`
evaluates the model in float64 (`DoubleEvaluator`) and decides whether our result is good enough.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto

from scheduler.check.references import DoubleEvaluator
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel
from scheduler.onnx_import.files.graph_checks import all_nodes

Array = NDArray[Any]

# Tolerances as shares of the largest reference value, as in the table above (docs/numerics.md).
TOLERANCE = 1e-4
HALF_TOLERANCE = 2e-2
# Tolerance by the element type of an output. These types round coarsely themselves.
TOLERANCES: Mapping[str, float] = {"float16": HALF_TOLERANCE, "bfloat16": 1e-1}
TINY_FLOAT_TOLERANCE = 3e-1  # 8-bit floats: neighbors differ by up to a quarter of the value
# For values that are quantized at run time. A float near a rounding tie falls on either of two
# steps depending on its last bit. A step is 1/255 of a tensor's range, 4e-3, and steps accumulate
# in later layers: 2e-2 was seen in a trained network although each operation was correct.
QUANTISED_TOLERANCE = 5e-2
# Lower limit of the largest reference value, for outputs that are zero everywhere.
SMALLEST_PEAK = 1e-6


class Rounding(Enum):
    """The coarsest rounding inside a model; the values are display names."""

    FLOAT = "float32"
    HALF = "halves"
    QUANTISED = "8 bits while it runs"


_INSIDE = {
    Rounding.FLOAT: TOLERANCE,
    Rounding.HALF: HALF_TOLERANCE,
    Rounding.QUANTISED: QUANTISED_TOLERANCE,
}


@dataclass(frozen=True, slots=True)
class OutputCheck:
    """The comparison of an output with its reference, for one set of inputs."""

    name: str  # name of the output
    max_abs: float  # largest absolute difference
    # Largest difference as a share of the largest reference value. For integers, the share of
    # elements that differ by more than allowed.
    max_rel: float
    where: tuple[int, ...] | None  # index of the largest difference; None if there is none
    part: str  # name of the output slice that contains it, or ""
    tolerance: float  # upper limit for `max_rel`
    problem: str  # description of the failure, one clause; "" if the comparison passed
    # distances of our result and the reference from float64, or the reason why there are none
    note: str = ""

    @property
    def excess(self) -> float:
        """The difference in units of the tolerance; more than 1 is a failure."""
        return self.max_rel / self.tolerance + (1e9 if self.problem else 0.0)


def check_output(
    name: str,
    found: Array,
    expected: Array,
    *,
    rounding: Rounding = Rounding.FLOAT,
    slices: Mapping[str, tuple[int, int]] | None = None,
) -> OutputCheck:
    """Compare an output with its reference, given the model's coarsest rounding and its slices."""
    kind = "float" if is_float(expected.dtype) else expected.dtype.kind
    tolerance = tolerance_of(expected.dtype, rounding)
    if found.shape != expected.shape:
        problem = f"expected shape {list(expected.shape)}, found {list(found.shape)}"
        return OutputCheck(name, np.inf, np.inf, None, "", tolerance, problem)
    if found.dtype != expected.dtype:
        problem = f"expected {expected.dtype}, found {found.dtype}"
        return OutputCheck(name, np.inf, np.inf, None, "", tolerance, problem)
    if kind == "float":
        return _check_floats(name, found, expected, tolerance, slices or {})
    return _check_integers(name, found, expected, tolerance)


def check_parts(
    name: str, found: Array, expected: Array, slices: Mapping[str, tuple[int, int]]
) -> list[OutputCheck]:
    """Compare each named slice of the last axis, relative to the slice's own largest value.

    The result is informative and never reports a problem. It shows errors in slices of small
    values, which slices of large values hide in the whole output.
    """
    parts = []
    for part, (start, stop) in slices.items():
        ours, theirs = found[..., start:stop], expected[..., start:stop]
        check = check_output(f"{name}[{part}]", ours, theirs)
        where = check.where and (*check.where[:-1], check.where[-1] + start)
        parts.append(replace(check, where=where, problem=""))
    return parts


def _check_floats(
    name: str,
    found: Array,
    expected: Array,
    tolerance: float,
    slices: Mapping[str, tuple[int, int]],
) -> OutputCheck:
    """Compare floats: special values by position, all others relative to the largest value."""
    with np.errstate(all="ignore"):
        ours, theirs = found.astype(np.float64), expected.astype(np.float64)
        finite = np.isfinite(theirs)
        same = np.where(finite, True, (ours == theirs) | (np.isnan(ours) & np.isnan(theirs)))
        same &= np.isfinite(ours) | ~finite
        difference = np.where(finite & np.isfinite(ours), np.abs(ours - theirs), 0.0)
    peak = max(float(np.abs(theirs[finite]).max(initial=0.0)), SMALLEST_PEAK)
    worst = float(difference.max(initial=0.0))
    relative = worst / peak
    problem = ""
    where = _position(difference) if worst else None
    if not same.all():
        where = _position(~same)
        counts = f"{_special(theirs)} in the reference, {_special(ours)} found"
        problem = f"NaN or infinity at different positions: {counts}"
    elif relative > tolerance:
        problem = f"{relative:.1e} of the largest value {peak:.3g} off, expected {tolerance:.0e}"
    return OutputCheck(name, worst, relative, where, _part(where, slices), tolerance, problem)


def _check_integers(name: str, found: Array, expected: Array, share: float) -> OutputCheck:
    """Compare integers; at most `share` of the elements may differ."""
    ours, theirs = found.astype(np.int64), expected.astype(np.int64)
    difference = np.abs(ours - theirs)
    worst = int(difference.max(initial=0))
    small = expected.dtype.kind != "b" and expected.dtype.itemsize == 1
    wrong = int((difference > (1 if small else 0)).sum())
    off = wrong / max(1, expected.size)
    problem = f"{wrong} of {expected.size} elements differ" if off > share else ""
    where = _position(difference) if worst else None
    return OutputCheck(name, worst, off, where, "", share, problem)


def tolerance_of(dtype: np.dtype[Any], rounding: Rounding) -> float:
    """Return the upper limit of `OutputCheck.max_rel` for an output of an element type."""
    if not is_float(dtype):
        return 1 / 1000 if rounding is Rounding.FLOAT else 1 / 50
    if dtype.itemsize == 1:
        return TINY_FLOAT_TOLERANCE
    return max(TOLERANCES.get(dtype.name, TOLERANCE), _INSIDE[rounding])


def is_float(dtype: np.dtype[Any]) -> bool:
    """Return whether an element type is a float type; numpy reports some of them as void."""
    return dtype.kind == "f" or "float" in dtype.name


def _position(values: Array) -> tuple[int, ...]:
    return tuple(int(i) for i in np.unravel_index(int(values.argmax()), values.shape))


def _part(where: tuple[int, ...] | None, slices: Mapping[str, tuple[int, int]]) -> str:
    if not where:
        return ""
    # Slices can overlap; the shortest one is the most specific.
    inside = {n: stop - start for n, (start, stop) in slices.items() if start <= where[-1] < stop}
    return min(inside, key=lambda n: inside[n], default="")


def _special(values: Array) -> str:
    return f"{int(np.isnan(values).sum())} NaN and {int(np.isinf(values).sum())} infinities"


# --- The coarsest rounding inside a model, which limits how close results can be --------------

# Operators that round computed floats to 8 bits. MatMulInteger and ConvInteger are exact.
_QUANTISES = frozenset(
    {"DynamicQuantizeLSTM", "DynamicQuantizeLinear", "DynamicQuantizeMatMul", "QAttention"}
    | {"QGemm", "QuantizeLinear"}
)
_QUANTISES_PREFIX = "QLinear"


def rounding_of(model: OnnxModel, *, stores_halves: bool) -> tuple[Rounding, str]:
    """Return the coarsest rounding and the reason for an unusual tolerance, "" if it is usual."""
    known = frozenset(model.constants)
    found = sorted({node.op_type for node in all_nodes(model.proto) if _quantises(node, known)})
    if found:
        reason = (
            f"{', '.join(found)} rounds computed values to 8 bits: a value near a tie can round "
            "either way, and the differences add up over layers, so "
            f"{QUANTISED_TOLERANCE:g} of the largest value is allowed"
        )
        return Rounding.QUANTISED, reason
    return (Rounding.HALF if stores_halves or _has_halves(model) else Rounding.FLOAT), ""


def _quantises(node: onnx.NodeProto, known: frozenset[str]) -> bool:
    if not (node.op_type in _QUANTISES or node.op_type.startswith(_QUANTISES_PREFIX)):
        return False
    return not node.input or node.input[0] not in known


def _has_halves(model: OnnxModel) -> bool:
    values = (*model.inputs, *model.proto.graph.output)
    return any(v.type.tensor_type.elem_type == TensorProto.FLOAT16 for v in values) or any(
        array.dtype == np.float16 for array in model.constants.values()
    )


# --- Arbitration by float64, for one output of one set of inputs ------------------------------
#
# Our result passes in one of two cases:
#
#     right    each disputed element is within the tolerance of the float64 result
#     noise    sums in the model are so ill conditioned that neither result is close to float64, and
#              ours is about as close as the reference, in both the largest and the mean distance
#
# For special values (`special_floats`), a result is wrong only if the reference and float64 agree
# on a different one, because values that overflow in float32 do not in float64.

# Evaluations of the same quality differ by chance. Among 64 to 1000 sums of 64 to 512 products, in
# 8 and in 16 lanes, the largest errors were within a factor of 1.8 in 98 of 100 draws.
AS_NEAR = 2.0
# The largest plausible distance between reference and float64. Beyond it, float64 computes
# something else, such as the other side of a comparison, and distances mean nothing.
CREDIBLE = 5e-2


@dataclass(frozen=True, slots=True)
class Dispute:
    """An output that differs from its reference, for one set of inputs."""

    name: str  # name of the output
    feeds: Mapping[str, Array]  # the inputs, in the model's element types
    found: Array  # the device's result
    expected: Array  # the reference's result


class Arbiter:
    """Decides by float64 whether our result or the reference is wrong where they differ.

    It prepares the evaluation of the model on first use.
    """

    def __init__(self, source: str | Path | OnnxModel, rounding: Rounding) -> None:
        """Store the model and the coarsest rounding inside it."""
        self._source = source
        self._rounding = rounding
        self._evaluator: DoubleEvaluator | None = None
        # Inputs and float64 outputs of the latest evaluation.
        self._latest: tuple[Mapping[str, Array], dict[str, Array]] | None = None
        self.why_not = ""  # the reason why float64 cannot be evaluated, or ""

    def settle(self, check: OutputCheck, dispute: Dispute) -> OutputCheck:
        """Return a failed check as passed if float64 supports our result, else with the reason."""
        exact = self._evaluate(dispute)
        if exact is None:
            return _refused(check, f"it cannot be arbitrated: {self.why_not}")
        tolerance = tolerance_of(dispute.expected.dtype, self._rounding)
        if is_float(dispute.expected.dtype):
            ours, theirs = (_distances(a, exact) for a in (dispute.found, dispute.expected))
            disputed = _distances(dispute.found, dispute.expected) > tolerance
            far, near = float(ours.max(initial=0)), float(theirs.max(initial=0))
            passed = bool((ours[disputed] <= tolerance).all()) or _is_as_near(ours, theirs)
        else:
            wrong = [_differ(a, exact) for a in (dispute.found, dispute.expected)]
            far, near = (float(mask.mean()) for mask in wrong)
            passed = far <= tolerance or (far <= AS_NEAR * near and near <= CREDIBLE)
        note = f"float64 is {far:.1e} from ours, {near:.1e} from the reference"
        return replace(check, problem="", note=note) if passed else _refused(check, note)

    def settle_special(self, check: OutputCheck, dispute: Dispute, excused: Array) -> OutputCheck:
        """Return a check of special values, failed only if our result alone is wrong.

        The tolerance applies to each element on its own. `excused` marks elements whose value is
        arbitrary, see docs/numerics.md.
        """
        tolerance = check.tolerance
        passed = replace(check, max_abs=0.0, max_rel=0.0, where=None, part="", problem="")
        differs = ~agreeing(dispute.found, dispute.expected, tolerance) & ~excused
        if not differs.any():
            return passed
        exact = self._evaluate(dispute)
        if exact is None:
            return replace(passed, note=f"special values not judged: {self.why_not}")
        sure = differs & agreeing(dispute.expected, exact, tolerance)
        if not sure.any():
            return passed
        where = tuple(int(i) for i in np.unravel_index(int(sure.argmax()), sure.shape))
        problem = (
            f"{dispute.found[where]}, where the reference and float64 have "
            f"{dispute.expected[where]}, like {int(sure.sum())} of {sure.size} elements"
        )
        return replace(passed, where=where, max_rel=float(sure.mean()), problem=problem)

    def _evaluate(self, dispute: Dispute) -> Array | None:
        """Return the output in float64, or None if it is unavailable.

        Values that overflow in the output's own type are infinite.
        """
        if self.why_not:
            return None
        try:
            if self._evaluator is None:
                self._evaluator = DoubleEvaluator(self._source)
            if self._latest is None or self._latest[0] is not dispute.feeds:
                self._latest = (dispute.feeds, self._evaluator.run(dispute.feeds))
        except ModelError as error:
            self.why_not = str(error)
            return None
        exact = self._latest[1][dispute.name]
        if exact.shape != dispute.expected.shape:
            self.why_not = f"onnx's evaluator has the shape {list(exact.shape)} for {dispute.name}"
            return None
        if not is_float(exact.dtype):
            return exact
        with np.errstate(over="ignore"):
            overflows = np.isinf(exact.astype(dispute.expected.dtype).astype(np.float64))
        return np.where(overflows, np.copysign(np.inf, exact), exact)


def agreeing(one: Array, other: Array, tolerance: float) -> Array:
    """Return a mask of elements of two results that agree within a relative tolerance.

    The tolerance is relative to the element of `other`, or to 1 if that is smaller. NaN agrees with
    NaN, and an infinity with one of the same sign.
    """
    if not is_float(one.dtype):
        return ~_differ(one, other)
    with np.errstate(all="ignore"):
        a, b = one.astype(np.float64), other.astype(np.float64)
        near = np.abs(a - b) <= tolerance * np.maximum(np.abs(b), 1.0)
        near &= np.isfinite(a) & np.isfinite(b)
    return np.asarray(near | (a == b) | (np.isnan(a) & np.isnan(b)))


def _refused(check: OutputCheck, why: str) -> OutputCheck:
    return replace(check, problem=f"{check.problem} ({why})", note=why)


def _distances(found: Array, exact: Array) -> Array:
    """Return each element's error as a share of the largest value, infinite if not comparable."""
    with np.errstate(all="ignore"):
        a, b = found.astype(np.float64), exact.astype(np.float64)
        finite = np.isfinite(b)
        peak = max(float(np.abs(b[finite]).max(initial=0.0)), SMALLEST_PEAK)
        same = (a == b) | (np.isnan(a) & np.isnan(b))
        off = np.where(finite & np.isfinite(a), np.abs(a - b) / peak, np.inf)
    return np.where(same, 0.0, off)


def _differ(found: Array, exact: Array) -> Array:
    a, b = found.astype(np.int64), exact.astype(np.int64)
    small = found.dtype.kind != "b" and found.dtype.itemsize == 1
    return np.asarray(np.abs(a - b) > (1 if small else 0))


def _is_as_near(ours: Array, theirs: Array) -> bool:
    """Whether our errors are not much larger than the reference's; only finite ones count.

    False if only ours is infinite somewhere, or if the reference is too far off to be credible.
    """
    if (np.isinf(ours) & ~np.isinf(theirs)).any():
        return False
    both = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[both], theirs[both]
    if theirs.max(initial=0.0) > CREDIBLE:
        return False
    largest = ours.max(initial=0.0) <= AS_NEAR * theirs.max(initial=0.0)
    return bool(largest and np.square(ours).sum() <= AS_NEAR**2 * np.square(theirs).sum())
