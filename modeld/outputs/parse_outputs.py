"""Parses the raw output vectors into the distributions that the messages carry.

Raw vectors hold means, log standard deviations and logits. The parser writes into arrays it
allocated once and never into the raw vectors, which stay what the device returned. All arrays are
float32 and without the batch axis, which is always 1. Formulas: openpilot's published parser.
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

# exp(11) is about 6e4, just inside fp16: models are trained with the same clip.
MAX_EXPONENT: Final = np.float32(11.0)


@dataclass(frozen=True, slots=True)
class Head:
    """How one named output is to be read.

    `kind` is ``gaussian`` (means then log stds), ``categorical`` (softmax over the last axis) or
    ``binary`` (a sigmoid each). `shape` is that of the result (of the means for ``gaussian``).
    """

    name: str
    kind: Literal["gaussian", "categorical", "binary"]
    shape: tuple[int, ...]
    hypotheses: int = 1  # competing predictions, if wide enough for a mixture
    selections: int = 1  # predictions to choose among the hypotheses, each with its own logits
    required: bool = True  # the messages cannot be filled without it

    @property
    def size(self) -> int:
        """Number of values in ``shape``."""
        return int(np.prod(self.shape))

    @property
    def widths(self) -> tuple[int, ...]:
        """Admissible widths in the raw vector: the plain one, then that of a mixture."""
        if self.kind != "gaussian":
            return (self.size,)
        if self.hypotheses == 1:
            return (2 * self.size,)
        # Each hypothesis has means, log stds, and a logit for each selection that it competes for.
        mixture = self.hypotheses * (2 * self.size // self.selections + self.selections)
        return (2 * self.size, mixture)


# All but `meta`, whose width the interface tells.
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
    # What only some generations have. The action rule makes it required.
    Head("action", "gaussian", (2,), required=False),
    Head("desired_curvature", "gaussian", (1,), required=False),
    Head("sim_pose", "gaussian", (POSE_WIDTH,), required=False),
    Head("planplus", "gaussian", (IDX_COUNT, PLAN_WIDTH), required=False),
)


@dataclass(frozen=True, slots=True)
class DrivingOutputs:
    """Parsed outputs; every array is owned by the parser and rewritten by the next parse.

    Distances are metres, speeds m/s, angles rad, in the device frame at the frame's time (x
    forward, y right, z down). A plan's means have those of `planplus` added, if the model has them.
    From `action` on, None means that the model has no such output. `mixtures` has
    ``<name>_weights`` (hypotheses, selections) and ``<name>_hypotheses``,
    ``<name>_stds_hypotheses`` (hypotheses, *) of outputs that are mixtures.
    """

    plan: Array  # (33, 15) rows at ``T_IDXS``; columns as named in ``constants``
    plan_stds: Array
    lane_lines: Array  # (4, 33, 2) y and z at ``X_IDXS``, far left to far right
    lane_lines_stds: Array
    lane_lines_prob: Array  # (8,) two per line, the second is "the line exists"
    road_edges: Array  # (2, 33, 2) like lane lines, left and right
    road_edges_stds: Array
    lead: Array  # (3, 6, 4) x, y, v, a every 2 s, for "which car leads in 0, 2, 4 s"
    lead_stds: Array
    lead_prob: Array  # (3,)
    desire_state: Array  # (8,) sums to 1
    desire_pred: Array  # (4, 8) each row sums to 1
    meta: Array  # (48,), (53,) or (55,) probabilities; columns as in ``meta_layout``
    pose: Array  # (6,) velocity and angular velocity of the device
    pose_stds: Array
    wide_from_device_euler: Array  # (3,)
    wide_from_device_euler_stds: Array
    road_transform: Array  # (6,) road frame relative to the device
    road_transform_stds: Array
    action: Array | None = None  # (2,) lateral and longitudinal acceleration, m/s^2
    action_stds: Array | None = None
    desired_curvature: Array | None = None  # (1,) 1/m
    desired_curvature_stds: Array | None = None
    sim_pose: Array | None = None  # (6,) as `pose`
    sim_pose_stds: Array | None = None
    planplus: Array | None = None  # (33, 15) was added to the plan
    planplus_stds: Array | None = None
    mixtures: Mapping[str, Array] = field(default_factory=lambda: MappingProxyType({}))


def check_vector(results: RawVectors, name: str, width: int, entry: str) -> None:
    """Check that a run returned an output as the artifact's interface promises it.

    Raises ModelInterfaceError if it is missing, or not float32 (1, width).
    """
    vector = results.get(name)
    if vector is None or vector.size != width or vector.dtype != np.float32:
        found = "nothing" if vector is None else f"{vector.dtype} {vector.shape}"
        raise ModelInterfaceError(
            f"artifact entry {entry!r}: output {name}: expected float32 (1, {width}), got {found}; "
            "recompile the artifact"
        )


def safe_exp(values: Array, out: Array) -> None:
    """Write ``exp(min(values, 11))`` into ``out``; ``values`` stays as it is."""
    np.minimum(values, MAX_EXPONENT, out=out)
    np.exp(out, out=out)


def sigmoid(values: Array, out: Array) -> None:
    """Write ``1 / (1 + safe_exp(-values))`` into ``out``; ``values`` stays as it is."""
    # exp(-x) is clipped at large negative x, so the result is tiny there and never 1 / infinity.
    np.negative(values, out=out)
    safe_exp(out, out)
    np.add(out, np.float32(1.0), out=out)
    np.reciprocal(out, out=out)


def softmax(values: Array, out: Array, *, axis: int = -1) -> None:
    """Write the softmax of ``values`` along ``axis`` into ``out``; ``values`` stays as it is."""
    # Subtracting the maximum leaves the softmax as it is and keeps exp from overflowing.
    np.subtract(values, values.max(axis=axis, keepdims=True), out=out)
    np.exp(out, out=out)
    np.divide(out, out.sum(axis=axis, keepdims=True), out=out)


class OutputParser:
    """Parses the raw vectors of one artifact; allocates everything when constructed."""

    def __init__(self, interface: Interface) -> None:
        """Lay out the arrays; raise as `check_heads`."""
        check_heads(interface)
        # Of each vector a copy and its exponentials, which the heads are parts of: one pass over a
        # vector costs less than one over each head.
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
        """Read the raw vectors; return ``self.outputs``, rewritten in place.

        `raw` has, by role, (1, width) or (width,) float32; it is not written to.
        """
        for role, (values, exponentials) in self._vectors.items():
            values[...] = raw[role].reshape(-1)
            safe_exp(values, exponentials)
        for update in self._updates:
            update()
        outputs = self.outputs
        # After the choice among hypotheses; the deviations stay those of the plan.
        if outputs.planplus is not None:
            np.add(outputs.plan, outputs.planplus, out=outputs.plan)
        return outputs


# All problems are reported at once: each attempt means compiling a model again.
def check_heads(interface: Interface) -> None:
    """Check that the messages can be filled from the heads of an interface.

    ModelInterfaceError names all heads that messages or action rule need and that are missing or
    have a width that their shape does not explain.
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
    """Name the arrays of one head and return what fills them; None if they are parts of a vector.

    `exponentials` are those of `values`, its part of the raw vector, clipped as in `safe_exp`.
    """
    # The width tells a plain Gaussian from a mixture, as models of both kinds use the same names.
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
    """Return the update of a mixture: the most likely hypothesis for each selection."""
    count, selections = head.hypotheses, head.selections
    # The selections share hypotheses: each takes a part of the head's shape from one of them.
    size = head.size // selections
    shape = head.shape if selections == 1 else head.shape[1:]
    weights = mixtures[f"{head.name}_weights"] = np.zeros((count, selections), np.float32)
    means = mixtures[f"{head.name}_hypotheses"] = np.zeros((count, *shape), np.float32)
    spread = mixtures[f"{head.name}_stds_hypotheses"] = np.zeros((count, *shape), np.float32)
    flat_value = named[head.name].reshape(selections, size)
    flat_stds = named[f"{head.name}_stds"].reshape(selections, size)
    flat_means, flat_spread = means.reshape(count, size), spread.reshape(count, size)

    # In a row: means, log stds, logits of the selections.
    rows, exp_rows = (part.reshape(count, 2 * size + selections) for part in vector)

    def update() -> None:
        # Weights of a selection sum to 1 over the hypotheses, so the axis is that of the
        # hypotheses.
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
