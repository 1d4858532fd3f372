"""Output layouts of the example models, and final layers that predict a plausible road.

The layouts give name, width and slice of each output head in the split interface of 2025. Widths
equal those of openpilot's models of 2025, for interoperability. Each head function returns bias and
weights of a final layer, so even random networks predict something recognizable.
"""

import base64
import pickle
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

HIDDEN_WIDTH = 512
PLAN_STEPS = 33
PLAN_COLUMNS = 15

# (name, width) in output order; the heads are contiguous.
VISION_OUTPUTS: tuple[tuple[str, int], ...] = (
    ("meta", 55),
    ("desire_pred", 32),
    ("pose", 12),
    ("wide_from_device_euler", 6),
    ("road_transform", 12),
    ("lane_lines", 528),
    ("lane_lines_prob", 8),
    ("road_edges", 264),
    ("lead", 144),
    ("lead_prob", 3),
    ("hidden_state", HIDDEN_WIDTH),
)
POLICY_OUTPUTS: tuple[tuple[str, int], ...] = (("plan", 990), ("desire_state", 8))
POLICY_PAD = 2


def t_idxs() -> NDArray[np.float64]:
    """Return the 33 plan times in seconds: 10 (i/32)^2."""
    return 10.0 * (np.arange(PLAN_STEPS) / (PLAN_STEPS - 1)) ** 2


def x_idxs() -> NDArray[np.float64]:
    """Return the 33 distances ahead of the lane lines in metres: 192 (i/32)^2."""
    return 192.0 * (np.arange(PLAN_STEPS) / (PLAN_STEPS - 1)) ** 2


def contiguous_slices(outputs: tuple[tuple[str, int], ...]) -> dict[str, slice]:
    """Return name -> slice of the (1, N) output for consecutive blocks of the given widths."""
    slices: dict[str, slice] = {}
    start = 0
    for name, width in outputs:
        slices[name] = slice(start, start + width)
        start += width
    return slices


def vision_slices() -> dict[str, slice]:
    """Return the vision slices; `pad` covers the whole output, as in published exports."""
    return contiguous_slices(VISION_OUTPUTS) | {"pad": slice(0, None)}


def policy_slices() -> dict[str, slice]:
    """Return the policy slices; `pad` counts from the end, as in published exports."""
    return contiguous_slices(POLICY_OUTPUTS) | {"pad": slice(-POLICY_PAD, None)}


def model_metadata(checkpoint: str, slices: Mapping[str, slice]) -> dict[str, str]:
    """Return ONNX metadata_props as openpilot's exporter writes them.

    `checkpoint` is free text that identifies the training run. `slices` maps heads to slices of the
    last axis of `outputs`.
    """
    # A fixed protocol keeps the bytes independent of Python's default.
    pickled = pickle.dumps(dict(slices), protocol=4)
    return {
        "model_checkpoint": checkpoint,
        "output_slices": base64.b64encode(pickled).decode("ascii"),
    }


# --- Final layers that predict a plausible road, varied by random features --------------------
#
# The outputs of a random network are meaningless. To make reports recognizable, the last layer of
# each head combines a few physical modes (curvature, offset, acceleration, ...) over a bias that
# describes a straight road at 15 m/s. Random directions of the feature space drive the modes. Each
# function returns (bias (N,), modes (M, N)) for an output of width N; `head_weight` makes a weight
# from the modes.
#
# Frame: x forward, y right, z down (device frame), metres, seconds, radians.

Array = NDArray[np.float64]
Head = tuple[Array, Array]

SPEED_MPS = 15.0
CAMERA_HEIGHT_M = 1.22
LANE_LINES_Y_M = (-5.4, -1.8, 1.8, 5.4)
ROAD_EDGES_Y_M = (-7.0, 7.0)
# Standard deviation of each mode for unit-variance features.
CURVATURE_PER_M = 3e-4
OFFSET_M = 0.15
ACCELERATION_MPS2 = 0.25
HEIGHT_M = 0.03


