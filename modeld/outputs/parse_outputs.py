"""Parses a driving model's raw output vectors into the distributions of the messages.

A raw vector consists of heads, slices with one output each: means and log standard deviations, or
logits. The parser writes into arrays that it allocates once, and never into the raw vectors. All
arrays are float32 and have no batch axis, which is always 1. Formulas: openpilot's parser.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

import numpy as np
from numpy.typing import NDArray

from modeld.constants import (
    DESIRE_LENGTH,
    DESIRE_PREDICTION_STEPS,
    EULER_WIDTH,
    IDX_COUNT,
    LANE_LINE_COUNT,
    LEAD_COUNT,
    LEAD_STEPS,
    LEAD_WIDTH,
    PLAN_WIDTH,
    POSE_WIDTH,
    ROAD_EDGE_COUNT,
)
from modeld.errors import ModelInterfaceError
from runtime.format.interfaces import Interface

Array = NDArray[np.float32]
RawVectors = Mapping[str, Array]
HeadUpdate = Callable[[], None]

# exp(11) is about 6e4, just within fp16's range. Models are trained with the same clip.
MAX_EXPONENT: Final = np.float32(11.0)


@dataclass(frozen=True, slots=True)
class Head:
    """The encoding of one named output, a slice of the raw vector.

    `kind` is ``gaussian`` (means, then log stds), ``categorical`` (softmax over the last axis) or
    ``binary`` (one sigmoid per value). A ``gaussian`` head that is wide enough is a mixture of
    several hypotheses.
    """

    name: str
    kind: Literal["gaussian", "categorical", "binary"]
    shape: tuple[int, ...]  # shape of the result; for ``gaussian``, of the means
    hypotheses: int = 1  # number of competing predictions of a mixture
    selections: int = 1  # number of results chosen from the hypotheses, each with its own logits
    required: bool = True  # the messages cannot be filled without it

    @property
    def size(self) -> int:
        """Number of values in ``shape``."""
        return int(np.prod(self.shape))

    @property
    def widths(self) -> tuple[int, ...]:
        """Admissible widths in the raw vector: without a mixture, then with one."""
        if self.kind != "gaussian":
            return (self.size,)
        if self.hypotheses == 1:
            return (2 * self.size,)
        # Each hypothesis has means, log stds, and one logit per selection.
        mixture = self.hypotheses * (2 * self.size // self.selections + self.selections)
        return (2 * self.size, mixture)


# All heads except `meta`, whose width is given by the interface.
HEADS: Final = (
    Head("plan", "gaussian", (IDX_COUNT, PLAN_WIDTH), hypotheses=5),
    Head("lane_lines", "gaussian", (LANE_LINE_COUNT, IDX_COUNT, 2)),
    Head("lane_lines_prob", "binary", (2 * LANE_LINE_COUNT,)),
    Head("road_edges", "gaussian", (ROAD_EDGE_COUNT, IDX_COUNT, 2)),
    Head("lead", "gaussian", (LEAD_COUNT, LEAD_STEPS, LEAD_WIDTH), hypotheses=2, selections=3),
    Head("lead_prob", "binary", (LEAD_COUNT,)),
    Head("desire_state", "categorical", (DESIRE_LENGTH,)),
    Head("desire_pred", "categorical", (DESIRE_PREDICTION_STEPS, DESIRE_LENGTH)),
    Head("pose", "gaussian", (POSE_WIDTH,)),
    Head("wide_from_device_euler", "gaussian", (EULER_WIDTH,)),
    Head("road_transform", "gaussian", (POSE_WIDTH,)),
    # Heads of some generations only. The interface's action rule can require one.
    Head("action", "gaussian", (2,), required=False),
    Head("desired_curvature", "gaussian", (1,), required=False),
    Head("sim_pose", "gaussian", (POSE_WIDTH,), required=False),
    Head("planplus", "gaussian", (IDX_COUNT, PLAN_WIDTH), required=False),
)


@dataclass(frozen=True, slots=True)
class DrivingOutputs:
    """Parsed outputs. The parser owns all arrays and rewrites them at the next parse.

    Distances are in metres, speeds in m/s and angles in rad, in the device frame (x forward, y
    right, z down) at the time of the camera frame. Optional outputs are None if the model lacks
    them. For each output that is a mixture, `mixtures` has ``<name>_weights`` (hypotheses,
    selections), ``<name>_hypotheses`` and ``<name>_stds_hypotheses`` (hypotheses, *).
    """

    plan: Array  # (33, 15) rows at ``T_IDXS``; columns as in ``constants``; includes `planplus`
    plan_stds: Array
    lane_lines: Array  # (4, 33, 2) y and z at ``X_IDXS``, far left to far right
    lane_lines_stds: Array
    lane_lines_prob: Array  # (8,) two per line; the second is the probability that it exists
    road_edges: Array  # (2, 33, 2) as lane lines, left then right
    road_edges_stds: Array
    lead: Array  # (3, 6, 4) x, y, v, a every 2 s, of the cars that lead in 0, 2 and 4 s
    lead_stds: Array
    lead_prob: Array  # (3,) probability that each lead exists
    desire_state: Array  # (8,) sums to 1
    desire_pred: Array  # (4, 8) each row sums to 1
    meta: Array  # (48,), (53,) or (55,) probabilities; columns as in ``META_LAYOUTS``
    pose: Array  # (6,) velocity and angular velocity of the device
    pose_stds: Array
    wide_from_device_euler: Array  # (3,) roll, pitch, yaw
    wide_from_device_euler_stds: Array
    road_transform: Array  # (6,) road frame relative to the device
    road_transform_stds: Array
    action: Array | None = None  # (2,) lateral and longitudinal acceleration, m/s^2
    action_stds: Array | None = None
    desired_curvature: Array | None = None  # (1,) 1/m
    desired_curvature_stds: Array | None = None
    sim_pose: Array | None = None  # (6,) as `pose`
    sim_pose_stds: Array | None = None
    planplus: Array | None = None  # (33, 15) correction, already added to `plan`
    planplus_stds: Array | None = None
    mixtures: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))


def check_vector(results: RawVectors, name: str, width: int, entry: str) -> None:
    """Check that an output of a run matches the artifact's interface.

    Raises ModelInterfaceError if it is missing, not float32, or does not have `width` values.
    """
    vector = results.get(name)
    if vector is None or vector.size != width or vector.dtype != np.float32:
        found = "nothing" if vector is None else f"{vector.dtype} {vector.shape}"
        raise ModelInterfaceError(
            f"artifact entry {entry!r}: output {name}: expected float32 (1, {width}), got {found}; "
            "recompile the artifact"
        )


def safe_exp(values: Array, out: Array) -> None:
    """Write ``exp(min(values, 11))`` into ``out``; ``values`` is not changed."""
    np.minimum(values, MAX_EXPONENT, out=out)
    np.exp(out, out=out)


def sigmoid(values: Array, out: Array) -> None:
    """Write ``1 / (1 + safe_exp(-values))`` into ``out``; ``values`` is not changed."""
    # exp(-x) is clipped for large negative x, so the result is tiny and never 1 / infinity.
    np.negative(values, out=out)
    safe_exp(out, out)
    np.add(out, np.float32(1.0), out=out)
    np.reciprocal(out, out=out)


def softmax(values: Array, out: Array, *, axis: int = -1) -> None:
    """Write the softmax of ``values`` along ``axis`` into ``out``; ``values`` is not changed."""
    # Subtracting the maximum does not change the softmax and keeps exp from overflowing.
    np.subtract(values, values.max(axis=axis, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=axis, keepdims=True), out=out)


class OutputParser:
    """Parses the raw vectors of one artifact. All arrays are allocated when it is constructed."""

    def __init__(self, interface: Interface) -> None:
        """Allocate the arrays; raise as `check_heads`."""
        check_heads(interface)
        # A copy of each vector and its exponentials; the heads are views of them. One pass over a
        # vector costs less than one pass over each head.
        self._vectors: dict[str, tuple[Array, Array]] = {}
        self._updates: list[HeadUpdate] = []
        named: dict[str, Array] = {}
        mixtures: dict[str, Array] = {}
        found = interface.heads
        widths = {part.role: part.width for part in interface.models}
        for head in _heads_of(interface):
            if head.name not in found:
                continue
            role, start, stop = found[head.name]
            if role not in self._vectors:
                zeros = np.zeros(widths[role], np.float32)
                self._vectors[role] = zeros, np.ones_like(zeros)
            values, exponentials = (vector[start:stop] for vector in self._vectors[role])
            update = _plan_head(head, values, exponentials, named, mixtures)
            if update is not None:
                self._updates.append(update)
        self.outputs = DrivingOutputs(**named, mixtures=MappingProxyType(mixtures))

    def parse(self, raw: RawVectors) -> DrivingOutputs:
        """Parse the raw vectors; return ``self.outputs``, rewritten in place.

        `raw` maps each role to its vector, float32 (1, width) or (width,).
        """
        for role, (values, exponentials) in self._vectors.items():
            values[...] = raw[role].reshape(-1)
            safe_exp(values, exponentials)
        for update in self._updates:
            update()
        outputs = self.outputs
        # Add it after the hypothesis is chosen. The plan's standard deviations do not change.
        if outputs.planplus is not None:
            np.add(outputs.plan, outputs.planplus, out=outputs.plan)
        return outputs


def check_heads(interface: Interface) -> None:
    """Check that the messages can be filled from the heads of an interface.

    Raises one ModelInterfaceError that names every needed head that is missing and every head with
    a wrong width. All are reported together, because each attempt requires compiling a model.
    """
    problems = []
    found = interface.heads
    needed = {interface.action.lateral, interface.action.longitudinal}
    for head in _heads_of(interface):
        if head.name not in found:
            if head.required or head.name in needed:
                problems.append(f"{head.name}: missing")
            continue
        _, start, stop = found[head.name]
        if stop - start not in head.widths:
            expected = " or ".join(map(str, head.widths))
            problems.append(f"{head.name}: expected {expected} wide, got {stop - start}")
    if problems:
        raise ModelInterfaceError(
            f"artifact metadata: interface {interface.name!r}: the messages cannot be filled from "
            f"its heads: {'; '.join(problems)}; compile a model that has them"
        )


def _heads_of(interface: Interface) -> tuple[Head, ...]:
    return (*HEADS, Head("meta", "binary", (interface.meta,)))


def _plan_head(
    head: Head,
    values: Array,
    exponentials: Array,
    named: dict[str, Array],
    mixtures: dict[str, Array],
) -> HeadUpdate | None:
    """Add the arrays of one head to `named` and return the function that fills them.

    Returns None if they are views of the vector. `values` is the head's slice of the raw vector;
    `exponentials` are its exponentials, clipped as in `safe_exp`.
    """
    # The same head is a Gaussian in some models and a mixture in others; its width decides.
    if head.kind == "gaussian" and values.size == head.widths[0]:
        named[head.name] = values[: head.size].reshape(head.shape)
        named[f"{head.name}_stds"] = exponentials[head.size :].reshape(head.shape)
        return None
    value = named[head.name] = np.zeros(head.shape, np.float32)
    if head.kind == "binary":
        return lambda: sigmoid(values, value)
    if head.kind == "categorical":
        logits = values.reshape(head.shape)
        return lambda: softmax(logits, value)
    named[f"{head.name}_stds"] = np.zeros(head.shape, np.float32)
    return _plan_mixture(head, (values, exponentials), named, mixtures)


def _plan_mixture(
    head: Head,
    vector: tuple[Array, Array],
    named: Mapping[str, Array],
    mixtures: dict[str, Array],
) -> HeadUpdate:
    """Return the function that fills a mixture with the likeliest hypothesis per selection."""
    count, selections = head.hypotheses, head.selections
    # All selections choose from the same hypotheses. Each fills one row of the head's shape.
    size = head.size // selections
    shape = head.shape if selections == 1 else head.shape[1:]
    weights = mixtures[f"{head.name}_weights"] = np.zeros((count, selections), np.float32)
    means = mixtures[f"{head.name}_hypotheses"] = np.zeros((count, *shape), np.float32)
    spread = mixtures[f"{head.name}_stds_hypotheses"] = np.zeros((count, *shape), np.float32)
    flat_value = named[head.name].reshape(selections, size)
    flat_stds = named[f"{head.name}_stds"].reshape(selections, size)
    flat_means, flat_spread = means.reshape(count, size), spread.reshape(count, size)

    # Each row has one hypothesis: means, log stds, logits of the selections.
    rows, exp_rows = (part.reshape(count, 2 * size + selections) for part in vector)

    def update() -> None:
        # Each selection's weights sum to 1 over the hypotheses, axis 0.
        softmax(rows[:, 2 * size :], weights, axis=0)
        flat_means[...] = rows[:, :size]
        flat_spread[...] = exp_rows[:, size : 2 * size]
        if selections == 1:
            # Consumers of a single selection expect the likeliest hypothesis first.
            order = np.argsort(-weights[:, 0], kind="stable")
            for array in (weights, flat_means, flat_spread):
                array[...] = array[order]
        best = weights.argmax(axis=0)
        flat_value[...] = flat_means[best]
        flat_stds[...] = flat_spread[best]

    return update
