"""The arbitration by float64 where a program and its reference differ.

A reference is float32 too, and may be the one that is off. `DoubleEvaluator` decides, for one
output of one set of inputs:

    right    each element in dispute is as close to float64 as the tolerance asks
    noise    the sums of the model are so ill conditioned that neither is: then ours is right if it
             is about as near as the reference, in its largest distance and in the mean

Of special values (`special_floats`) a result is wrong only where the reference and float64 agree on
another one: what overflows in float32 does not in float64.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scheduler.check.float64_evaluator import DoubleEvaluator
from scheduler.check.outputs import SMALLEST_PEAK, OutputCheck, Rounding, is_float, tolerance_of
from scheduler.errors import ModelError
from scheduler.onnx_import import OnnxModel

Array = NDArray[Any]

# Evaluations of the same quality differ by chance: of 64 to 1000 sums of 64 to 512 products, in 8
# and in 16 lanes, the largest errors were within a factor of 1.8 in 98 of 100 draws.
AS_NEAR = 2.0
# Beyond it float64 computes something else (another side of a comparison, an operator that onnx's
# evaluator has otherwise): nothing follows from distances.
CREDIBLE = 5e-2


@dataclass(frozen=True, slots=True)
class Dispute:
    """An output of one set of inputs."""

    name: str  # of the output
    feeds: Mapping[str, Array]  # the inputs, in the element types of the model
    found: Array  # what the device computed
    expected: Array  # what the reference computed


class Arbiter:
    """Evaluates a model in float64 when it is asked for the first time."""

    def __init__(self, source: str | Path | OnnxModel, rounding: Rounding) -> None:
        """Remember a model, and the coarsest rounding inside, which may have to be evaluated."""
        self._source = source
        self._rounding = rounding
        self._evaluator: DoubleEvaluator | None = None
        self._latest: tuple[Mapping[str, Array], dict[str, Array]] | None = None
        self.why_not = ""

    def settle(self, check: OutputCheck, dispute: Dispute) -> OutputCheck:
        """Return a failed comparison, passed if float64 says so; `note` has both distances."""
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
        """Return a comparison of special values, with a problem only where we alone are off.

        The tolerance is taken of each element; those excused may be anything, see docs/numerics.md.
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
        """Return the output in float64, rounded to its type; None if nothing computes it."""
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
    """Return where two results agree, each element by itself, within a part of it (below 1: of 1).

    NaN agrees with NaN, infinities with those of their sign.
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
    """Return how far each element is off as a share of the largest; infinite: not comparable."""
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
    """Whether distances that are noise are of one size, where float64 means the same."""
    if (np.isinf(ours) & ~np.isinf(theirs)).any():
        return False
    both = np.isfinite(ours) & np.isfinite(theirs)
    ours, theirs = ours[both], theirs[both]
    if theirs.max(initial=0.0) > CREDIBLE:
        return False
    largest = ours.max(initial=0.0) <= AS_NEAR * theirs.max(initial=0.0)
    return bool(largest and np.square(ours).sum() <= AS_NEAR**2 * np.square(theirs).sum())