def plan() -> Head:
    """Return the (33, 15) plan, means then log standard deviations: 990 values.

    Modes: curvature (constant speed on a circular arc, small angles), longitudinal acceleration.
    """
    t = t_idxs()
    mean = np.zeros((PLAN_STEPS, PLAN_COLUMNS))
    mean[:, 0] = SPEED_MPS * t
    mean[:, 3] = SPEED_MPS
    log_std = np.repeat((-1.0 + t / t[-1])[:, None], PLAN_COLUMNS, axis=1)

    curve = np.zeros_like(mean)
    curve[:, 1] = 0.5 * (SPEED_MPS * t) ** 2
    curve[:, 4] = SPEED_MPS**2 * t
    curve[:, 7] = SPEED_MPS**2
    curve[:, 11] = SPEED_MPS * t
    curve[:, 14] = SPEED_MPS
    speed_up = np.zeros_like(mean)
    # Braking and accelerating fade out after some seconds, so that the speed stays positive.
    fade = np.exp(-t / 4.0)
    speed_up[:, 6] = fade
    speed_up[:, 3] = 4.0 * (1.0 - fade)
    speed_up[:, 0] = 4.0 * (t - 4.0 * (1.0 - fade))
    modes = np.stack([CURVATURE_PER_M * curve, ACCELERATION_MPS2 * speed_up])
    return mdn(mean, log_std, modes)


def lane_lines() -> Head:
    """Return four lane lines, (4, 33, 2) y and z at the 33 distances, means then log stds: 528."""
    return _lines(LANE_LINES_Y_M)


def road_edges() -> Head:
    """Return two road edges, (2, 33, 2) y and z at the 33 distances, means then log stds: 264."""
    return _lines(ROAD_EDGES_Y_M)


def lead() -> Head:
    """Return three leads, (3, 6, 4) x, y, v, a at 0, 2, .. 10 s, means then log stds: 144.

    Modes: distance and speed, common to all three.
    """
    t = np.arange(0.0, 12.0, 2.0)
    mean = np.zeros((3, 6, 4))
    mean[:, :, 0] = 40.0 + SPEED_MPS * t
    mean[:, :, 2] = SPEED_MPS
    log_std = np.zeros_like(mean)
    distance, speed = np.zeros_like(mean), np.zeros_like(mean)
    distance[:, :, 0] = 4.0
    speed[:, :, 0] = 0.5 * t
    speed[:, :, 2] = 0.5
    return mdn(mean, log_std, np.stack([distance, speed]))


def pose() -> Head:
    """Return the camera's velocity (m/s) and rotation rate (rad/s), means then log stds: 12."""
    mean = np.array([SPEED_MPS, 0.0, 0.0, 0.0, 0.0, 0.0])
    return mdn(mean, np.full(6, -2.0), np.diag([0.3, 0.05, 0.05, 0.003, 0.003, 0.01]))


def wide_from_device_euler() -> Head:
    """Return the wide camera's orientation in the device frame (rad), means then log stds: 6."""
    return mdn(np.zeros(3), np.full(3, -4.0), 0.005 * np.eye(3))


def road_transform() -> Head:
    """Return the road frame's position (m) and orientation (rad), means then log stds: 12."""
    mean = np.array([0.0, 0.0, CAMERA_HEIGHT_M, 0.0, 0.0, 0.0])
    return mdn(mean, np.full(6, -3.0), np.diag([0.02, 0.02, 0.02, 0.003, 0.003, 0.003]))


def meta(width: int = 55) -> Head:
    """Return `width` logits: engaged likely, disengagements, pedals and blinkers unlikely."""
    bias = np.full(width, -4.0)
    bias[0] = 2.0
    return bias, 0.3 * np.eye(width)


def lane_lines_prob() -> Head:
    """Return 8 logits, two per line; the odd ones are for the presence of the line."""
    return np.array([0.5, 0.9, 1.0, 2.2, 1.0, 2.2, 0.5, 0.9]), 0.3 * np.eye(8)


def lead_prob() -> Head:
    """Return 3 logits for a lead at 0, 2 and 4 s."""
    return np.array([-1.0, -1.2, -1.4]), 0.3 * np.eye(3)


def desire_pred() -> Head:
    """Return (4, 8) logits: no manoeuvre most likely at all four horizons."""
    bias = np.zeros((4, 8))
    bias[:, 0] = 4.0
    return bias.reshape(-1), 0.2 * np.eye(32)


def desire_state() -> Head:
    """Return 8 logits: no manoeuvre most likely."""
    return np.array([4.0, 0, 0, 0, 0, 0, 0, 0]), 0.2 * np.eye(8)


# Output name -> its head; the names are those of the published interface.
HEADS: dict[str, Callable[[], Head]] = {
    f.__name__: f
    for f in (
        plan,
        lane_lines,
        road_edges,
        lead,
        pose,
        wide_from_device_euler,
        road_transform,
        meta,
        lane_lines_prob,
        lead_prob,
        desire_pred,
        desire_state,
    )
}


def head_weight(modes: Array, depth: int, rng: np.random.Generator) -> Array:
    """Return an (N, depth) weight that drives each mode by its own random feature direction.

    Full-rank noise with a factor of 0.001 keeps every weight non-zero. `modes` (M, N) holds the
    change of the output for one unit of each mode. The `depth` features are assumed to be
    independent with unit variance.
    """
    directions = rng.standard_normal((depth, modes.shape[0])) / np.sqrt(depth)
    noise = rng.standard_normal((modes.shape[1], depth)) / np.sqrt(depth)
    weight: Array = (directions @ modes).T + 1e-3 * noise
    return weight


def _lines(y_m: tuple[float, ...]) -> Head:
    x = x_idxs()
    mean = np.zeros((len(y_m), PLAN_STEPS, 2))
    mean[:, :, 0] = np.array(y_m)[:, None]
    mean[:, :, 1] = CAMERA_HEIGHT_M
    log_std = np.zeros_like(mean)
    log_std[:, :, :] = (-2.0 + 2.0 * x / x[-1])[None, :, None]
    offset, curve, height = (np.zeros_like(mean) for _ in range(3))
    offset[:, :, 0] = OFFSET_M
    curve[:, :, 0] = CURVATURE_PER_M * 0.5 * x**2
    height[:, :, 1] = HEIGHT_M
    return mdn(mean, log_std, np.stack([offset, curve, height]))


def mdn(mean: Array, log_std: Array, modes: Array) -> Head:
    """Return means, then log standard deviations, as one output; modes change only the means."""
    flat_modes = modes.reshape(modes.shape[0], -1)
    return (
        np.concatenate([mean.reshape(-1), log_std.reshape(-1)]),
        np.concatenate([flat_modes, np.zeros_like(flat_modes)], axis=1),
    )


# --- Final layers for heads of other revisions, and the mixtures of older ones ----------------
#
# A mixture output has one block per hypothesis: means, log standard deviations, and one logit per
# selection (for example, per time at which the lead is wanted).

# (head, width) -> (number of hypotheses, number of selections).
MIXTURES = {("plan", 4955): (5, 1), ("lead", 102): (2, 3)}


def head(name: str, width: int) -> Head:
    """Return the bias (N,) and the modes (M, N) of the head `name` with N = `width` values.

    A head of unknown name gets zero bias and one mode per value.
    """
    if (name, width) in MIXTURES:
        return _mixture(_single(name), *MIXTURES[name, width])
    if name == "meta":
        return meta(width)
    known = OTHERS.get(name) or HEADS.get(name)
    found = known() if known else (np.zeros(width), np.eye(width))
    if found[0].shape != (width,):
        raise ValueError(f"head {name!r}: expected {found[0].size} values, found {width}")
    return found


def desired_curvature() -> Head:
    """Return the desired curvature in 1/m and its log standard deviation: 2 values."""
    return mdn(np.zeros(1), np.full(1, -6.0), CURVATURE_PER_M * np.ones((1, 1)))


def planplus() -> Head:
    """Return the correction of the plan, (33, 15) means and log stds: 990 values."""
    bias, modes = plan()
    bias[: PLAN_STEPS * PLAN_COLUMNS] = 0.0
    return bias, 0.1 * modes


def action() -> Head:
    """Return lateral and longitudinal acceleration (m/s^2), then log standard deviations: 4."""
    lateral = CURVATURE_PER_M * SPEED_MPS**2
    return mdn(np.zeros(2), np.full(2, -2.0), np.diag([lateral, 0.25]))


OTHERS = {
    "sim_pose": pose,
    "desired_curvature": desired_curvature,
    "planplus": planplus,
    "action": action,
}


def _single(name: str) -> tuple[Array, Array, Array]:
    """Return means, log standard deviations and modes of the means of one hypothesis."""
    bias, modes = {"plan": plan, "lead": lead}[name]()
    half = bias.size // 2
    if name == "lead":
        half = half // 3  # a hypothesis is one lead; each selection logit is for one time
    middle = bias.size // 2
    return bias[:half], bias[middle : middle + half], modes[:, :half]


def _mixture(single: tuple[Array, Array, Array], hypotheses: int, selections: int) -> Head:
    """Return a mixture whose blocks differ slightly; each block and logit has its own modes."""
    mean, log_std, modes = single
    block = 2 * mean.size + selections
    bias = np.zeros((hypotheses, block))
    moved = np.zeros((hypotheses, len(modes) + selections, hypotheses, block))
    for i in range(hypotheses):
        bias[i, : mean.size] = mean * (1.0 - 0.02 * i)
        bias[i, mean.size : 2 * mean.size] = log_std
        bias[i, 2 * mean.size :] = -0.5 * i
        moved[i, : len(modes), i, : mean.size] = modes
        moved[i, len(modes) :, i, 2 * mean.size :] = np.eye(selections)
    return bias.reshape(-1), moved.reshape(-1, hypotheses * block)
